"""Branches one after another are a block; blocks one after another are the stack."""

from torch import Tensor, nn

from heedful.context import Context


class Block(nn.Module):
    """Named branches, applied in the order in which they are given: Block(attention=..., feedforward=...)."""

    def __init__(self, **branches: nn.Module) -> None:
        super().__init__()
        for name, branch in branches.items():
            self.add_module(name, branch)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        # Not `children()`, which gives a branch that stands twice only once.
        for branch in self._modules.values():
            assert branch is not None
            x = branch(x, context)
        return x


class Layers(nn.ModuleList):
    """The fold: x through every block in turn, each in its own room of the cache."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        for n, block in enumerate(self):
            x = block(x, context.at_layer(n))
        return x
