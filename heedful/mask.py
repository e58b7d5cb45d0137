"""Who may look at whom: an algebra of frozen values.

    causal & window(256)                      # is band(0, 256)
    key("valid") & same("document")           # tables by name, read from the batch
    ~(causal & window(2))                     # closed under & | ~

A mask answers one question, `pair`: may slot i of the query side look at slot j of the key side?
`dense` is that answer for every pair at once. True means that the look is allowed.

Masks compare, hash and print. They hold names, not tensors, wherever they can, so a layer can own one.
They simplify by flattening, merging bands, complement and absorption, and no further.
"""

from __future__ import annotations

import difflib
import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

import torch
from torch import Tensor

from heedful.side import Side, positions

inf = math.inf
Tables = Mapping[str, Union[Tensor, tuple[Tensor | None, Tensor | None]]]


class Mask:
    """Base of all masks; `a & b`, `a | b` and `~a` are masks again."""

    def pair(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, q: Side, k: Side) -> Tensor:
        """bool: in row b and head h, may slot i of side q look at slot j of side k? Broadcasts over its indices."""
        raise NotImplementedError

    @property
    def atoms(self) -> tuple[Mask, ...]:
        """The parts that no & | ~ joins."""
        return (self,)

    @property
    def lookups(self) -> tuple[tuple[str, Table], ...]:
        """Of an atom: the tables it reads, each with the side it reads it from, "q" or "k"."""
        return ()

    @property
    def rows(self) -> int:
        """Of an atom: how many rows of a batch it tells apart by itself."""
        return 1

    @property
    def looks_ahead(self) -> bool:
        """False only if no query may look at a later position, whatever the tables hold."""
        return True

    def complement(self) -> Mask:
        return Not(self)

    def __and__(self, other: Mask) -> Mask:
        return _both(self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: Mask) -> Mask:
        return _either(self, other) if isinstance(other, Mask) else NotImplemented

    def __invert__(self) -> Mask:
        return self.complement()

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} is a mask, not a truth value: join masks with & | ~, not with and, or, not")

    def dense(self, q_at: Tensor | int, k_at: Tensor | int, tables: Tables | None = None) -> Tensor:
        """The allowed pairs as bool, broadcasting to (batch, heads, queries, keys).

        q_at, k_at   positions: (n,), (batch, n), or a length n, which stands for 0..n-1
        tables       name -> one tensor for both sides, or a pair (query side, key side)
        """
        return self.between(*sides(q_at, k_at, tables))

    def between(self, q: Side, k: Side) -> Tensor:
        """`pair` on broadcast indices: the one definition, for every pair of two sides."""
        device = q.device
        tables = [t for atom in self.atoms for t in _found(atom, q, k)]
        rows = 1
        for count in (q.batch, k.batch, *(t.shape[0] for t in tables if t.dim() > 1), *(a.rows for a in self.atoms)):
            # While compiling, sizes may be symbols: they compare, but have no place in a set or a tuple.
            if rows != 1 and count != 1 and count != rows:
                raise ValueError(f"{self!r} and this call speak of {rows} and {count} rows: give one batch")
            rows = count if rows == 1 else rows
        b = torch.arange(rows, device=device).view(-1, 1, 1, 1)
        heads = 1
        for t in tables:
            if t.device != device:
                raise ValueError(f"{self!r} reads a table on {t.device}, the call is on {device}: move it there")
            if t.dim() == 3 and t.shape[1] != 1:
                if heads != 1 and heads != t.shape[1]:
                    raise ValueError(f"{self!r} has tables of {heads} and of {t.shape[1]} heads: they must agree")
                heads = t.shape[1]
        h = torch.arange(heads, device=device).view(1, -1, 1, 1)
        i = torch.arange(q.length, device=device).view(1, 1, -1, 1)
        j = torch.arange(k.length, device=device).view(1, 1, 1, -1)
        return self.pair(b, h, i, j, q, k)


def sides(
    q_at: Tensor | int,
    k_at: Tensor | int,
    tables: Tables | None,
    *,
    batch: int | None = None,
    device: torch.device | None = None,
) -> tuple[Side, Side]:
    """Two sides from positions and tables, as `dense` and `attend` are given them."""
    q_tables: dict[str, Tensor] = {}
    k_tables: dict[str, Tensor] = {}
    for name, table in (tables or {}).items():
        for_q, for_k = table if isinstance(table, tuple) else (table, table)
        if for_q is not None:
            q_tables[name] = for_q
        if for_k is not None:
            k_tables[name] = for_k
    return _end(q_at, q_tables, "q_at", batch, device), _end(k_at, k_tables, "k_at", batch, device)


