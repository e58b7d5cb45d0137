"""What training makes smaller: the surprise at each real token, summed.

    Σ  (1 - ε) · -log p(label)  +  ε · mean over the vocabulary of -log p        over real labels

ε is the label smoothing of Szegedy et al. 2016; the 2017 Transformer has 0.1. With ε = 0 it is the negative
log-likelihood. It is a sum: whoever divides it knows how many real tokens the whole update has.
"""

import torch.nn.functional as F
from torch import Tensor

from heedful.data.batch import NOTHING


def surprise(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """logits (batch, n, vocab), labels (batch, n), NOTHING where nothing is to be said -> one number."""
    return F.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=NOTHING, reduction="sum", label_smoothing=smoothing
    )
