"""Many texts as ids, in one flat array: what a corpus is after its tokenizer has read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class Ragged:
    """`ids` of all texts after one another; text i is ids[bounds[i] : bounds[i + 1]]."""

    def __init__(self, texts: Iterable[Sequence[int] | NDArray[np.int32]]) -> None:
        lengths, ids = [0], []
        for text in texts:
            ids.append(np.asarray(text, dtype=np.int32))
            lengths.append(len(text))
        self.ids: NDArray[np.int32] = np.concatenate(ids) if ids else np.zeros(0, dtype=np.int32)
        self.bounds: Integers = np.cumsum(lengths, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, i: int) -> NDArray[np.int32]:
        return self.ids[self.bounds[i] : self.bounds[i + 1]]

    def only(self, these: NDArray[np.bool_]) -> Ragged:
        """The texts where `these` is True."""
        return Ragged(self[i] for i in np.flatnonzero(these).tolist())

    @property
    def lengths(self) -> Integers:
        return np.diff(self.bounds)
