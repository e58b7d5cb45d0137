"""Letters to copy, reverse and sort, and values to recall: what attention is good at, and nothing else.

copy       d a c c  ->  d a c c                each output looks at its own place
reverse    d a c c  ->  c c a d                at the mirrored place
sort       d a c c  ->  a c c d                at every letter
recall     a 3 k 7 c 1 ? k  ->  7              at what stands after the letter that is asked for
"""

import math
import string
from collections.abc import Callable

from heedful.tasks.task import Pair, Task

LETTERS = string.ascii_lowercase


def _letters(number: int) -> list[str]:
    """Every sequence of letters has one number: a is 1, ..., z 26, a a 27, a b 28, ..."""
    sequence = []
    while number:
        number, letter = divmod(number - 1, len(LETTERS))
        sequence.append(LETTERS[letter])
    return sequence[::-1]


def _of_length(length: int) -> range:
    """The numbers of the sequences of `length` letters."""
    first = sum(len(LETTERS) ** shorter for shorter in range(length))
    return range(first, first + len(LETTERS) ** length)


def _copied(number: int) -> Pair:
    sequence = _letters(number)
    return Pair(" ".join(sequence), " ".join(sequence))


def _reversed(number: int) -> Pair:
    sequence = _letters(number)
    return Pair(" ".join(sequence), " ".join(reversed(sequence)))


def _sorted(number: int) -> Pair:
    sequence = _letters(number)
    return Pair(" ".join(sequence), " ".join(sorted(sequence)))


def _recalled(number: int) -> Pair:
    """The number's last digit says how many pairs of letter and value; what is left, which, and which is asked for."""
    rest, count = divmod(number, 10)
    rest, asked = divmod(rest, count)
    free, keys, values = list(LETTERS), [], []
    for _ in range(count):
        rest, letter = divmod(rest, len(free))
        rest, value = divmod(rest, 10)
        keys.append(free.pop(letter))
        values.append(str(value))
    shown = " ".join(f"{key} {value}" for key, value in zip(keys, values, strict=True))
    return Pair(f"{shown} ? {keys[asked]}", values[asked])


def _of_pairs(count: int) -> range:
    """The numbers of the examples of `count` pairs: which is asked for, `count` distinct letters, `count` values."""
    examples = count * math.perm(len(LETTERS), count) * 10**count
    return range(count, 10 * examples, 10)


def _letter_task(name: str, says: str, pair: Callable[[int], Pair]) -> Task:
    return Task(name, f"{says} 4 to 12 letters", tuple(_of_length(length) for length in range(4, 13)), pair)


SEQUENCES = (
    _letter_task("copy", "repeat", _copied),
    _letter_task("reverse", "say backwards", _reversed),
    _letter_task("sort", "put in alphabetical order", _sorted),
    Task(
        name="recall",
        says="say the value that stood after a letter, among 2 to 6 of each",
        kinds=tuple(_of_pairs(count) for count in range(2, 7)),
        pair=_recalled,
    ),
)
