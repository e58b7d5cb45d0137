"""Numbers in words, 0 to 999,999,999, in four languages; and the task: what one says, the other says.

    21              91                 200,000               100,020,000
    twenty-one      ninety-one         two hundred thousand  one hundred million twenty thousand
    einundzwanzig   einundneunzig      zweihunderttausend    einhundert Millionen zwanzigtausend
    二十一           九十一              二十万                 一亿零二万
    vingt et un     quatre-vingt-onze  deux cent mille       cent millions vingt mille

Each language is one function, with a few names before it: how many of the largest unit, the unit, and the rest.
"""

import functools
import itertools

from heedful.tasks.task import Pair, Task

MILLION = 10**6


def words(n: int, language: str) -> str:
    """The number n, from 0 to 999,999,999, in words of English (en), German (de), Chinese (zh) or French (fr).

    Where usage varies, one form is kept throughout.

    en   American: neither "and" nor commas. 123,405 is "one hundred twenty-three thousand four hundred five".
    de   "einhundert" and "eintausend", not "hundert" and "tausend"; "und" between ones and tens alone.
         "eins" keeps its s only at the very end: "einhunderteintausend", "einhundertein Millionen".
    zh   Simplified; 二, not 两. Ten is 十 at the very beginning (十二, 十万) and 一十 elsewhere (一百一十).
         One 零 where the next lower place is empty, also between 亿 and 万: 一亿零二万, 一亿零一千, but 十万一千.
    fr   Of France, with hyphens below one hundred alone: "vingt et un", "soixante et onze", "quatre-vingt-onze".
         "quatre-vingts" and "cents" lose their s before a number, "mille" too, but not before the noun "millions".
    """
    if language not in LANGUAGES:
        raise ValueError(f"language={language!r} is not spoken here; these are: {', '.join(LANGUAGES)}")
    if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < 1000 * MILLION:
        raise ValueError(f"{n!r} has no words here: give a whole number from 0 to 999,999,999")
    return LANGUAGES[language](n)


ENGLISH, ENGLISH_TENS = (
    names.split()
    for names in (
        "zero one two three four five six seven eight nine ten "
        "eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen",
        "- - twenty thirty forty fifty sixty seventy eighty ninety",
    )
)
ENGLISH_UNITS = ((MILLION, "million"), (1000, "thousand"), (100, "hundred"))


def _english(n: int) -> str:
    if n < 20:
        return ENGLISH[n]
    if n < 100:
        tens, ones = divmod(n, 10)
        return f"{ENGLISH_TENS[tens]}-{ENGLISH[ones]}" if ones else ENGLISH_TENS[tens]
    unit, name = next((unit, name) for unit, name in ENGLISH_UNITS if n >= unit)
    count, rest = divmod(n, unit)
    return f"{_english(count)} {name}" + (f" {_english(rest)}" if rest else "")


GERMAN, GERMAN_TENS = (
    names.split()
    for names in (
        "null eins zwei drei vier fünf sechs sieben acht neun zehn "
        "elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn",
        "- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
    )
)
GERMAN_UNITS = ((1000, "tausend"), (100, "hundert"))


def _german(n: int) -> str:
    """Ones come before tens. Below a million all is one word; Million is a noun, and feminine."""
    if n < 20:
        return GERMAN[n]
    if n < 100:
        tens, ones = divmod(n, 10)
        return f"{_before(ones)}und{GERMAN_TENS[tens]}" if ones else GERMAN_TENS[tens]
    if n < MILLION:
        unit, name = next((unit, name) for unit, name in GERMAN_UNITS if n >= unit)
        count, rest = divmod(n, unit)
        return f"{_before(count)}{name}" + (_german(rest) if rest else "")
    count, rest = divmod(n, MILLION)
    millions = "eine Million" if count == 1 else f"{_before(count)} Millionen"
    return millions + (f" {_german(rest)}" if rest else "")


def _before(count: int) -> str:
    """As it stands before what it counts: ein, zwei, ..., einhundertein."""
    counted = _german(count)
    return counted.removesuffix("s") if counted.endswith("eins") else counted


CHINESE = "零一二三四五六七八九"
CHINESE_UNITS = ((10**8, "亿"), (10**4, "万"), (1000, "千"), (100, "百"), (10, "十"))


def _chinese(n: int) -> str:
    said = _places(n)
    return said.removeprefix("一") if said.startswith("一十") else said


def _places(n: int) -> str:
    """Units of ten thousand, not of a thousand: 亿 is 万 times 万. 零 says that the next lower place is empty."""
    if n < 10:
        return CHINESE[n]
    unit, name = next((unit, name) for unit, name in CHINESE_UNITS if n >= unit)
    count, rest = divmod(n, unit)
    zero = "零" if rest < unit // 10 else ""
    return f"{_places(count)}{name}" + (f"{zero}{_places(rest)}" if rest else "")


FRENCH, FRENCH_TENS = (
    names.split()
    for names in (
        "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize",
        "- dix vingt trente quarante cinquante soixante soixante quatre-vingt quatre-vingt",
    )
)


def _french(n: int) -> str:
    """Seventy is sixty and ten, eighty is four twenties, ninety four twenties and ten."""
    if n < 17:
        return FRENCH[n]
    if n < 100:
        # Sixty and eighty count on to nineteen; the other tens, to nine.
        rest = n % 20 if n >= 60 else n % 10
        tens = FRENCH_TENS[n // 10]
        if n == 80:
            return f"{tens}s"
        joint = " et " if rest in (1, 11) and n < 80 else "-"
        return f"{tens}{joint}{_french(rest)}" if rest else tens
    if n < 1000:
        count, rest = divmod(n, 100)
        hundreds = "cent" if count == 1 else f"{FRENCH[count]} cent"
        return f"{hundreds} {_french(rest)}" if rest else hundreds + ("s" if count > 1 else "")
    if n < MILLION:
        count, rest = divmod(n, 1000)
        counted = _french(count)
        # Nothing before mille has a plural: "deux cent mille", "quatre-vingt mille", and "mille" alone.
        if counted.endswith(("vingts", "cents")):
            counted = counted.removesuffix("s")
        thousands = "mille" if count == 1 else f"{counted} mille"
        return f"{thousands} {_french(rest)}" if rest else thousands
    count, rest = divmod(n, MILLION)
    millions = "un million" if count == 1 else f"{_french(count)} millions"
    return f"{millions} {_french(rest)}" if rest else millions


LANGUAGES = {"en": _english, "de": _german, "zh": _chinese, "fr": _french}
NAMES = {"en": "English", "de": "German", "zh": "Chinese", "fr": "French"}

# Of one digit, of two, ... of nine. An example's number is the number itself: all languages hold out the same ones.
LENGTHS = (range(10), *(range(10**digits, 10 ** (digits + 1)) for digits in range(1, 9)))


def _said_again(n: int, source: str, target: str) -> Pair:
    return Pair(words(n, source), words(n, target))


NUMBERS = tuple(
    Task(
        name=f"numbers-{source}-{target}",
        says=f"numbers in words, 0 to 999,999,999, from {NAMES[source]} to {NAMES[target]}",
        kinds=LENGTHS,
        pair=functools.partial(_said_again, source=source, target=target),
    )
    for source, target in itertools.permutations(LANGUAGES, 2)
)
