"""Tokens to vectors:  x = tokens[id] · scale  joined with a code of its position.

The 2017 paper multiplies by √width, so that a token is not drowned by its position.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from heedful.context import Context
from heedful.position.added import Learned, add
from heedful.side import Side, can_look
from heedful.trace import note


class Embedding(nn.Module):
    """(batch, n) ids -> (batch, n, width).

    position   a module at -> codes, or None
    scale      of the token vectors
    join       how codes meet tokens: `add`, or `concatenate`
    dropout    of the sum
    """

    def __init__(
        self,
        tokens: nn.Embedding,
        position: nn.Module | None = None,
        *,
        scale: float = 1.0,
        join: Callable[[Tensor, Tensor], Tensor] = add,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens, self.position = tokens, position
        self.scale, self.join, self.dropout = scale, join, nn.Dropout(dropout)

    def forward(self, ids: Tensor, context: Context) -> Tensor:
        _check(ids, self.tokens.weight)
        x = note("tokens", self.tokens(ids))
        if self.scale != 1.0:
            x = x * self.scale
        if isinstance(self.position, Learned):
            _check_length(context.own, self.position)
        if self.position is not None:
            x = self.join(x, note("position", self.position(context.own.at)))
        return note("sum", self.dropout(x))


def _check_length(own: Side, position: Learned) -> None:
    """By length alone, so on any device: where positions are known to count up, the last of them is known."""
    if own.start is not None and own.start + own.length > position.length:
        raise ValueError(f"{own.start + own.length} positions, but {position.advice}")


def _check(ids: Tensor, table: Tensor) -> None:
    """Ids by value where that is free: in eager mode on the CPU. Elsewhere the batcher has looked."""
    vocab = table.shape[0]
    if ids.dim() != 2:
        raise ValueError(f"ids have shape {tuple(ids.shape)}; give (batch, length)")
    if ids.device != table.device:
        raise ValueError(f"ids are on {ids.device}, the model is on {table.device}: try ids.to({str(table.device)!r})")
    if ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"ids are {ids.dtype}; they must be integers (int64 or int32)")
    if not can_look(ids):
        return
    least, most = int(ids.min()), int(ids.max())
    if least < 0 or most >= vocab:
        wrong = most if most >= vocab else least
        raise ValueError(
            f"id {wrong} is outside of the vocabulary, 0..{vocab - 1}: do tokenizer and model belong together?"
        )
