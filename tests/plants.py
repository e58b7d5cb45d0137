"""Bugs to plant, each with the law that must turn red: a law that nothing can break would be no law.

HEEDFUL_PLANT=mask-by-position python -m pytest tests/laws/test_kernels.py
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful import mask
from heedful.attention import cache, kernel
from heedful.context import Context
from heedful.position import rotary
from heedful.side import Side


class Plant(NamedTuple):
    """plant   makes the bug
    law     the test that must fail, by file and name
    """

    plant: Callable[[], None]
    law: str


def _mask_band_one_short() -> None:
    """A band forgets its furthest place."""

    def pair(self: mask.Band, b: Tensor, h: Tensor, i: Tensor, j: Tensor, q: Side, k: Side) -> Tensor:
        distance = q.position(b, i) - k.position(b, j)
        return (distance >= self.lo) & (distance < self.hi)

    mask.Band.pair = pair  # type: ignore[method-assign]


def _mask_by_position() -> None:
    """Tables are read by position in place of slot."""
    right = mask._read

    def wrong(side: Side, table: Any, b: Tensor, h: Tensor, slot: Tensor, m: Any, of: str) -> Tensor:
        where = side.position(b, slot).clamp(0, max(side.length - 1, 0))
        return right(side, table, b.expand_as(where) if where.dim() == b.dim() else b, h, where, m, of)

    mask._read = wrong


def _rotary_turns_the_other_way_in_one_half() -> None:
    """One sign of the rotation is wrong."""

    def wrong(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        one, two = x.chunk(2, -1)
        return torch.cat([one * cos - two * sin, one * sin - two * cos], -1)

    halves = rotary.halves
    forward = rotary.Rotary.forward

    def planted(self: rotary.Rotary, x: Tensor, at: Tensor) -> Tensor:
        if self.layout is halves:
            self.layout = wrong
        return forward(self, x, at)

    rotary.Rotary.forward = planted  # type: ignore[method-assign]


def _rotary_turns_by_slot() -> None:
    """Rows are turned by where they lie in memory, not by where they stand in the text."""
    right = rotary.Rotary.forward

    def wrong(self: rotary.Rotary, x: Tensor, at: Tensor) -> Tensor:
        return right(self, x, torch.arange(x.shape[-2])[None])

    rotary.Rotary.forward = wrong  # type: ignore[method-assign]


def _cache_counts_padding() -> None:
    """After a padded prompt, positions go on from the number of slots."""

    def wrong(own: Side, start: int | Tensor) -> int | Tensor:
        return start + own.length

    cache.following = wrong


def _cache_shows_what_was_never_written() -> None:
    """The unwritten slots of a fixed cache may be looked at."""
    right = cache.Fixed.extend

    def wrong(self: cache.Fixed, own: Side) -> Side:
        side = right(self, own)
        side.facts["filled"] = torch.ones_like(side.facts["filled"])
        side.facts["valid"] = side.facts["valid"] | (torch.arange(self.capacity) >= self.length)
        return side

    cache.Fixed.extend = wrong  # type: ignore[method-assign]


def _cache_forgets_to_move_facts() -> None:
    """Selecting rows moves keys and values, and leaves the facts where they were."""

    def wrong(side: Side, rows: Tensor, pick: object) -> Side:
        return Side(side.length, side.at, side.facts, start=side.start, batch=len(rows), device=side.device)

    cache._rows = wrong


def _kernel_scales_by_length() -> None:
    """The fused kernel divides by √keys in place of √width: the notes' slip."""
    right = kernel.KERNELS["sdpa"]

    def wrong(q: Tensor, k: Tensor, v: Tensor, plan: Any, scale: float, dropout: float = 0.0) -> Tensor:
        return right(q, k, v, plan, 1 / math.sqrt(max(k.shape[-2], 1)), dropout)

    kernel.KERNELS["sdpa"] = wrong


def _kernel_shares_with_the_empty() -> None:
    """A query that may look at nobody looks at everybody alike."""

    def wrong(scores: Tensor, plan: Any) -> Tensor:
        if plan.keep is not None:
            scores = scores.masked_fill(~plan.keep, -1e9)
        return scores.softmax(-1)

    kernel.weights = wrong


def _context_forgets_padding() -> None:
    """`valid` is not and-ed into the plan."""
    right = Context._lower

    def wrong(self: Context, m: Any, bias: Any, source: str, kernel_name: str) -> Any:
        k = self._key_side(source)
        valid = k.facts.pop("valid", None)
        try:
            return right(self, m, bias, source, kernel_name)
        finally:
            if valid is not None:
                k.facts["valid"] = valid

    Context._lower = wrong  # type: ignore[method-assign]


_KERNELS = "tests/laws/test_kernels.py::"
_CACHES = "tests/laws/test_caches.py::"

PLANTS = {
    "mask-band-one-short": Plant(_mask_band_one_short, "tests/test_mask.py"),
    "mask-by-position": Plant(_mask_by_position, _KERNELS + "test_a_ring_of_keys_is_read_by_position_for_bands"),
    "rotary-other-way": Plant(_rotary_turns_the_other_way_in_one_half, "tests/test_notes_golden.py"),
    "rotary-by-slot": Plant(_rotary_turns_by_slot, _CACHES + "test_stepping_equals_one_full_forward"),
    "cache-counts-padding": Plant(_cache_counts_padding, _CACHES + "test_stepping_equals_one_full_forward"),
    "cache-unwritten": Plant(_cache_shows_what_was_never_written, _CACHES + "test_stepping_equals_one_full_forward"),
    "cache-facts-stay": Plant(_cache_forgets_to_move_facts, _CACHES + "test_selected_rows_go_on"),
    "kernel-scales-by-length": Plant(_kernel_scales_by_length, _KERNELS + "test_equals_the_reference_in_float64"),
    "kernel-empty-looks": Plant(_kernel_shares_with_the_empty, _KERNELS + "test_a_query_that_may_look_at_nobody"),
    "context-forgets-padding": Plant(_context_forgets_padding, _CACHES + "test_padded_and_packed_equal_alone"),
}
