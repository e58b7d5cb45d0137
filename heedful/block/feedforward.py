"""The feed-forward network: each token alone, through a wider layer and back.

FeedForward    y = W₂ f(W₁ x)                        Vaswani et al. 2017, section 3.3
Gated          y = W₂ (f(W_g x) · W₁ x)              Shazeer 2020, arXiv:2002.05202: SwiGLU with SiLU, GEGLU with GELU
"""

import functools
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from heedful.context import Context
from heedful.trace import note

Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


def activation(name: str) -> Activation:
    if name not in ACTIVATIONS:
        raise ValueError(f'no activation "{name}"; there are {", ".join(ACTIVATIONS)}')
    return ACTIVATIONS[name]


class FeedForward(nn.Module):
    """width -> inner -> width, with `activation` (a name in ACTIVATIONS) between."""

    def __init__(
        self, width: int, inner: int, activation_name: str = "relu", *, biases: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner, bias=biases), nn.Linear(inner, width, bias=biases)
        self.activation, self.dropout = activation(activation_name), nn.Dropout(dropout)

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        inner = note("inner", self.activation(self.up(x)))
        return note("out", self.down(self.dropout(inner)))


class Gated(nn.Module):
    """As FeedForward, with each inner unit multiplied by a gate of its own."""

    def __init__(
        self, width: int, inner: int, activation_name: str = "silu", *, biases: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=biases), nn.Linear(width, inner, bias=biases)
        self.down = nn.Linear(inner, width, bias=biases)
        self.activation, self.dropout = activation(activation_name), nn.Dropout(dropout)

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        inner = note("inner", self.activation(self.gate(x)) * self.up(x))
        return note("out", self.down(self.dropout(inner)))
