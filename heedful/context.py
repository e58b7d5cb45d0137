"""What flows beside x: who is looking, at what, from where, and by which plan.

A layer owns its pattern (a mask over names), a batch owns its facts (the tables behind the names).
The context brings the two together: `context.plan(mask, bias)` lowers a pattern for this batch, once a forward.
So padded, packed and cached inputs all take the same forward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from heedful.mask import Band, Mask, causal, everything, inf, key, same
from heedful.position.bias import Added
from heedful.side import Side, side

if TYPE_CHECKING:
    from heedful.attention.cache import Cache, Room

Project = Callable[[Tensor, Side], tuple[Tensor, Tensor]]


class Pattern(NamedTuple):
    """What a layer looks at: the part of a plan that belongs to the layer, and not to the batch."""

    mask: Mask
    bias: tuple[nn.Module, ...]
    source: str
    kernel: str


Plans = dict[Pattern, "Plan"]


class Plan:
    """A mask and its biases, lowered for one pair of sides to what a kernel needs.

    is_causal   the mask is the lower triangle of a square, which fused kernels know by name
    fused       else mask and biases as one tensor for a fused kernel, or None where every look is allowed
    keep        the mask alone, dense, for the reference and for listeners; None where every look is allowed
    heads       how many heads it tells apart; 1 where all are alike
    lonely      queries that may look at nobody, for a fused kernel that would not give them zeros; else None
    """

    def __init__(self, mask: Mask, bias: Sequence[nn.Module], q: Side, k: Side, kernel: str) -> None:
        self.mask, self.bias, self.q, self.k = _trimmed(mask, q, k), tuple(bias), q, k
        square = q.start is not None and q.start == k.start and q.length == k.length
        self.is_causal = self.mask == causal and square and len(self.bias) == 0
        self._keep: Tensor | None = None
        self._added: dict[nn.Module, Tensor] = {}
        self.fused: Tensor | None = None
        self.lonely: Tensor | None = None
        self.heads = 1
        # Lowered here, before the first block runs: checkpointed blocks must not make plans of their own.
        if kernel == "reference" or (kernel == "auto" and q.device.type == "cpu"):
            _ = self.keep
            for term in self.bias:
                if isinstance(term, Added):
                    self.added(term)
        if kernel != "reference" and not self.is_causal:
            self.fused = self._fuse()
            if self.keep is not None and q.device.type == "cuda":
                # cuDNN gives such a query the mean of all values, in half precision.
                self.lonely = ~self.keep.any(-1, keepdim=True)

    @property
    def keep(self) -> Tensor | None:
        if self._keep is None and self.mask != everything:
            self._keep = self.mask.between(self.q, self.k)
            rows = self._keep.shape[0]
            if rows != 1 and rows != self.q.batch:
                raise ValueError(f"{self.mask!r} speaks of {rows} rows, this call has {self.q.batch}")
            self.heads = max(self.heads, self._keep.shape[1])
        return self._keep

    def added(self, term: Added) -> Tensor:
        """What `term` adds, as (1 or batch, heads, queries, keys)."""
        if term not in self._added:
            b = torch.arange(max(self.q.batch, self.k.batch), device=self.q.device).view(-1, 1, 1)
            i = torch.arange(self.q.length, device=self.q.device).view(1, -1, 1)
            j = torch.arange(self.k.length, device=self.q.device).view(1, 1, -1)
            self._added[term] = term.values(self.q.position(b, i) - self.k.position(b, j)).movedim(0, 1)
            self.heads = max(self.heads, self._added[term].shape[1])
        return self._added[term]

    def adjust(self, scores: Tensor) -> Tensor:
        """Scores after every bias, in order."""
        for term in self.bias:
            scores = scores + self.added(term).to(scores.dtype) if isinstance(term, Added) else term(scores)
        return scores

    def _fuse(self) -> Tensor | None:
        if len(self.bias) == 0:
            fused = self.keep
        else:
            fused = functools.reduce(torch.add, [self.added(term) for term in self.bias if isinstance(term, Added)])
            fused = fused if self.keep is None else fused.masked_fill(~self.keep, -inf)
        if fused is None or fused.shape[-1] == self.k.length:
            return fused
        # A mask that is alike for all keys is stored once; fused kernels on a GPU read along the keys.
        return fused.expand(*fused.shape[:-1], self.k.length).contiguous()


def _trimmed(mask: Mask, q: Side, k: Side) -> Mask:
    """A band that allows every pair of these sides is no band: one query after a cache, a window wider than a text."""
    if not isinstance(mask, Band) or q.start is None or k.start is None:
        return mask
    nearest, furthest = q.start - (k.start + k.length - 1), q.start + q.length - 1 - k.start
    return everything if mask.lo <= nearest and furthest <= mask.hi else mask


class Source(Protocol):
    """Where a layer's keys and values come from."""

    def keys_values(self, layer: nn.Module, x: Tensor, project: Project) -> tuple[Tensor, Tensor]: ...


class Own:
    """The sequence that is looking: self-attention."""

    def __init__(self, own: Side, cache: Cache | None, room: Room | None) -> None:
        self.own, self.cache, self.room = own, cache, room

    def keys_values(self, layer: nn.Module, x: Tensor, project: Project) -> tuple[Tensor, Tensor]:
        k, v = project(_real(x, self.own), self.own)
        return (k, v) if self.cache is None or self.room is None else self.cache.put(self.room, layer, k, v)


