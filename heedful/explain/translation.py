"""Where a translator looks: the cross-attention of a real translation, token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from heedful.model import EncoderDecoder, Shell
from heedful.trace import listen

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def looked(model: Shell, source: str, target: str) -> tuple[Tensor, list[str], list[str]]:
    """The last layer's weights, the mean of its heads; with what each row says and what each column holds.

    Row i is the look from which token i of the target is said.
    """
    if not isinstance(model, EncoderDecoder):
        raise ValueError(f"a {type(model).__name__} has no cross-attention: give a translator")
    tokenizer, special = cast("Tokenizer", model.tokenizer), cast("dict[str, int]", model.generation)
    start, end = special["start"], special["end"]
    read, said = ([*tokenizer.encode(text).ids, end] for text in (source, target))
    device = next(model.parameters()).device
    ids = torch.tensor([read], device=device), torch.tensor([[start, *said[:-1]]], device=device)
    path = f"decoder.layers.{len(model.decoder.layers) - 1}.cross.weights"
    with torch.no_grad(), listen(model, only=[path]) as trace:
        model(*ids)
    # A piece that is a lone space would have no name.
    names = [[tokenizer.decode([i], skip_special_tokens=False).strip() or "␣" for i in row] for row in (said, read)]
    return trace[path][0].mean(0), names[0], names[1]
