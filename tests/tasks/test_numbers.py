"""Every language against a generator that is not ours, by hand where it matters, and the task on top."""

import dataclasses
import itertools
import random
import re
from collections import Counter

import pytest
from cn2an import an2cn
from num2words import num2words

from heedful.tasks import TASKS, Pair, words

LANGUAGES = ("en", "de", "zh", "fr")

# What the other generators write, and what is written here: all differences there are.
DIFFERENCES = {
    # A convention: num2words writes British "and", and commas.
    "en": [(" and ", " "), (", ", " ")],
    # num2words keeps the s of "eins" before what is counted. In standard German that is wrong: "hundertein Autos".
    # https://blog.leo.org/2010/05/27/tausendundeine-nacht-oder-tausendundein-nachte/
    "de": [("einstausend", "eintausend"), ("eins Millionen", "ein Millionen")],
    "fr": [],
    # cn2an leaves out 零 where all of 万 is empty and thousands follow; CLDR's rule (common/rbnf/zh.xml, spellout8)
    # puts it after 亿 before every rest below ten million.
    "zh": [("亿(?=.千[^万]*$)", "亿零")],
}


def theirs(n: int, language: str) -> str:
    said: str = an2cn(n, "low") if language == "zh" else num2words(n, lang=language)
    for found, instead in DIFFERENCES[language]:
        said = re.sub(found, instead, said)
    return said


def some_numbers() -> list[int]:
    """5,000 of them: all below 2,000, what stands around every boundary, and of every length at random."""
    counts = [1, 2, 7, 9, 10, 11, 16, 17, 20, 21, 70, 71, 80, 81, 91, 99, 100, 101, 110, 180, 200, 201, 500, 901, 999]
    rests = [-1, 0, 1, 10, 16, 80, 100, 1000, 10_000, 101_000, 1_000_000]
    boundaries = {count * 10**zeros + rest for count in counts for zeros in range(9) for rest in rests}
    numbers = {*range(2000), *(n for n in boundaries if 0 <= n < 10**9)}
    rng = random.Random(0)
    while len(numbers) < 5000:
        numbers.add(rng.randrange(10 ** rng.randint(4, 9)))
    return sorted(numbers)


@pytest.mark.parametrize("language", LANGUAGES)
def test_against_another_generator(language):
    numbers = some_numbers()
    assert len(numbers) == 5000
    wrong = [(n, words(n, language), theirs(n, language)) for n in numbers if words(n, language) != theirs(n, language)]
    assert not wrong, wrong[:5]


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_difference_is_listed_in_vain(language):
    examples = (1_001, 1_100, 101_000, 101_000_000, 100_001_000)
    raw = [an2cn(n, "low") if language == "zh" else num2words(n, lang=language) for n in examples]
    for found, _ in DIFFERENCES[language]:
        assert any(re.search(found, said) for said in raw), found


