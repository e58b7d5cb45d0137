"""Which tokens may come next, and how likely: rules on logits.

    p(token) = softmax( rule_n( ... rule_1( logits ) ) )

A rule takes logits (rows, vocab) and returns such. What it rules out is -inf. Rules apply in the order given.
"""

import math
from collections.abc import Callable, Collection

import torch
from torch import Tensor

Rule = Callable[[Tensor], Tensor]


def temperature(t: float) -> Rule:
    """logits / t: below 1 the likely grow likelier, above 1 all grow alike."""
    if not 0 < t < math.inf:
        raise ValueError(f"temperature={t}: it is above 0 and finite; without chance is `greedy`")

    def rule(logits: Tensor) -> Tensor:
        return logits / t

    return rule


def top_k(k: int) -> Rule:
    """The k likeliest stay, and whoever is level with the last of them.           Fan et al. 2018, arXiv:1805.04833"""
    if k < 1:
        raise ValueError(f"top_k={k}: at least one token must stay")

    def rule(logits: Tensor) -> Tensor:
        if k >= logits.shape[-1]:
            return logits
        least = logits.topk(k).values[:, -1:]
        return logits.masked_fill(logits < least, -math.inf)

    return rule


def top_p(p: float) -> Rule:
    """The smallest set of likeliest tokens that reaches probability p stays.  Holtzman et al. 2020, arXiv:1904.09751

    Of two that are level, the one with the smaller id goes first. One token always stays.
    """
    if not 0 < p <= 1:
        raise ValueError(f"top_p={p}: a share of probability is above 0 and at most 1")

    def rule(logits: Tensor) -> Tensor:
        if p == 1:
            return logits
        falling, order = logits.sort(dim=-1, descending=True, stable=True)
        share = falling.softmax(-1)
        before = share.cumsum(-1, dtype=torch.float64) - share
        out = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before >= p)
        return logits.masked_fill(out, -math.inf)

    return rule


def never(ids: Collection[int]) -> Rule:
    """These tokens do not come: padding, for one."""

    def rule(logits: Tensor) -> Tensor:
        known = [i for i in ids if 0 <= i < logits.shape[-1]]
        if len(known) == 0:
            return logits
        return logits.index_fill(-1, torch.tensor(known, device=logits.device), -math.inf)

    return rule
