"""A task made by rule: numbered examples, drawn at will, of which about one in ten is held out.

    numbers = task("numbers-en-de")
    numbers.training(1000, seed=0)     # pairs to learn from, as many as wanted
    numbers.held_out(200, seed=0)      # distinct pairs, none of which is ever among those

An example is a whole number, and a rule makes it a pair of texts. Examples come in kinds, such as the numbers of
three digits; a kind is a range, so every example of the longest kind can be drawn without listing any.
A hash of its number alone decides whether an example is held out: the same on every machine, for every seed.
"""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

# A kind of fewer examples than this belongs to training whole.
FEW = 1000


class Pair(NamedTuple):
    source: str
    target: str


@dataclass(frozen=True)
class Task:
    """Examples that a rule makes.

    name    how to ask for it
    says    what it asks of a model, in one line
    kinds   the numbers of its examples; kinds share no number, and the smaller ones come first
    pair    the rule: an example's number -> its texts, never the same source for two numbers
    """

    name: str
    says: str
    kinds: tuple[range, ...]
    pair: Callable[[int], Pair]

    def draw(self, rng: random.Random) -> int:
        """The number of one example: each kind is as likely as another, and in a kind each example."""
        return rng.choice(rng.choice(self.kinds))

    def training(self, count: int, seed: int) -> list[Pair]:
        """`count` pairs drawn at random, none of them held out; one may come twice."""
        _check(count)
        rng = random.Random(f"training {seed}")
        pairs = []
        for _ in range(count):
            # The kind stays while its examples are refused, so that every kind remains as likely.
            kind = rng.choice(self.kinds)
            number = rng.choice(kind)
            while _holds_out(kind, number):
                number = rng.choice(kind)
            pairs.append(self.pair(number))
        return pairs

    def held_out(self, count: int, seed: int) -> list[Pair]:
        """`count` distinct held-out pairs at random, of each kind as many, or one more.

        Kinds for training alone give none. Where there are not as many, a ValueError says how many there are.
        """
        _check(count)
        rng = random.Random(f"held out {seed}")
        kinds = [kind for kind in self.kinds if len(kind) >= FEW]
        most = count if kinds else 0
        numbers: list[int] = []
        for place, kind in enumerate(kinds):
            share = (most + place) // len(kinds)
            # A small kind is searched whole; of a large one, this many are sure to hold enough.
            candidates = rng.sample(kind, min(len(kind), FEW + 20 * share))
            found = [number for number in candidates if _holds_out(kind, number)][:share]
            if len(found) < share:
                most = (len(found) + 1) * len(kinds) - 1 - place
            numbers += found
        if most < count:
            raise ValueError(
                f"{count} held-out examples of {self.name} are asked for, as many of each kind: there are {most}"
            )
        rng.shuffle(numbers)
        return [self.pair(number) for number in numbers]


def _check(count: int) -> None:
    if count < 0:
        raise ValueError(f"{count} examples are asked for: give 0 or more")


def _holds_out(kind: range, number: int) -> bool:
    """About one in ten, by the last digit of the hash; of a small kind none."""
    return len(kind) >= FEW and int(hashlib.sha256(b"%d" % number).hexdigest(), 16) % 10 == 0
