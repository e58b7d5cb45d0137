"""The skip around a branch, as an object around it. Where the norm stands is which object.

pre     x + branch(norm(x))          GPT-2 and most since: Xiong et al. 2020, arXiv:2002.04745
post    norm(x + branch(x))          the 2017 paper
bare    branch(x)                    no skip: what the residual is for shows when it is gone

Each has two places for dropout: `dropout` on the branch, before the sum, and `after` on the result.
"""

from torch import Tensor, nn

from heedful.context import Context
from heedful.trace import Around, note


class _Residual(Around):
    def __init__(self, branch: nn.Module, norm: nn.Module, *, dropout: float = 0.0, after: float = 0.0) -> None:
        super().__init__()
        self.branch, self.norm = branch, norm
        self.dropout, self.after = nn.Dropout(dropout), nn.Dropout(after)


class pre(_Residual):  # noqa: N801  a word in a recipe, like a function
    def forward(self, x: Tensor, context: Context) -> Tensor:
        branch = note("branch", self.dropout(self.branch(self.norm(x), context)))
        return self.after(note("sum", x + branch))


class post(_Residual):  # noqa: N801
    def forward(self, x: Tensor, context: Context) -> Tensor:
        branch = note("branch", self.dropout(self.branch(x, context)))
        return self.after(self.norm(note("sum", x + branch)))


class bare(Around):  # noqa: N801
    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return note("branch", self.branch(x, context))
