"""Beam search: the best few texts so far go on, side by side.

    score(text) = Σ log p(token | what stands before it) / length ** penalty

The end token counts in both. A penalty above 0 favours long texts, below 0 short ones; 0 compares sums.
Wu et al. 2016, arXiv:1609.08144, section 7, discuss why length needs a say.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.decode.step import Stepper


class Hypothesis(NamedTuple):
    """A finished text: its ids, with the end token if it has said one, and its score."""

    ids: list[int]
    score: float


def beam(
    stepper: Stepper,
    *,
    beams: int = 4,
    penalty: float = 1.0,
    end: Collection[int] = (),
    never: Collection[int] = (),
) -> list[list[Hypothesis]]:
    """Of each row the best finished texts, at most `beams` of them, best first.

    never   ids that do not come; probabilities stay what the model says

    In a step each row has candidates, enough of them that `beams` go on whatever ends.
    A candidate that ends is finished if it is among the best `beams`; what fills its row's room is finished as it is.
    A row is done when none of its beams can still do better than the worst of `beams` finished texts.
    One beam is greedy: when its best candidate ends, nothing goes on.
    """
    if beams < 1:
        raise ValueError(f"beams={beams}: there is at least one")
    if not math.isfinite(penalty):
        raise ValueError(f"penalty={penalty}: it is a finite number, usually between -1 and 2")
    device = stepper.logits.device
    found: list[list[Hypothesis]] = [[] for _ in stepper.room]
    room = torch.tensor(stepper.room, device=device)
    ends, barred = (torch.tensor(sorted(set(ids)), dtype=torch.long, device=device) for ids in (end, never))
    candidates = 1 if beams == 1 else (1 + max(1, len(ends))) * beams
    # Which row each group of beams writes; the sums of its beams, and what they have written.
    groups, logits = list(range(stepper.rows)), stepper.logits
    sums = torch.zeros(stepper.rows, 1, dtype=torch.float64, device=device)
    written = torch.empty(stepper.rows, 1, 0, dtype=torch.long, device=device)
    length = 0
    while True:
        length += 1
        width = sums.shape[1]
        sums, beam, tokens = _candidates(logits, sums, barred, candidates)
        over = torch.isin(tokens, ends) | (room <= length)[:, None]
        counts = over[:, :beams] & (sums[:, :beams] > -math.inf)
        for group, place in counts.nonzero().tolist():
            ids = written[group, beam[group, place]].tolist()
            score = float(sums[group, place]) / length**penalty
            _keep(found[groups[group]], Hypothesis([*ids, int(tokens[group, place])], score), beams)
        sums, order = sums.masked_fill(over, -math.inf).topk(min(beams, sums.shape[1]))
        alive = [
            group
            for group, (best, most) in enumerate(zip(sums[:, 0].tolist(), room.tolist(), strict=True))
            if _can_improve(found[groups[group]], best, most if penalty > 0 else length, penalty, beams)
        ]
        if len(alive) == 0:
            return found
        kept = torch.tensor(alive, device=device)
        groups, room, sums, order = [groups[group] for group in alive], room[kept], sums[kept], order[kept]
        beam, tokens = beam[kept].gather(1, order), tokens[kept].gather(1, order)
        written = torch.cat([written[kept[:, None], beam], tokens[..., None]], -1)
        stepper.select((kept[:, None] * width + beam).flatten())
        logits = stepper.step(tokens.flatten())


def _candidates(logits: Tensor, sums: Tensor, barred: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best `count` ways on for each group: their sums, the beams they come from, their tokens."""
    groups, width = sums.shape
    # The best of each beam are enough, so no log-softmax of the whole vocabulary is ever written.
    each = min(count + len(barred), logits.shape[-1])
    best, tokens = logits.topk(each)
    if len(barred) > 0:
        best = best.masked_fill(torch.isin(tokens, barred), -math.inf)
    steps = best.double() - logits.logsumexp(-1, keepdim=True)
    sums, picks = (sums[..., None] + steps.view(groups, width, each)).flatten(1).topk(min(count, width * each))
    return sums, picks // each, tokens.view(groups, -1).gather(1, picks)


def _keep(found: list[Hypothesis], one: Hypothesis, most: int) -> None:
    """Best first; of two that are level, the earlier."""
    place = sum(other.score >= one.score for other in found)
    found.insert(place, one)
    del found[most:]


def _can_improve(found: list[Hypothesis], best: float, length: int, penalty: float, beams: int) -> bool:
    """Sums only fall, so the best that can be is the best sum at the kindest length."""
    if best == -math.inf:
        return False
    return len(found) < beams or best / length**penalty > found[-1].score
