"""How good a model is on text that it has not learned from."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from heedful.data.batch import Corpus
from heedful.decode import translate
from heedful.model import EncoderDecoder, Shell
from heedful.train.material import Material
from heedful.train.objective import surprise
from heedful.train.parallel import Group
from heedful.train.score import score


@dataclass(frozen=True)
class Measured:
    """loss       mean negative log-likelihood of a real token, without label smoothing
    bleu, chrf, exact
               of greedy translations; None where nothing is translated
    """

    loss: float
    bleu: float | None = None
    chrf: float | None = None
    exact: float | None = None

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))

    @property
    def figure(self) -> float:
        """More is better: chrF of a translator, else the likelihood."""
        return -self.loss if self.chrf is None else self.chrf

    def line(self) -> dict[str, float]:
        """For metrics.jsonl."""
        found = {"valid_loss": self.loss, "perplexity": self.perplexity}
        scores = {"bleu": self.bleu, "chrf": self.chrf, "exact_match": self.exact}
        return found | {name: value for name, value in scores.items() if value is not None}


@torch.no_grad()
def measure(
    model: Shell,
    material: Material,
    translated: int,
    tokenize: str,
    group: Group,
    autocast: Callable[[], AbstractContextManager[object]],
) -> Measured | None:
    """Loss on all that was held out, every process its share; scores of the first so many translations.

    None where nothing is held out.
    """
    if material.validation is None:
        return None
    model.eval()
    with autocast():
        total, tokens = surprise_of(model, material.validation, group)
    loss = total / tokens
    if not math.isfinite(loss):
        raise ValueError(
            f"the loss on what was held out is {loss}: the training went wrong before. "
            "The checkpoints that were saved are whole; try a lower rate"
        )
    examples = material.examples[:translated]
    figures = torch.zeros(3, dtype=torch.float64, device=group.device)
    if examples and group.first:
        assert isinstance(model, EncoderDecoder)
        with autocast():
            said = translate(model, [pair.source for pair in examples], beams=1)
        scores = score(said, [pair.target for pair in examples], tokenize)
        figures += torch.tensor([scores.bleu, scores.chrf, scores.exact], device=group.device)
    model.train()
    return Measured(loss, *group.sum(figures).tolist()) if examples else Measured(loss)


@torch.no_grad()
def surprise_of(model: Shell, corpus: Corpus, group: Group) -> tuple[float, float]:
    """The negative log-likelihood of all that a corpus says, and how many tokens that is."""
    total = torch.zeros(2, dtype=torch.float64)
    for rows in corpus.order(0, 0):
        part = corpus.collate(rows).part(group.rank, group.size).to(group.device)
        total += torch.tensor([surprise(model(**part.inputs), part.labels).item(), part.tokens])
    negative, tokens = group.sum(total.to(group.device)).tolist()
    return negative, tokens
