"""Angles that grow with position, one frequency a pair of columns: frequency_i = base^(-2i / width).

The first pair turns fastest (one radian a position), the last one slowest.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def geometric(width: int, base: float = 10000.0) -> list[float]:
    """The frequencies of the 2017 paper, one for each pair of columns; an odd width has half a pair at its end."""
    if width < 1:
        raise ValueError(f"width={width}: there are no columns to give a frequency")
    return [base ** (-2 * i / width) for i in range((width + 1) // 2)]


class Angles(nn.Module):
    """angle = position · frequency, in float64 whatever the model's dtype.

    A bf16 model at position 100,000 would otherwise be off by whole turns.
    """

    frequencies: Tensor

    def __init__(self, frequencies: Sequence[float]) -> None:
        super().__init__()
        # Real even where a model is built without storage: these are values, not weights to be loaded.
        device = torch.get_default_device()
        real = "cpu" if device.type == "meta" else device
        table = torch.tensor([float(f) for f in frequencies], dtype=torch.float64, device=real)
        self.register_buffer("frequencies", table, persistent=False)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "Angles":
        """Follow the model to its device, but not to its dtype."""
        kept = self.frequencies
        super()._apply(fn, recurse)
        moved = self.frequencies.device
        self.frequencies = kept if moved.type == "meta" else kept.to(moved)
        return self

    def forward(self, at: Tensor) -> Tensor:
        """(..., n) positions -> (..., n, pairs) angles."""
        return at[..., None] * self.frequencies
