"""How weights begin: functions over a built model, which a recipe calls last."""

import torch
from torch import nn

from heedful.model import Shell


@torch.no_grad()
def normal(model: Shell, spread: float) -> None:
    """Matrices and tables N(0, spread²), biases zero."""
    for part in model.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)):
            nn.init.normal_(part.weight, std=spread)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


@torch.no_grad()
def xavier(model: Shell) -> None:
    """Matrices uniform in ±√(6 / (in + out)); tables N(0, 1/width), so that a token times √width has size 1.

    Glorot and Bengio 2010. Biases stay as PyTorch makes them.
    """
    for part in model.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
    for part in model.modules():
        # After the matrices: a tied head is a table.
        if isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, std=part.embedding_dim**-0.5)
