"""Positions that are added to the embedding, or stand beside it.

Sinusoidal   sin and cos of position · frequency; nothing is learned        Vaswani et al. 2017, section 3.5
Learned      one vector for each position of a table                        Gehring et al. 2017; BERT, GPT
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from heedful.position.frequency import Angles, geometric
from heedful.side import can_look


def interleaved(sin: Tensor, cos: Tensor) -> Tensor:
    """sin₀ cos₀ sin₁ cos₁ ...: the paper's order."""
    return torch.stack([sin, cos], -1).flatten(-2)


def halved(sin: Tensor, cos: Tensor) -> Tensor:
    """sin₀ sin₁ ... cos₀ cos₁ ...: Marian's order."""
    return torch.cat([sin, cos], -1)


class Sinusoidal(nn.Module):
    """PE(p)[2i] = sin(p · base^(-2i/width)),  PE(p)[2i+1] = cos(the same).

    There is no table, so there is no longest position.
    An odd width leaves out the last cosine. The codes are float64; whoever joins them to x casts them.
    """

    def __init__(
        self, width: int, *, base: float = 10000.0, layout: Callable[[Tensor, Tensor], Tensor] = interleaved
    ) -> None:
        super().__init__()
        self.angles = Angles(geometric(width, base))
        self.width, self.layout = width, layout

    def forward(self, at: Tensor) -> Tensor:
        angles = self.angles(at)
        return self.layout(angles.sin(), angles.cos())[..., : self.width]


class Learned(nn.Module):
    """PE(p) = table[p], learned; positions end where the table does."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.table, self.length = nn.Embedding(length, width), length

    @property
    def advice(self) -> str:
        return f"the table of learned positions is 0..{self.length - 1}: shorten the text, or use a longer table"

    def forward(self, at: Tensor) -> Tensor:
        if can_look(at):
            least, most = int(at.min()), int(at.max())
            if least < 0 or most >= self.length:
                raise ValueError(f"position {most if most >= self.length else least}, but {self.advice}")
        return self.table(at)


def add(x: Tensor, code: Tensor) -> Tensor:
    """x + code: every column carries both."""
    return x + code.to(x.dtype)


def concatenate(x: Tensor, code: Tensor) -> Tensor:
    """[x, code]: position has columns of its own, so the width grows."""
    return torch.cat([x, code.to(x.dtype).expand(*x.shape[:-1], code.shape[-1])], -1)