class Memory:
    """Another sequence, read whole: cross-attention. With a cache it is projected once."""

    def __init__(self, memory: Tensor | None, side: Side, room: Room | None) -> None:
        self.memory, self.side, self.room = memory, side, room

    def keys_values(self, layer: nn.Module, x: Tensor, project: Project) -> tuple[Tensor, Tensor]:
        if self.memory is None:
            if self.room is None or layer not in self.room.memory:
                raise ValueError("this layer's memory is neither here nor in the cache: give the source again")
            return self.room.memory[layer]
        k, v = project(_real(self.memory, self.side), self.side)
        if self.room is not None:
            self.room.memory[layer] = k, v
        return k, v


def _real(x: Tensor, of: Side) -> Tensor:
    """Zeros in place of padding, whatever stood there: not even NaN may leak through a weight of zero."""
    return torch.where(of.facts["valid"][..., None], x, 0) if "valid" in of.facts else x


class Context:
    """Beside x in one forward: the side that looks, the sides it can look at, a cache, and the plans."""

    def __init__(
        self,
        own: Side,
        keys: Side,
        cache: Cache | None = None,
        memory: Tensor | None = None,
        memory_side: Side | None = None,
        plans: Plans | None = None,
        place: tuple[int, ...] = (),
    ) -> None:
        self.own, self.keys, self.cache = own, keys, cache
        self.memory, self.memory_side = memory, memory_side
        self.plans: Plans = {} if plans is None else plans
        self.place = place

    def check(self, ids: Tensor) -> None:
        """A context serves the batch that it was planned for; with a cache one forward, for the cache goes on."""
        if ids.shape[0] != self.own.batch or ids.shape[1] != self.own.length:
            planned = (self.own.batch, self.own.length)
            raise ValueError(f"ids have shape {tuple(ids.shape)}, the context was planned for {planned}")
        if self.cache is not None and self.cache.pending is not self.keys:
            raise ValueError("this context was used before, or another was planned since: plan the call again")

    def commit(self) -> None:
        """The forward is through, so the cache keeps it. A call that fails leaves its cache where it was."""
        if self.cache is not None:
            self.cache.commit(self.memory_side)

    @classmethod
    def begin(cls, own: Side, *, cache: Cache | None = None, memory_side: Side | None = None) -> Context:
        """The context of one forward; a cache takes in the positions and facts of the call, here and once."""
        return cls(own, own if cache is None else cache.extend(own), cache, memory_side=memory_side)

    @classmethod
    def of(cls, x: Tensor, memory: Tensor | None = None) -> Context:
        """For one layer on its own: every slot of (batch, length, width) is real, positions count from 0."""
        return cls(side(x), side(x), memory=memory, memory_side=None if memory is None else side(memory))

    def at_layer(self, n: int) -> Context:
        """This context inside the n-th block of a stack: the same plans, a room of its own in the cache.

        A block may stand in several places; each place has its own keys and values.
        """
        if self.cache is None:
            return self
        return self._inside(self.memory, (*self.place, n))

    def with_memory(self, memory: Tensor) -> Context:
        return self._inside(memory, self.place)

    def _inside(self, memory: Tensor | None, place: tuple[int, ...]) -> Context:
        return Context(self.own, self.keys, self.cache, memory, self.memory_side, self.plans, place)

    def source(self, name: str) -> Source:
        room = None if self.cache is None else self.cache.room(self.place)
        if name == "own":
            return Own(self.own, self.cache, room)
        return Memory(self.memory, self._key_side(name), room)

    def plan(
        self,
        mask: Mask,
        bias: Sequence[nn.Module] = (),
        source: str = "own",
        kernel: str = "auto",
    ) -> Plan:
        """The plan of a pattern, made once a forward."""
        pattern = Pattern(mask, tuple(bias), source, kernel)
        if pattern not in self.plans:
            self.plans[pattern] = self._lower(*pattern)
        return self.plans[pattern]

    def _lower(self, mask: Mask, bias: Sequence[nn.Module], source: str, kernel: str) -> Plan:
        q, k = self.own, self._key_side(source)
        if source == "own" and self.cache is not None and mask.looks_ahead:
            raise ValueError(
                f"{mask!r} lets a token look at later ones, which a cache does not have yet: "
                "decode with causal & (...), or run the whole text without a cache"
            )
        for fact in ("filled", "valid"):
            if fact in k.facts:
                mask = mask & key(fact)
        if ("document" in q.facts) != ("document" in k.facts):
            has, lacks = ("queries", "keys") if "document" in q.facts else ("keys", "queries")
            raise ValueError(f"the {has} have a document table and the {lacks} have none: give both or neither")
        if "document" in k.facts:
            mask = mask & same("document")
        return Plan(mask, bias, q, k, kernel)

    def _key_side(self, source: str) -> Side:
        if source == "own":
            return self.keys
        if source != "memory":
            raise ValueError(f'a layer reads "own" or "memory", not "{source}"')
        if self.memory_side is not None and self.memory_side.batch != self.own.batch:
            raise ValueError(f"{self.own.batch} rows look at a memory of {self.memory_side.batch}: give one batch")
        if self.memory_side is None:
            raise ValueError(
                "this layer looks at a memory (cross-attention) and the call has none: give the encoder's output"
            )
        return self.memory_side
