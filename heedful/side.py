"""One end of a look: how many slots there are, where each one is, and what is known about it.

A *slot* is a row of this call's tensors. A *position* is where that row's token stands in its text.
The two differ as soon as rows are padded on the left, packed together, or read from a cache.
Tables of facts (`valid`, `document`, ...) are read by slot; bands and position codes compare positions.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class Side:
    """`length` slots, their positions `at` and their facts by name.

    at      (1 or batch, length) integers, or None where positions are the slots themselves
    facts   name -> table, (length,), (batch, length) or (batch, heads, length)
    start   the position of slot 0 where positions are known to count up from it, slot by slot; else None
    """

    def __init__(
        self,
        length: int,
        at: Tensor | None = None,
        facts: Mapping[str, Tensor] | None = None,
        *,
        start: int | None = None,
        batch: int = 1,
        device: torch.device | str | None = None,
    ) -> None:
        self.length, self.at, self.facts, self.batch = length, at, dict(facts or {}), batch
        self.start = 0 if at is None else start
        self.device = at.device if at is not None else torch.device(device or "cpu")

    def position(self, batch: Tensor, slot: Tensor) -> Tensor:
        """Where slots are: the one place in which a slot becomes a position."""
        if self.at is None:
            return slot
        return self.at[0][slot] if self.at.shape[0] == 1 else self.at[batch, slot]

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {tuple(table.shape)}" for name, table in self.facts.items())
        return f"Side({self.length} slots{', ' + facts if facts else ''})"


def side(
    ids: Tensor,
    *,
    valid: Tensor | None = None,
    document: Tensor | None = None,
    at: Tensor | None = None,
    tables: Mapping[str, Tensor] | None = None,
    start: int | Tensor = 0,
) -> Side:
    """The side of a batch: `ids` is (batch, length) or (batch, length, width).

    valid     bool, True where there is a real token
    document  integers, equal for slots of one document
    at        positions, where they are not to be derived
    start     the position of the next token: a number, or one for each row (batch,)

    Derived positions count from the row's first valid slot, and again from each document's first.
    A hole in `valid` keeps its place. Padding has some position, which nobody looks at.
    """
    batch, length = ids.shape[0], ids.shape[1]
    facts: dict[str, Tensor] = {}
    for name in ("valid", "document", "filled"):
        if name in (tables or {}):
            raise ValueError(f'"{name}" has a meaning of its own: give it as {name}=..., or call your table otherwise')
    for name, table in (*(tables or {}).items(), ("valid", valid), ("document", document)):
        if table is not None:
            facts[name] = _table(name, table, batch, length, ids.device)
    for name in ("valid", "document"):
        if name in facts and facts[name].dim() > 2:
            raise ValueError(f"{name} has shape {tuple(facts[name].shape)}; it must be ({batch}, {length})")
    if valid is not None and facts["valid"].dtype != torch.bool:
        raise ValueError(f"valid is {valid.dtype}; it must be bool, True for real tokens: try valid=(...).bool()")
    plain = at is None and "valid" not in facts and "document" not in facts and isinstance(start, int)
    if at is not None:
        at = positions(at, length, "at", batch)
    else:
        if "document" in facts:
            _check_documents(facts["document"], facts.get("valid"))
        slots = torch.arange(length, device=ids.device)[None]
        at = slots - _origin(slots, facts) if facts else slots
        at = at.clamp(min=0) + (start if isinstance(start, int) else start[:, None])
    known = start if plain and isinstance(start, int) else None
    return Side(length, at, facts, start=known, batch=batch, device=ids.device)


def _origin(slots: Tensor, facts: Mapping[str, Tensor]) -> Tensor:
    """The slot from which each slot's position is counted."""
    origin = torch.zeros_like(slots)
    if "valid" in facts:
        valid = facts["valid"]
        first = torch.where(valid, slots, slots.shape[-1]).amin(-1, keepdim=True) if slots.shape[-1] else origin
        origin = torch.where(first < slots.shape[-1], first, 0)
    if "document" in facts:
        document = facts["document"]
        begins = F.pad(document[:, 1:] != document[:, :-1], (1, 0), value=True)[:, : slots.shape[-1]]
        origin = torch.maximum(origin, torch.where(begins, slots, 0).cummax(-1).values)
    return origin


def _check_documents(document: Tensor, valid: Tensor | None) -> None:
    """One label, one run of slots: else words would look back past a text that is not theirs."""
    if not can_look(document):
        return
    for row, labels in enumerate(document):
        real = labels if valid is None else labels[valid[row if len(valid) > 1 else 0]]
        if len(real.unique_consecutive()) != len(real.unique()):
            raise ValueError(
                "a document comes back after another one has begun: give each its own label, in one run of slots"
            )


def can_look(t: Tensor) -> bool:
    """Whether values may be looked at for free: in eager mode on the CPU, and not inside of a vmap."""
    if torch.compiler.is_compiling() or t.device.type != "cpu" or t.numel() == 0:
        return False
    return not torch._C._functorch.is_batchedtensor(t)


def following(own: Side, start: int | Tensor) -> int | Tensor:
    """The position after each row's furthest real token."""
    if own.start is not None:
        return own.start + own.length
    assert own.at is not None
    if own.length == 0:
        return start
    after = own.at + 1
    if "valid" in own.facts:
        after = torch.where(own.facts["valid"], after, 0)
    last = after.amax(-1).expand(own.batch)
    return last.clamp(min=start) if isinstance(start, int) else torch.maximum(last, start)


def positions(at: Tensor | int, length: int, name: str, batch: int | None = None) -> Tensor:
    """Given positions as (1 or batch, length): a length n stands for 0..n-1."""
    if isinstance(at, int):
        at = torch.arange(at)
    if at.dtype not in INTEGERS:
        raise ValueError(
            f"{name} is {at.dtype}; positions are integers. "
            "Normalised or several coordinates belong to the embedding that reads them"
        )
    if not 1 <= at.dim() <= 2 or at.shape[-1] != length:
        raise ValueError(
            f"{name} has shape {tuple(at.shape)}, this side has {length} slots: give ({length},) or (batch, {length})"
        )
    at = at.long() if at.dim() == 2 else at.long()[None]
    if batch is not None and at.shape[0] != 1 and at.shape[0] != batch:
        raise ValueError(f"{name} has {at.shape[0]} rows, this call has {batch}")
    return at


def _table(name: str, table: Tensor, batch: int, length: int, device: torch.device) -> Tensor:
    if not isinstance(table, Tensor):
        raise TypeError(f"{name} is a {type(table).__name__}; a table of facts is a tensor: try torch.tensor(...)")
    if table.device != device:
        raise ValueError(f"{name} is on {table.device}, the ids are on {device}: move it there")
    if table.shape[-1:] != (length,):
        raise ValueError(
            f"{name} has shape {tuple(table.shape)}, this call has {length} slots: give ({batch}, {length})"
        )
    if table.dim() > 1 and table.shape[0] != 1 and table.shape[0] != batch:
        raise ValueError(f"{name} has {table.shape[0]} rows, this call has {batch}")
    return table[None] if table.dim() == 1 else table
