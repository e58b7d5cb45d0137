"""Where a recipe drops out: five places, each settable alone.

attention    attention weights
inner        inside the feed-forward network, after its activation
branch       each branch, before it is added to the residual           the 2017 paper's
sum          after residual and norm                                   the study notes'
embedding    embeddings + positions                                    the 2017 paper's

A recipe drops out at some of them; `dropout=` sets those, and `dropout=0` switches all off.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Dropouts(NamedTuple):
    attention: float = 0.0
    inner: float = 0.0
    branch: float = 0.0
    sum: float = 0.0
    embedding: float = 0.0

    @classmethod
    def at(cls, places: Sequence[str], dropout: float, given: Mapping[str, float] | None = None) -> "Dropouts":
        """`dropout` at a recipe's own `places`, and what is `given` for any place by name."""
        chances = {**dict.fromkeys(places, dropout), **(given or {})}
        for place, chance in chances.items():
            if place not in cls._fields:
                raise ValueError(f'no dropout place "{place}"; there are {", ".join(cls._fields)}')
            if not 0 <= chance < 1:
                raise ValueError(f"dropout {place}={chance}: a chance is from 0 to below 1")
        return cls(**chances)
