"""The study notes' worked examples: their inputs, and the numbers that they print.

An example holds matrices, not results. Results come from a real layer, read by `listen`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from heedful.attention.layer import Attention

Matrix = list[list[float]]
Printed = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Example:
    """place     where the notes have it
    tokens    the rows of x
    x         one vector a token
    query, key, value
              matrices (in, out)
    printed   what the notes print, by the name of the step, digit for digit
    """

    name: str
    title: str
    place: str
    tokens: tuple[str, ...]
    x: Matrix
    query: Matrix
    key: Matrix
    value: Matrix
    printed: Mapping[str, Printed] = field(default_factory=dict)

    def inputs(self) -> Tensor:
        return torch.tensor([self.x], dtype=torch.float64)

    def layer(self) -> Attention:
        """The real layer, with the example's matrices for weights."""
        return Attention(
            len(self.x[0]),
            heads=1,
            query=_linear(self.query),
            key=_linear(self.key),
            value=_linear(self.value),
            out=nn.Identity(),
        )


def _linear(matrix: Matrix) -> nn.Linear:
    weight = torch.tensor(matrix, dtype=torch.float64).T.contiguous()
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
    linear.weight = nn.Parameter(weight)
    return linear


SELF_ATTENTION = Example(
    name="self-attention",
    title="Self-attention over two words",
    place="document 003, line 69",
    tokens=("thinking", "machines"),
    x=[[1, 0, 1, 0], [0, 2, 0, 2]],
    query=[[1, 0, 1], [1, 1, 0], [0, 1, 1], [1, 0, 0]],
    key=[[0, 1, 0], [1, 1, 0], [1, 0, 1], [0, 1, 1]],
    value=[[0, 2, 0], [1, 0, 3], [1, 1, 0], [0, 0, 1]],
    printed={
        "q": (("1", "1", "2"), ("4", "2", "0")),
        "k": (("1", "1", "1"), ("2", "4", "2")),
        "v": (("1", "3", "0"), ("2", "0", "8")),
        "products": (("4", "10"), ("6", "16")),
        "scores": (("2.31", "5.77"), ("3.46", "9.24")),
        "exponentials": (("10.07", "320.5"), ("31.8", "10300")),
        "weights": (("0.03", "0.97"), ("0.003", "0.997")),
        "out": (("1.97", "0.09", "7.76"), ("1.997", "0.009", "7.976")),
    },
)

EXAMPLES = {example.name: example for example in (SELF_ATTENTION,)}
