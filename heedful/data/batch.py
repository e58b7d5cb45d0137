"""Examples to batches: which ones meet, in which order, and the tensors that a model is called with.

The order is a pure function of (seed, epoch): `corpus.order(seed, epoch)` lists an epoch's batches as rows of
examples, so going on from (epoch, position) is arithmetic. Who collates them, and how many do, changes nothing.

Padded    texts, with or without sources, in buckets of like length
Packed    the same, several to a row: `document` keeps them apart
Windows   pieces of one long text, each as long as the next
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.ragged import Integers, Ragged

# What a label is where there is nothing to predict.
NOTHING = -100

# How many rows are being packed at a time.
OPEN = 16

Rows = list[list[int]]


class Batch(NamedTuple):
    """inputs    what the model is called with, by name
    labels    (batch, n) what each slot has to say, NOTHING where it is padding
    """

    inputs: dict[str, Tensor]
    labels: Tensor

    @property
    def tokens(self) -> int:
        """How many real tokens are to be said."""
        return int((self.labels != NOTHING).sum())

    def part(self, n: int, of: int) -> Batch:
        """The n-th of `of` equal parts: every `of`-th row. Rows of padding make the number of rows even."""

        def share(t: Tensor, fill: float) -> Tensor:
            lacking = -len(t) % of
            return torch.cat([t, t.new_full((lacking, *t.shape[1:]), fill)])[n::of] if lacking else t[n::of]

        return Batch({name: share(t, 0) for name, t in self.inputs.items()}, share(self.labels, NOTHING))

    def to(self, device: torch.device) -> Batch:
        inputs = {name: t.to(device, non_blocking=True) for name, t in self.inputs.items()}
        return Batch(inputs, self.labels.to(device, non_blocking=True))


class Corpus(Protocol):
    """Examples that know how to meet in batches."""

    def order(self, seed: int, epoch: int) -> list[Rows]:
        """The batches of an epoch; each is a list of rows, each row the examples in it."""
        ...

    def collate(self, rows: Rows) -> Batch:
        """The tensors of one batch."""
        ...


@dataclass(frozen=True)
class Shape:
    """How large a batch is.

    tokens   slots on its longer side, padding counted
    grid     lengths are rounded up to multiples of this: coarser is fewer shapes, and more padding
    """

    tokens: int
    grid: int = 1

    def rounded(self, lengths: Integers) -> Integers:
        """Up to the grid, which doubles beyond 8 steps and again beyond 16, so that even long texts have few shapes."""
        doublings = np.ceil(np.log2(np.maximum(lengths, 1) / (8 * self.grid))).clip(min=0)
        step = self.grid * 2 ** doublings.astype(np.int64)
        return lengths if self.grid == 1 else -(-lengths // step) * step

    def rows(self, length: int) -> int:
        return max(1, self.tokens // max(length, 1))

    def height(self, rows: int, length: int) -> int:
        """Rows of a batch with those of padding: on a grid, batches of one length have one height."""
        return rows if self.grid == 1 else max(rows, self.rows(length))


@dataclass(frozen=True)
class Special:
    """The ids that pad a row, begin what a decoder reads, and end a text."""

    pad: int
    start: int
    end: int


class Texts:
    """Sources with their targets, or targets alone for a decoder that has no source.

    A source is followed by its end. A decoder reads `start` and the text, and says the text and its end.
    """

    def __init__(self, source: Ragged | None, target: Ragged, special: Special, shape: Shape) -> None:
        self.source, self.target, self.special, self.shape = source, target, special, shape
        sides = [target] if source is None else [source, target]
        if len(sides[0]) != len(target):
            raise ValueError(f"{len(sides[0])} sources and {len(target)} targets: give one target for each source")
        # One more than the text on either side: an end, or a start.
        self.lengths = np.stack([side.lengths + 1 for side in sides], 1)

    def __len__(self) -> int:
        return len(self.target)

    def _sides(self, rows: Rows, m: int, n: int) -> tuple[Tensor | None, Tensor, Tensor, Tensor | None, Tensor]:
        """Tables of `m` and `n` slots: source, target, labels, and which example stands in each slot (-1: none)."""
        height = self.shape.height(len(rows), max(m, n))
        reads = self.source is not None
        source = np.full((height, m), self.special.pad, dtype=np.int64)
        target = np.full((height, n), self.special.pad, dtype=np.int64)
        labels = np.full((height, n), NOTHING, dtype=np.int64)
        of_source, of_target = np.full((height, m), -1, dtype=np.int64), np.full((height, n), -1, dtype=np.int64)
        for row, examples in enumerate(rows):
            i = j = 0
            for nth, example in enumerate(examples):
                if self.source is not None:
                    words = self.source[example]
                    source[row, i : i + len(words)], source[row, i + len(words)] = words, self.special.end
                    of_source[row, i : i + len(words) + 1] = nth
                    i += len(words) + 1
                words = self.target[example]
                target[row, j], target[row, j + 1 : j + len(words) + 1] = self.special.start, words
                labels[row, j : j + len(words)], labels[row, j + len(words)] = words, self.special.end
                of_target[row, j : j + len(words) + 1] = nth
                j += len(words) + 1
        tables = [torch.from_numpy(table) for table in (source, target, labels, of_source, of_target)]
        return tables[0] if reads else None, tables[1], tables[2], tables[3] if reads else None, tables[4]


class Padded(Texts):
    """One example a row, in buckets of like length, padded on the right."""

    def _sizes(self, examples: list[int] | Integers) -> Integers:
        """Slots for each, on either side: never more than the longest text has, for a model may end there."""
        return np.minimum(self.shape.rounded(self.lengths[examples]), self.lengths.max(0, initial=0))

    def order(self, seed: int, epoch: int) -> list[Rows]:
        chance = np.random.default_rng([seed, epoch])
        mixed = chance.permutation(len(self))
        sizes = self._sizes(mixed)
        longest = sizes.max(1)
        alike = np.lexsort((*sizes.T, longest))
        batches: list[Rows] = []
        for example, length in zip(mixed[alike].tolist(), longest[alike].tolist(), strict=True):
            if not batches or len(batches[-1]) >= self.shape.rows(length):
                batches.append([])
            batches[-1].append([example])
        return [batches[n] for n in chance.permutation(len(batches))]

    def collate(self, rows: Rows) -> Batch:
        longest = self._sizes([row[0] for row in rows]).max(0).tolist()
        source, target, labels, of_source, _ = self._sides(rows, longest[0], longest[-1])
        # A decoder looks back alone, so nobody real sees what pads a target on its right.
        if source is None or of_source is None:
            return Batch({"ids": target}, labels)
        return Batch({"source": source, "target": target, "source_valid": of_source >= 0}, labels)


class Packed(Texts):
    """Several examples a row, each a `document` of its own: nearly no padding, and one shape for all batches."""

    def __init__(self, source: Ragged | None, target: Ragged, special: Special, shape: Shape, length: int) -> None:
        super().__init__(source, target, special, shape)
        self.length = length
        if self.lengths.max(initial=0) > length:
            raise ValueError(
                f"a text has {self.lengths.max()} tokens, a row {length} slots: give longer rows, or drop the text"
            )

    def order(self, seed: int, epoch: int) -> list[Rows]:
        chance = np.random.default_rng([seed, epoch])
        rows: Rows = []
        # A few rows stay open, so that a short text still finds room after a long one did not fit.
        opened: Rows = [[] for _ in range(OPEN)]
        room = np.full((OPEN, self.lengths.shape[1]), self.length)
        for example in chance.permutation(len(self)).tolist():
            fits = (self.lengths[example] <= room).all(1)
            at = int(fits.argmax() if fits.any() else room.min(1).argmin())
            if not fits[at]:
                rows.append(opened[at])
                opened[at], room[at] = [], self.length
            opened[at].append(example)
            room[at] -= self.lengths[example]
        rows += [row for row in opened if row]
        together = self.shape.rows(self.length)
        batches = [rows[n : n + together] for n in range(0, len(rows), together)]
        return [batches[n] for n in chance.permutation(len(batches))]

    def collate(self, rows: Rows) -> Batch:
        source, target, labels, of_source, of_target = self._sides(rows, self.length, self.length)
        if source is None or of_source is None:
            return Batch({"ids": target, "document": of_target}, labels)
        tables = {"source": source, "target": target, "source_document": of_source, "target_document": of_target}
        return Batch(tables, labels)


class Windows:
    """One long text in pieces of equal length; each epoch cuts it at other places.

    aligned   cut at the beginning, and keep the short piece at the end: to measure, every token once
    """

    def __init__(self, ids: NDArray[np.int32], length: int, shape: Shape, *, aligned: bool = False) -> None:
        if len(ids) < 2:
            raise ValueError(f"the text has {len(ids)} tokens: there is nothing to predict")
        self.ids, self.length, self.shape, self.aligned = ids, min(length, len(ids) - 1), shape, aligned

    def order(self, seed: int, epoch: int) -> list[Rows]:
        chance = np.random.default_rng([seed, epoch])
        last = len(self.ids) - 1
        if self.aligned:
            begins = np.arange(0, last, self.length)
        else:
            # The first cut leaves out less than a piece, and never the only one.
            begins = np.arange(
                chance.integers(min(self.length, last - self.length + 1)), last - self.length + 1, self.length
            )
        begins = chance.permutation(begins)
        together = self.shape.rows(self.length)
        return [[[at] for at in begins[n : n + together].tolist()] for n in range(0, len(begins), together)]

    def collate(self, rows: Rows) -> Batch:
        height = self.shape.height(len(rows), self.length)
        ids = np.zeros((height, self.length), dtype=np.int64)
        labels = np.full((height, self.length), NOTHING, dtype=np.int64)
        for row, (at,) in enumerate(rows):
            piece = self.ids[at : at + self.length + 1]
            ids[row, : len(piece) - 1], labels[row, : len(piece) - 1] = piece[:-1], piece[1:]
        return Batch({"ids": torch.from_numpy(ids)}, torch.from_numpy(labels))
