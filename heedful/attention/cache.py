"""What a decoder has already read, so that the next token does not read it again.

    cache = Growing()
    model(prompt, cache=cache)             # reads and keeps the prompt
    model(next_token, cache=cache)         # reads one token, and looks back at all

Growing   concatenates; any length; for exploring, and where memory is not the limit
Fixed     writes into room for `capacity` slots; shapes and addresses never change, so one compiled
          or captured step serves every token

A forward is three steps: `extend` takes the call's positions and facts and returns the key side,
`put` takes one layer's keys and values, and `commit` keeps them all. A call that fails before its
end commits nothing, and the next one goes on from where the last good one ended.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from heedful.side import Side, following
from heedful.trace import current

KeysValues = tuple[Tensor, Tensor]
Pick = Callable[[Tensor, Tensor], Tensor]


class Room:
    """The storage of one place in a stack: keys and values by layer, its own words' and its memory's."""

    def __init__(self) -> None:
        self.own: dict[nn.Module, KeysValues] = {}
        self.memory: dict[nn.Module, KeysValues] = {}
        # Which forward each layer last put in, known by the key side of that forward.
        self.latest: dict[nn.Module, Side] = {}


class Cache:
    """Base of the caches.

    next          the position of the next token, one number or one for each row
    pending       the key side of a forward that has begun and is not through
    memory_side   the side of the memory whose keys and values are held here too
    """

    def __init__(self) -> None:
        self.rooms: dict[tuple[int, ...], Room] = {}
        self.next: int | Tensor = 0
        self.pending: Side | None = None
        self.memory_side: Side | None = None

    def room(self, place: tuple[int, ...]) -> Room:
        """The room of one place: the numbers of the blocks on the way to it."""
        if place not in self.rooms:
            self.rooms[place] = Room()
        return self.rooms[place]

    def extend(self, own: Side) -> Side:
        """Take in one call's positions and facts; return the side that its keys are on."""
        raise NotImplementedError

    def put(self, room: Room, layer: nn.Module, k: Tensor, v: Tensor) -> KeysValues:
        """Take in one layer's keys and values; return all that it can look at."""
        raise NotImplementedError

    def commit(self, memory_side: Side | None) -> None:
        """Keep what this forward has put."""
        raise NotImplementedError

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order, repeated where asked: what beams need."""
        raise NotImplementedError

    def crop(self, length: int) -> None:
        """Forget all but the first `length` slots."""
        raise NotImplementedError

    def _select_rooms(self, rows: Tensor, pick: Pick) -> None:
        if self.memory_side is not None:
            self.memory_side = _rows(self.memory_side, rows, pick)
        for room in self.rooms.values():
            for held in (room.own, room.memory):
                for layer, (k, v) in held.items():
                    held[layer] = pick(k, rows), pick(v, rows)

    def _check_once(self, room: Room, layer: nn.Module) -> None:
        """A layer has one set of keys in a room. While compiling nobody looks: an eager call came first."""
        if torch.compiler.is_compiling():
            return
        if self.pending is None:
            raise ValueError("keys came outside of a forward: checkpointed blocks run again, and cannot be cached")
        if room.latest.get(layer) is self.pending:
            raise ValueError("one layer was called twice in one block: with a cache each place needs its own layer")
        room.latest[layer] = self.pending

    def __deepcopy__(self, memo: dict[int, Any]) -> Cache:
        """A branch of what was read: tensors are copied, and the layers that they belong to are not."""
        # A memo of its own: in the caller's, a model that is copied as well would share its layers.
        mine: dict[int, Any] = {}
        for room in self.rooms.values():
            room.latest.clear()
            for held in (room.own, room.memory):
                for layer, (k, v) in held.items():
                    mine |= {id(layer): layer, id(k): k.clone(), id(v): v.clone()}
        branch = type(self).__new__(type(self))
        branch.__dict__.update(copy.deepcopy(self.__dict__, mine))
        return branch


def _picked(t: Tensor, rows: Tensor) -> Tensor:
    return t[rows]


def _placed(t: Tensor, rows: Tensor) -> Tensor:
    """t[rows], at the old address where the size allows: a captured step goes on reading there."""
    picked = t[rows]
    return t.copy_(picked) if picked.shape == t.shape else picked


def _rows(side: Side, rows: Tensor, pick: Pick) -> Side:
    def of(t: Tensor) -> Tensor:
        return t if t.shape[0] == 1 else pick(t, rows)

    at = None if side.at is None else of(side.at)
    facts = {name: of(table) if table.dim() > 1 else table for name, table in side.facts.items()}
    return Side(side.length, at, facts, start=side.start, batch=len(rows), device=side.device)


def _indices(rows: Tensor) -> Tensor:
    return rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows


def _fact_missing(name: str) -> ValueError:
    return ValueError(f'"{name}" was given in some calls with this cache and not in others: give it in every call')


def _same_batch(own: Side, held: int) -> None:
    if own.batch != held:
        raise ValueError(
            f"this call has {own.batch} rows, the cache holds {held}: "
            "use one cache for one batch, or cache.select(rows)"
        )


def _same_dtype(k: Tensor, held: Tensor) -> None:
    if k.dtype != held.dtype:
        raise ValueError(f"keys are {k.dtype}, the cache holds {held.dtype}: one cache, one dtype (autocast included)")


def _another_model() -> ValueError:
    return ValueError(
        "this cache holds what another model has read (or another copy of it): use one cache for one model"
    )


def _fact(side: Side, name: str) -> Tensor:
    """A fact of every row; `valid` may be left out, and is then True."""
    if name in side.facts:
        table = side.facts[name]
        return table.expand(side.batch, *table.shape[1:])
    if name != "valid":
        raise _fact_missing(name)
    return torch.ones(side.batch, side.length, dtype=torch.bool, device=side.device)


def _same_kind(name: str, table: Tensor, held: Tensor) -> None:
    if table.dtype != held.dtype or table.shape[1:-1] != held.shape[1:-1]:
        raise ValueError(
            f'"{name}" is {table.dtype} {tuple(table.shape)}, and was {held.dtype} {tuple(held.shape)} '
            "in an earlier call with this cache: give it alike in every call"
        )


class Growing(Cache):
    """Keys and values of all that was read, one concatenation longer after each call."""

    def __init__(self) -> None:
        super().__init__()
        self.side: Side | None = None

    @property
    def length(self) -> int:
        return 0 if self.side is None else self.side.length

    def extend(self, own: Side) -> Side:
        assert own.at is not None
        self.pending = None
        at, facts, counts_up = own.at, dict(own.facts), own.start == 0
        if self.side is not None:
            old = self.side
            _same_batch(own, old.batch)
            assert old.at is not None
            for name in {**old.facts, **own.facts}:
                before, now = _fact(old, name), _fact(own, name)
                _same_kind(name, now, before)
                facts[name] = torch.cat([before, now], -1)
            rows = max(old.at.shape[0], own.at.shape[0])
            at = torch.cat([old.at.expand(rows, -1), own.at.expand(rows, -1)], -1)
            counts_up = old.start == 0 and own.start == old.length
        self._after = following(own, self.next)
        start = 0 if counts_up else None
        self.pending = Side(at.shape[-1], at, facts, start=start, batch=own.batch, device=own.device)
        return self.pending

    def put(self, room: Room, layer: nn.Module, k: Tensor, v: Tensor) -> KeysValues:
        self._check_once(room, layer)
        if self.length > 0:
            if layer not in room.own:
                raise _another_model()
            # Only what was committed: a call that failed may have put more.
            old_k, old_v = (t[:, :, : self.length] for t in room.own[layer])
            _same_dtype(k, old_k)
            k, v = torch.cat([old_k, k], 2), torch.cat([old_v, v], 2)
        room.own[layer] = k, v
        return k, v

    def commit(self, memory_side: Side | None) -> None:
        self.side, self.next, self.pending, self.memory_side = self.pending, self._after, None, memory_side

    def select(self, rows: Tensor) -> None:
        self.pending = None
        if self.side is None:
            return
        rows = _indices(rows)
        self._select_rooms(rows, _picked)
        self.side = _rows(self.side, rows, _picked)
        if isinstance(self.next, Tensor):
            self.next = self.next[rows]

    def crop(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"crop({length}): the cache holds {self.length} slots")
        self.pending = None
        if self.side is None:
            return
        old = self.side
        assert old.at is not None
        facts = {name: table[..., :length] for name, table in old.facts.items()}
        self.side = Side(length, old.at[:, :length], facts, start=old.start, batch=old.batch, device=old.device)
        self.next = following(self.side, 0)


class Fixed(Cache):
    """Room for `capacity` slots, filled from the front.

    How far it is filled is a number on the device, so a step reads and writes it without asking the host.
    The host keeps a count of its own, to refuse what does not fit before anything is written:
    plain calls count by themselves, a compiled or captured step needs `cache.reserve(n)` before it.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        if capacity < 1:
            raise ValueError(f"capacity={capacity}: a cache needs room for at least one slot")
        self.capacity, self.reserved = capacity, 0
        self.at: Tensor | None = None
        self.facts: dict[str, Tensor] = {}
        # Whether a forward has been through: from then on every layer has its storage.
        self.begun = False

    def reserve(self, n: int) -> None:
        """Count `n` slots as taken, or raise before anything is written.

        On a GPU a plain call counts once more what was reserved for it: an error too early, never one too late.
        """
        self._check_fits(n)
        self.reserved = self._taken() + n

    def _taken(self) -> int:
        """How many slots are taken, as far as the host may know: on the CPU it may look."""
        return int(self.length) if self.begun and self.length.device.type == "cpu" else self.reserved

    def _check_fits(self, n: int) -> None:
        taken = self._taken()
        if taken + n > self.capacity:
            raise ValueError(
                f"the cache has room for {self.capacity} slots, {taken} are taken, {n} more do not fit: "
                f"use Fixed({taken + n}) or more"
            )

    def extend(self, own: Side) -> Side:
        assert own.at is not None
        self.pending = None
        self._counting = not (torch.compiler.is_compiling() or _is_capturing(own.at))
        if self._counting:
            self._check_fits(own.length)
        if self.at is None or not self.begun:
            self._make(own)
        assert self.at is not None
        _same_batch(own, self.at.shape[0])
        for name, table in own.facts.items():
            if name not in self.facts:
                raise _fact_missing(name)
            _same_kind(name, table, self.facts[name])
        # Beyond what is filled, so nobody sees it before `commit`.
        self.slots = self.length + torch.arange(own.length, device=own.device)
        self.at.index_copy_(1, self.slots, own.at.expand(own.batch, -1))
        for name, held in self.facts.items():
            held.index_copy_(-1, self.slots, _fact(own, name))
        self._after, self._more = following(own, self.next), own.length
        filled = torch.arange(self.capacity, device=own.device)[None] < self.length + own.length
        facts = {**self.facts, "filled": filled}
        self.pending = Side(self.capacity, self.at, facts, batch=own.batch, device=own.device)
        return self.pending

    def _make(self, own: Side) -> None:
        batch, device = own.batch, own.device
        self.length = torch.zeros((), dtype=torch.long, device=device)
        self.at = torch.zeros(batch, self.capacity, dtype=torch.long, device=device)
        self._next = torch.zeros(batch, dtype=torch.long, device=device)
        # `valid` may come in any call, so it has room from the start.
        self.facts = {"valid": torch.zeros(batch, self.capacity, dtype=torch.bool, device=device)}
        for name, table in own.facts.items():
            self.facts[name] = table.new_zeros(batch, *table.shape[1:-1], self.capacity)
        self.rooms.clear()

    def put(self, room: Room, layer: nn.Module, k: Tensor, v: Tensor) -> KeysValues:
        self._check_once(room, layer)
        if k.requires_grad:
            raise ValueError(
                "a fixed cache overwrites itself, so nothing can be trained through it: use torch.no_grad()"
            )
        if layer not in room.own:
            if self.begun:
                raise _another_model()
            room.own[layer] = self._storage(k), self._storage(v)
        keys, values = room.own[layer]
        _same_dtype(k, keys)
        keys.index_copy_(2, self.slots, k)
        values.index_copy_(2, self.slots, v)
        # A listener keeps what it hears, and these are written on.
        return (keys, values) if current() is None else (keys.clone(), values.clone())

    def _storage(self, t: Tensor) -> Tensor:
        return t.new_zeros(*t.shape[:2], self.capacity, t.shape[-1])

    def commit(self, memory_side: Side | None) -> None:
        self._go_on_from(self._after)
        self.length += self._more
        if memory_side is not None and self.memory_side is None:
            # Its own copy: `select` writes into it, and the tables are the caller's.
            self.memory_side = _rows(memory_side, torch.arange(memory_side.batch, device=memory_side.device), _picked)
        self.begun, self.pending = True, None
        if self._counting:
            self.reserved = self._taken() if self.length.device.type == "cpu" else self.reserved + self._more

    def select(self, rows: Tensor) -> None:
        self.pending = None
        if self.at is None or not self.begun:
            return
        rows = _indices(rows)
        self._select_rooms(rows, _placed)
        self.at, self._next = _placed(self.at, rows), _placed(self._next, rows)
        self.next = self._next
        self.facts = {name: _placed(table, rows) for name, table in self.facts.items()}

    def crop(self, length: int) -> None:
        # Rare enough to ask the device.
        held = int(self.length) if self.begun else 0
        if not 0 <= length <= held:
            raise ValueError(f"crop({length}): the cache holds {held} slots")
        self.pending, self.reserved = None, length
        if self.at is None or not self.begun:
            return
        self.length.fill_(length)
        kept = Side(length, self.at[:, :length], {"valid": self.facts["valid"][:, :length]}, batch=len(self.at))
        self._go_on_from(following(kept, 0))

    def _go_on_from(self, after: int | Tensor) -> None:
        """Write where the next tokens stand, at the address that a captured step reads."""
        self._next.copy_(torch.as_tensor(after, device=self._next.device))
        self.next = self._next


def _is_capturing(t: Tensor) -> bool:
    return t.is_cuda and torch.cuda.is_current_stream_capturing()