def _end(
    at: Tensor | int, tables: dict[str, Tensor], name: str, batch: int | None, device: torch.device | None
) -> Side:
    if isinstance(at, Tensor):
        at = positions(at, at.shape[-1] if at.dim() else 0, name, batch)
        return Side(at.shape[-1], at, tables, batch=at.shape[0] if batch is None else batch)
    if device is None and tables:
        device = next(iter(tables.values())).device
    return Side(at, None, tables, batch=1 if batch is None else batch, device=device)


class Given:
    """A tensor as a table: equal to itself alone, so that comparing masks never reads a device."""

    def __init__(self, tensor: Tensor) -> None:
        if not 1 <= tensor.dim() <= 3:
            raise ValueError(
                f"a table has shape (length,), (batch, length) or (batch, heads, length), not {tuple(tensor.shape)}"
            )
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Given) and other.tensor is self.tensor

    def __hash__(self) -> int:
        return id(self.tensor)

    def __repr__(self) -> str:
        return f"<{str(self.tensor.dtype).removeprefix('torch.')} {tuple(self.tensor.shape)}>"


Table = Union[str, Given]


def _table(table: str | Tensor) -> Table:
    if isinstance(table, Tensor):
        return Given(table)
    if isinstance(table, str):
        return table
    raise TypeError(f"a table is a name or a tensor, not {type(table).__name__}")


def _read(side: Side, table: Table, b: Tensor, h: Tensor, slot: Tensor, mask: Mask, of: str) -> Tensor:
    """A table's entries at these slots. Tables are read by slot, never by position."""
    if isinstance(table, Given):
        x = table.tensor
    elif table in side.facts:
        x = side.facts[table]
    else:
        raise ValueError(_unknown(side, table, mask, of))
    if x.shape[-1] != side.length:
        raise ValueError(f"{mask!r} has {x.shape[-1]} slots, this call has {side.length} {of}")
    if x.dim() == 1:
        return x[slot]
    if x.dim() == 2:
        return x[0][slot] if x.shape[0] == 1 else x[b, slot]
    head = torch.zeros_like(h) if x.shape[1] == 1 else h
    return x[0][head, slot] if x.shape[0] == 1 else x[b, head, slot]


def _found(atom: Mask, q: Side, k: Side) -> list[Tensor]:
    """The tensors behind an atom's tables; a name that is not known is said when it is read."""
    sides = [(q if end == "q" else k, table) for end, table in atom.lookups]
    given = [table.tensor for _, table in sides if isinstance(table, Given)]
    return given + [side.facts[table] for side, table in sides if isinstance(table, str) and table in side.facts]


def _unknown(side: Side, table: str, mask: Mask, of: str) -> str:
    known = ", ".join(f'"{name}"' for name in side.facts) or "none"
    near = difflib.get_close_matches(table, side.facts, n=1)
    advice = f'did you mean "{near[0]}"?' if near else f'give it: tables={{"{table}": ...}}'
    return f'{mask!r}: no table "{table}" for the {of}; there are: {known}; {advice}'


def _holds(table: Tensor, mask: Mask) -> Tensor:
    if table.dtype != torch.bool:
        raise ValueError(f"{mask!r} reads {table.dtype}; a table of who may look is bool: try table.bool()")
    return table


@dataclass(frozen=True, repr=False)
class Everything(Mask):
    def pair(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, q: Side, k: Side) -> Tensor:
        return torch.ones_like(i + j, dtype=torch.bool)

    def complement(self) -> Mask:
        return nothing

    def __repr__(self) -> str:
        return "everything"


@dataclass(frozen=True, repr=False)
class Nothing(Mask):
    looks_ahead = False

    def pair(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, q: Side, k: Side) -> Tensor:
        return torch.zeros_like(i + j, dtype=torch.bool)

    def complement(self) -> Mask:
        return everything

    def __repr__(self) -> str:
        return "nothing"


@dataclass(frozen=True, repr=False)
class Band(Mask):
    """lo <= position of the query - position of the key <= hi."""

    lo: float
    hi: float

    def pair(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, q: Side, k: Side) -> Tensor:
        distance = q.position(b, i) - k.position(b, j)
        if self.lo == -inf:
            return distance <= self.hi
        if self.hi == inf:
            return distance >= self.lo
        return (distance >= self.lo) & (distance <= self.hi)

    @property
    def looks_ahead(self) -> bool:
        return self.lo < 0

    def complement(self) -> Mask:
        return band(-inf, self.lo - 1) | band(self.hi + 1, inf)

    def __repr__(self) -> str:
        if (self.lo, self.hi) == (0, inf):
            return "causal"
        return f"window({self.hi})" if self.lo == -self.hi else f"band({self.lo}, {self.hi})"


