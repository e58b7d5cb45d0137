"""Position that turns q and k: rotary embedding (RoPE).                     Su et al. 2021, arXiv:2104.09864

    (x₁, x₂) at position p  ->  (x₁ cos pθ - x₂ sin pθ,  x₁ sin pθ + x₂ cos pθ)

Each pair of columns turns by position · its frequency. Turned q and k meet at an angle of (p_q - p_k) · θ,
so their product reads the distance alone. Values are not turned.

    Rotary(geometric(64))                                  # a whole head of 64
    Rotary(geometric(32))                                  # 32 of its columns; the others pass
    Rotary([0.5, 0.5], layout=pairs)                       # any frequencies
    Rotary(linear(geometric(64), factor=4))                # positions squeezed to a quarter
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from heedful.position.frequency import Angles


def pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn columns (0, 1), (2, 3), ...: the paper's layout, and Meta's files'."""
    one, two = x[..., 0::2], x[..., 1::2]
    return torch.stack([one * cos - two * sin, one * sin + two * cos], -1).flatten(-2)


def halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn columns (0, d/2), (1, d/2 + 1), ...: the layout of Hugging Face's LLaMA."""
    one, two = x.chunk(2, -1)
    return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)


class Rotary(nn.Module):
    """Turns the first 2 · len(frequencies) columns of x, and lets the others pass."""

    def __init__(
        self, frequencies: Sequence[float], *, layout: Callable[[Tensor, Tensor, Tensor], Tensor] = halves
    ) -> None:
        super().__init__()
        self.angles = Angles(frequencies)
        self.columns, self.layout = 2 * len(frequencies), layout

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        """x is (batch, heads, n, width); at is (n,) or (1 or batch, n)."""
        if x.shape[-1] < self.columns:
            raise ValueError(
                f"rotary turns {self.columns} columns, a head has {x.shape[-1]}: "
                f"give {x.shape[-1] // 2} frequencies or fewer"
            )
        wide = torch.promote_types(x.dtype, torch.float32)
        angles = self.angles(at).unsqueeze(-3)
        cos, sin = angles.cos().to(wide), angles.sin().to(wide)
        turned = self.layout(x[..., : self.columns].to(wide), cos, sin).to(x.dtype)
        return turned if x.shape[-1] == self.columns else torch.cat([turned, x[..., self.columns :]], -1)


def linear(frequencies: Sequence[float], factor: float) -> list[float]:
    """Position interpolation: every frequency divided by `factor`.         Chen et al. 2023, arXiv:2306.15595"""
    return [f / factor for f in frequencies]


def llama3(
    frequencies: Sequence[float], factor: float = 8.0, low: float = 1.0, high: float = 4.0, original: int = 8192
) -> list[float]:
    """LLaMA 3.1's stretching: slow pairs are divided by `factor`, fast ones kept, those between are mixed.

    A pair is slow if it turns fewer than `low` times within the `original` context, fast if more than `high` times.
    """

    def stretched(f: float) -> float:
        turns = original * f / (2 * math.pi)
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        return kept * f + (1 - kept) * f / factor

    return [stretched(f) for f in frequencies]
