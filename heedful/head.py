"""Hidden states to the vocabulary: logits = x W + b, where W may be the table of the embedding itself.

Tying the two saves vocab · width parameters.                    Press and Wolf 2017, arXiv:1608.05859
"""

from torch import nn


def vocabulary(tokens: nn.Embedding, *, tied: bool = True, biases: bool = False) -> nn.Linear:
    """A head over the words of `tokens`; `tied` makes their table its matrix."""
    head = nn.Linear(tokens.embedding_dim, tokens.num_embeddings, bias=biases)
    if tied:
        head.weight = tokens.weight
    return head