@dataclass(frozen=True, repr=False)
class Key(Mask):
    table: Table

    @property
    def lookups(self) -> tuple[tuple[str, Table], ...]:
        return (("k", self.table),)

    def pair(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, q: Side, k: Side) -> Tensor:
        return _holds(_read(k, self.table, b, h, j, self, "keys"), self)

    def __repr__(self) -> str:
        return f"key({_name(self.table)})"


@dataclass(frozen=True, repr=False)
class Lengths(Mask):
    """Of row b, the first lengths[b] keys; a single length is every row's."""

    lengths: Union[tuple[int, ...], Given]

    @property
    def rows(self) -> int:
        return len(self.lengths.tensor if isinstance(self.lengths, Given) else self.lengths)

    def pair(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, q: Side, k: Side) -> Tensor:
        if isinstance(self.lengths, Given):
            lengths = self.lengths.tensor
        else:
            if max(self.lengths, default=0) > k.length:
                raise ValueError(f"{self!r} counts up to {max(self.lengths)} keys, this call has {k.length}")
            lengths = torch.tensor(self.lengths, device=j.device)
        return j < (lengths[0] if self.rows == 1 else lengths[b])

    def __repr__(self) -> str:
        return f"key(lengths={self.lengths if isinstance(self.lengths, Given) else list(self.lengths)})"


@dataclass(frozen=True, repr=False)
class Query(Mask):
    table: Table

    @property
    def lookups(self) -> tuple[tuple[str, Table], ...]:
        return (("q", self.table),)

    def pair(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, q: Side, k: Side) -> Tensor:
        return _holds(_read(q, self.table, b, h, i, self, "queries"), self)

    def __repr__(self) -> str:
        return f"query({_name(self.table)})"


@dataclass(frozen=True, repr=False)
class Same(Mask):
    q_table: Table
    k_table: Table

    @property
    def lookups(self) -> tuple[tuple[str, Table], ...]:
        return ("q", self.q_table), ("k", self.k_table)

    def pair(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, q: Side, k: Side) -> Tensor:
        return _read(q, self.q_table, b, h, i, self, "queries") == _read(k, self.k_table, b, h, j, self, "keys")

    def __repr__(self) -> str:
        both = _name(self.q_table) if self.q_table == self.k_table else f"{_name(self.q_table)}, {_name(self.k_table)}"
        return f"same({both})"


@dataclass(frozen=True, repr=False)
class Not(Mask):
    part: Mask

    def pair(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, q: Side, k: Side) -> Tensor:
        return ~self.part.pair(b, h, i, j, q, k)

    @property
    def atoms(self) -> tuple[Mask, ...]:
        return self.part.atoms

    def complement(self) -> Mask:
        return self.part

    def __repr__(self) -> str:
        return f"~{self.part!r}"


@dataclass(frozen=True, repr=False)
class _Joined(Mask):
    # A sorted tuple, not a set: compiled graphs are keyed by it.
    parts: tuple[Mask, ...]

    @property
    def atoms(self) -> tuple[Mask, ...]:
        return tuple(atom for part in self.parts for atom in part.atoms)


class And(_Joined):
    def pair(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, q: Side, k: Side) -> Tensor:
        allowed = self.parts[0].pair(b, h, i, j, q, k)
        for part in self.parts[1:]:
            allowed = allowed & part.pair(b, h, i, j, q, k)
        return allowed

    @property
    def looks_ahead(self) -> bool:
        return all(part.looks_ahead for part in self.parts)

    def complement(self) -> Mask:
        return functools.reduce(_either, [~part for part in self.parts])

    def __repr__(self) -> str:
        return " & ".join(f"({part!r})" if isinstance(part, Or) else repr(part) for part in self.parts)


class Or(_Joined):
    def pair(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, q: Side, k: Side) -> Tensor:
        allowed = self.parts[0].pair(b, h, i, j, q, k)
        for part in self.parts[1:]:
            allowed = allowed | part.pair(b, h, i, j, q, k)
        return allowed

    @property
    def looks_ahead(self) -> bool:
        return any(part.looks_ahead for part in self.parts)

    def complement(self) -> Mask:
        return functools.reduce(_both, [~part for part in self.parts])

    def __repr__(self) -> str:
        return " | ".join(f"({part!r})" if isinstance(part, And) else repr(part) for part in self.parts)


def _name(table: Table) -> str:
    return f'"{table}"' if isinstance(table, str) else repr(table)


everything = Everything()
nothing = Nothing()