BY_HAND = {
    "en": {
        0: "zero",
        13: "thirteen",
        21: "twenty-one",
        40: "forty",
        101: "one hundred one",
        1_001_000: "one million one thousand",
        123_405: "one hundred twenty-three thousand four hundred five",
        999_999_999: "nine hundred ninety-nine million nine hundred ninety-nine thousand nine hundred ninety-nine",
    },
    "de": {
        0: "null",
        1: "eins",
        16: "sechzehn",
        17: "siebzehn",
        21: "einundzwanzig",
        30: "dreißig",
        66: "sechsundsechzig",
        77: "siebenundsiebzig",
        100: "einhundert",
        101: "einhunderteins",
        200: "zweihundert",
        1000: "eintausend",
        1001: "eintausendeins",
        21_000: "einundzwanzigtausend",
        101_000: "einhunderteintausend",
        101_101: "einhunderteintausendeinhunderteins",
        # Duden's own example of a large number.
        2_120_419: "zwei Millionen einhundertzwanzigtausendvierhundertneunzehn",
        1_000_000: "eine Million",
        1_000_001: "eine Million eins",
        1_001_000: "eine Million eintausend",
        2_200_000: "zwei Millionen zweihunderttausend",
        21_000_000: "einundzwanzig Millionen",
        101_000_000: "einhundertein Millionen",
    },
    "zh": {
        0: "零",
        2: "二",
        10: "十",
        16: "十六",
        20: "二十",
        101: "一百零一",
        110: "一百一十",
        200: "二百",
        1_010: "一千零一十",
        1_100: "一千一百",
        10_010: "一万零一十",
        100_000: "十万",
        105_000: "十万五千",
        120_000: "十二万",
        200_010: "二十万零一十",
        1_000_000: "一百万",
        1_001_000: "一百万一千",
        10_000_001: "一千万零一",
        100_000_000: "一亿",
        100_001_000: "一亿零一千",
        100_020_000: "一亿零二万",
        100_100_000: "一亿零一十万",
        110_000_000: "一亿一千万",
        101_010_101: "一亿零一百零一万零一百零一",
    },
    "fr": {
        0: "zéro",
        16: "seize",
        17: "dix-sept",
        21: "vingt et un",
        22: "vingt-deux",
        60: "soixante",
        70: "soixante-dix",
        71: "soixante et onze",
        72: "soixante-douze",
        77: "soixante-dix-sept",
        79: "soixante-dix-neuf",
        80: "quatre-vingts",
        81: "quatre-vingt-un",
        90: "quatre-vingt-dix",
        91: "quatre-vingt-onze",
        99: "quatre-vingt-dix-neuf",
        100: "cent",
        101: "cent un",
        180: "cent quatre-vingts",
        200: "deux cents",
        201: "deux cent un",
        300: "trois cents",
        1_000: "mille",
        3_000: "trois mille",
        21_000: "vingt et un mille",
        80_000: "quatre-vingt mille",
        180_080: "cent quatre-vingt mille quatre-vingts",
        200_000: "deux cent mille",
        203_000: "deux cent trois mille",
        1_000_000: "un million",
        1_001_000: "un million mille",
        80_000_000: "quatre-vingts millions",
        200_000_200: "deux cents millions deux cents",
    },
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_by_hand(language):
    assert {n: words(n, language) for n in BY_HAND[language]} == BY_HAND[language]


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_two_numbers_are_said_alike(language):
    rng = random.Random(1)
    numbers = {*range(5000), *(rng.randrange(10 ** rng.randint(4, 9)) for _ in range(20_000))}
    assert len(numbers) > 20_000
    assert len({words(n, language) for n in numbers}) == len(numbers)


@pytest.mark.parametrize("n", [-1, 10**9, True, False, 1.0, "7", None])
def test_what_has_no_words(n):
    with pytest.raises(ValueError, match=rf"{re.escape(repr(n))} has no words here.* from 0 to 999,999,999"):
        words(n, "en")


def test_a_language_that_is_not_spoken():
    with pytest.raises(ValueError, match="language='it' is not spoken here; these are: en, de, zh, fr"):
        words(1, "it")


# The tasks.


def test_every_direction_is_a_task():
    names = {f"numbers-{source}-{target}" for source, target in itertools.permutations(LANGUAGES, 2)}
    assert {name for name in TASKS if name.startswith("numbers")} == names
    assert len(names) == 12


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(LANGUAGES, 2)))
def test_a_pair_says_one_number_twice(source, target):
    task = TASKS[f"numbers-{source}-{target}"]
    assert task.pair(21_000_091) == (theirs(21_000_091, source), theirs(21_000_091, target))
    rng = random.Random(2)
    said = {words(n, source): words(n, target) for n in range(1000)}
    drawn = [task.pair(task.draw(rng)) for _ in range(200)]
    short = [pair for pair in drawn if pair.source in said]
    assert len(short) > 30
    assert all(said[pair.source] == pair.target for pair in short)


# The same numbers, in figures.
FIGURES = dataclasses.replace(TASKS["numbers-en-de"], pair=lambda n: Pair(str(n), str(n)))


def test_all_directions_draw_and_hold_out_the_same_numbers():
    numbers = [int(pair.source) for pair in FIGURES.held_out(20, seed=3)]
    for name in ("numbers-en-de", "numbers-zh-fr"):
        source, target = name.split("-")[1:]
        expected = [(words(n, source), words(n, target)) for n in numbers]
        assert TASKS[name].held_out(20, seed=3) == expected


@pytest.mark.parametrize("count", [1, 6, 100, 2000, 2003])
def test_held_out_numbers_are_distinct_of_4_to_9_digits_evenly(count):
    numbers = [int(pair.source) for pair in FIGURES.held_out(count, seed=0)]
    assert len(set(numbers)) == count
    lengths = Counter(len(str(n)) for n in numbers)
    assert set(lengths) <= set(range(4, 10))
    assert max(lengths.values()) - min(lengths[length] for length in range(4, 10)) <= 1


def test_lengths_are_drawn_evenly():
    """9,000 draws, 1,000 of each length expected, one standard deviation 30; five of them are allowed."""
    rng = random.Random(0)
    drawn = Counter(len(str(FIGURES.draw(rng))) for _ in range(9000))
    trained = Counter(len(pair.source) for pair in FIGURES.training(9000, seed=0))
    for lengths in (drawn, trained):
        assert set(lengths) == set(range(1, 10))
        assert all(abs(seen - 1000) <= 150 for seen in lengths.values()), lengths


def test_all_numbers_below_a_thousand_are_for_training():
    trained = {int(pair.source) for pair in FIGURES.training(60_000, seed=0)}
    assert set(range(1000)) <= trained


def test_which_numbers_are_held_out_is_the_same_everywhere():
    """By `printf 1004 | sha256sum`, as a number, modulo 10."""
    first = [1004, 1035, 1037, 1051]
    every = {int(pair.source) for pair in FIGURES.held_out(_most(FIGURES), seed=5)}
    assert sorted(n for n in every if n <= 1060) == first
    assert not {int(pair.source) for pair in FIGURES.training(60_000, seed=1)} & every


def _most(task):
    with pytest.raises(ValueError, match="held-out examples") as error:
        task.held_out(10_000, seed=0)
    return int(str(error.value).split()[-1])
