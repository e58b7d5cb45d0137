"""Copy, reverse, sort and recall, against the source read back."""

import random
import string
from collections import Counter

import pytest

from heedful.tasks import TASKS


def drawn(name, count=3000):
    task = TASKS[name]
    rng = random.Random(0)
    return [task.pair(task.draw(rng)) for _ in range(count)]


@pytest.mark.parametrize(
    ("name", "answer"), [("copy", list), ("reverse", lambda letters: letters[::-1]), ("sort", sorted)]
)
def test_letters(name, answer):
    lengths, seen = Counter(), Counter()
    for source, target in drawn(name):
        letters = source.split(" ")
        assert target.split(" ") == answer(letters)
        lengths[len(letters)] += 1
        seen.update(letters)
    # 3,000 draws of nine lengths: 333 of each expected, one standard deviation 17; five are allowed.
    assert set(lengths) == set(range(4, 13))
    assert all(abs(count - 333) <= 86 for count in lengths.values()), lengths
    # 24,000 letters: 923 of each expected, one standard deviation 30.
    assert set(seen) == set(string.ascii_lowercase)
    assert all(abs(count - 923) <= 180 for count in seen.values()), seen


@pytest.mark.parametrize("length", [4, 12])
def test_a_kind_has_every_sequence_of_its_length_once(length):
    kind = next(kind for kind in TASKS["copy"].kinds if len(kind) == 26**length)
    pair = TASKS["copy"].pair
    assert pair(kind[0]).source == " ".join("a" * length)
    assert pair(kind[1]).source == " ".join("a" * (length - 1) + "b")
    assert pair(kind[-1]).source == " ".join("z" * length)
    assert pair(kind[0] + 26**2 * 3 + 2).source == " ".join("a" * (length - 3) + "dac")
    rng = random.Random(0)
    numbers = set(rng.sample(kind, 5000))
    assert len({pair(number).source for number in numbers}) == 5000


def test_recall():
    counts, places, answers = Counter(), Counter(), Counter()
    for source, target in drawn("recall"):
        *shown, mark, asked = source.split(" ")
        assert mark == "?"
        keys, values = shown[0::2], shown[1::2]
        assert len(set(keys)) == len(keys) == len(values)
        assert set(keys) <= set(string.ascii_lowercase)
        assert set(values) <= set(string.digits)
        assert target == values[keys.index(asked)]
        counts[len(keys)] += 1
        answers[target] += 1
        if len(keys) == 6:
            places[keys.index(asked)] += 1
    # 600 of each number of pairs expected, 300 of each answer, 100 of each place among six.
    assert set(counts) == set(range(2, 7))
    assert all(abs(count - 600) <= 110 for count in counts.values()), counts
    assert all(abs(answers[digit] - 300) <= 83 for digit in string.digits), answers
    assert all(abs(places[place] - 100) <= 50 for place in range(6)), places


def test_recall_has_every_example_once():
    """Two pairs: 26 · 25 letters, 100 values, 2 questions."""
    task = TASKS["recall"]
    assert len({task.pair(number).source for number in task.kinds[0]}) == len(task.kinds[0]) == 26 * 25 * 100 * 2
    taken = [{number % 10 for number in (kind[0], kind[-1])} for kind in task.kinds]
    assert taken == [{2}, {3}, {4}, {5}, {6}]