def band(lo: float, hi: float) -> Mask:
    """Queries may look from `lo` to `hi` positions back: lo <= q_at - k_at <= hi. Either may be infinite."""
    for end in (lo, hi):
        if end not in (inf, -inf) and end != int(end):
            raise ValueError(f"band({lo}, {hi}): positions are integers, so are the ends of a band (or inf)")
    if lo > hi or lo == inf or hi == -inf:
        return nothing
    if (lo, hi) == (-inf, inf):
        return everything
    return Band(*(end if end in (inf, -inf) else int(end) for end in (lo, hi)))


causal = band(0, inf)


def window(reach: int) -> Mask:
    """Queries may look `reach` positions to either side."""
    if reach < 0:
        raise ValueError(f"window({reach}): a reach is 0 or more")
    return band(-reach, reach)


def key(table: str | Tensor | None = None, *, lengths: Sequence[int] | Tensor | None = None) -> Mask:
    """Keys that may be looked at: where the bool `table` is True, or each row's first `lengths[row]`."""
    if (table is None) == (lengths is None):
        raise TypeError('key takes a table or lengths: key("valid"), key(tensor) or key(lengths=[3, 2])')
    if table is not None:
        return Key(_table(table))
    if isinstance(lengths, Tensor):
        if lengths.dim() != 1 or lengths.is_floating_point():
            raise ValueError(f"lengths are integers of shape (batch,), not {lengths.dtype} {tuple(lengths.shape)}")
        return Lengths(Given(lengths))
    assert lengths is not None
    return Lengths(tuple(operator.index(n) for n in lengths))


def query(table: str | Tensor) -> Mask:
    """Queries that may look: where the bool `table` is True."""
    return Query(_table(table))


def same(table: str | Tensor, k_table: str | Tensor | None = None) -> Mask:
    """Pairs with equal labels: documents, buckets. One table for both sides, or one for each."""
    q_table = _table(table)
    return Same(q_table, q_table if k_table is None else _table(k_table))


def _join(
    cls: type[_Joined],
    dual: type[_Joined],
    a: Mask,
    b: Mask,
    neutral: Mask,
    zero: Mask,
    merge: Callable[[list[Band]], list[Mask]],
) -> Mask:
    """a & b or a | b, simplified; the two differ only in who is neutral, who absorbs, and how bands merge."""
    parts = [part for m in (a, b) for part in (m.parts if isinstance(m, cls) else (m,))]
    bands = [part for part in parts if isinstance(part, Band)]
    parts = [part for part in parts if not isinstance(part, Band)]
    if bands:
        parts += [p for m in merge(bands) for p in (m.parts if isinstance(m, cls) else (m,))]
    parts = _distinct(part for part in parts if part != neutral)
    # Complement: a & ~a is nothing. The complement of an atom is its Not; that of a band may be a pair of bands.
    opposites = [part.part for part in parts if isinstance(part, Not)]
    if any(isinstance(part, dual) for part in parts):
        opposites += [part.complement() for part in parts if isinstance(part, Band)]
    if zero in parts or any(part in parts for part in opposites):
        return zero
    # Absorption: a & (a | b) is a.
    parts = [p for p in parts if not (isinstance(p, dual) and any(o in p.parts for o in parts if o is not p))]
    if not parts:
        return neutral
    return parts[0] if len(parts) == 1 else cls(tuple(sorted(parts, key=_rank)))


def _both(a: Mask, b: Mask) -> Mask:
    def merge(bands: list[Band]) -> list[Mask]:
        return [band(max(p.lo for p in bands), min(p.hi for p in bands))]

    return _join(And, Or, a, b, everything, nothing, merge)


def _either(a: Mask, b: Mask) -> Mask:
    def merge(bands: list[Band]) -> list[Mask]:
        bands = sorted(bands, key=lambda p: p.lo)
        merged = [(bands[0].lo, bands[0].hi)]
        for p in bands[1:]:
            lo, hi = merged[-1]
            # Positions are integers: band(0, 2) and band(3, 5) touch.
            if p.lo <= hi + 1:
                merged[-1] = lo, max(hi, p.hi)
            else:
                merged.append((p.lo, p.hi))
        return [band(lo, hi) for lo, hi in merged]

    return _join(Or, And, a, b, nothing, everything, merge)


def _distinct(parts: Iterable[Mask]) -> list[Mask]:
    found: list[Mask] = []
    for part in parts:
        if part not in found:
            found.append(part)
    return found


def _rank(part: Mask) -> tuple[str, list[int]]:
    """A fixed order among parts; two tensors of one shape print alike, so their identity decides."""
    tables = [table for atom in part.atoms for _, table in atom.lookups]
    lengths = [atom.lengths for atom in part.atoms if isinstance(atom, Lengths)]
    # Not by hash: while compiling, PyTorch 2.11 cannot hash a frozen dataclass.
    return repr(part), [id(table.tensor) for table in (*tables, *lengths) if isinstance(table, Given)]
