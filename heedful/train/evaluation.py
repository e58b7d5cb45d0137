"""A finished model on texts of one's own: what `heedful evaluate` prints."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, cast

import torch

from heedful.data.files import read_documents, read_pairs
from heedful.decode import translate
from heedful.model import EncoderDecoder, Shell
from heedful.position.added import Learned
from heedful.tasks import task as named
from heedful.train.config import Config
from heedful.train.material import batched, runs_on, special_of
from heedful.train.measure import surprise_of
from heedful.train.parallel import Group
from heedful.train.score import score

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Name = str | os.PathLike[str]


def evaluate(
    model: Shell,
    *,
    source: Name | None = None,
    target: Name | None = None,
    text: Name | None = None,
    task: str | None = None,
    examples: int = 2000,
    beams: int = 5,
    penalty: float = 1.0,
    tokenize: str = "13a",
    seed: int = 1,
    precision: str = "fp32",
) -> dict[str, float | int | str]:
    """Loss, perplexity and, of a translator, BLEU, chrF and the share that is exactly right.

    The texts are two files, one file of pairs, a `text`, or held-out examples of a `task`.
    """
    if model.tokenizer is None:
        raise ValueError("the model has no tokenizer, so it cannot read text: its folder needs a tokenizer.json")
    if task is not None and examples < 1:
        raise ValueError(f"examples={examples}: give 1 or more")
    if model.training:
        raise ValueError("the model is in training mode, where dropout is on: call model.eval() first")
    if isinstance(model, EncoderDecoder) != (text is None):
        does, wants = ("translates", "source and target, or task") if text is not None else ("continues text", "text")
        raise ValueError(f"this model {does}: measure it on {wants}")
    texts = (
        read_documents(text).kept
        if text is not None
        else named(task).held_out(examples, seed)
        if task is not None
        else read_pairs(cast(Name, source), target).kept
    )
    device = next(model.parameters()).device
    reach = min((part.length for part in model.modules() if isinstance(part, Learned)), default=256)
    config = Config(batch=8192, longest=reach if text is not None else 10**6)
    special = special_of(cast(dict[str, int], model.generation))
    tokenizer = cast("Tokenizer", model.tokenizer)
    corpus = batched(config, texts, tokenizer, special, running=runs_on(text), grid=1, measured=True)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        total, tokens = surprise_of(model, corpus, Group(0, 1, device))
        found: dict[str, float | int | str] = {
            "loss": total / tokens,
            "perplexity": math.exp(min(total / tokens, 700.0)),
        }
        found["tokens"] = int(tokens)
        if isinstance(model, EncoderDecoder):
            said = translate(model, [pair[0] for pair in texts], beams=beams, penalty=penalty)
            made = score(said, [pair[1] for pair in texts], tokenize)
            found |= {"texts": len(texts), "bleu": made.bleu, "chrf": made.chrf, "exact_match": made.exact}
            found |= {"bleu_signature": made.signatures[0], "chrf_signature": made.signatures[1]}
    return found
