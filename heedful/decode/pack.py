"""Weights in the layout that oneDNN multiplies by, for a model on a CPU that only writes from now on.

    pack(model)                  # in place; `translate` and `generate` are up to twice as fast

Decoding multiplies a few rows by the same matrices over and over, so the layout pays for itself at once.
The weights are held twice. They are as they were when the model was packed: training it further is refused by
nobody, and seen by nobody.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from heedful.surgery import select
from heedful.trace import Around

Model = TypeVar("Model", bound=nn.Module)

# For how many rows oneDNN arranges the weights. What it chose for 32 was the fastest for any number above 1, too.
ROWS = 32
# One row in float32 is faster on the plain layout, unless the matrix is far beyond the caches, as a head is.
LARGE = 4 * 2**20


class Packed(Around):
    """A Linear with its weights in both layouts; gradients take the plain one."""

    def __init__(self, branch: nn.Linear) -> None:
        super().__init__()
        self.branch = branch
        self.weights: Tensor = torch.ops.mkldnn._reorder_linear_weight(branch.weight.detach(), ROWS)
        self.always = branch.weight.dtype == torch.bfloat16 or branch.weight.numel() >= LARGE
        self.dtype = branch.weight.dtype

    def forward(self, x: Tensor) -> Tensor:
        several = self.always or x.numel() > x.shape[-1]
        if torch.is_grad_enabled() or x.dtype != self.dtype or not several:
            y: Tensor = self.branch(x)
            return y
        bias = self.branch.bias
        packed: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weights, bias, "none", [], "")
        return packed


def pack(model: Model) -> Model:
    """Pack every Linear of a model in float32 or bfloat16 on a CPU; others stay as they are."""
    known = hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and torch.backends.mkldnn.is_available()
    weight = next(model.parameters())
    if known and weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16):
        select(model, nn.Linear).wrap(_packed)
    return model


def _packed(linear: nn.Module) -> nn.Module:
    assert isinstance(linear, nn.Linear)
    return Packed(linear)
