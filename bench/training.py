"""Training on one CPU core against Hugging Face's Marian in a plain loop: same data, tokenizer, sizes, precision.

identical batches   the same tensors for both: tokens/s
own batches         heedful's, several sentences packed to a row, against random padded batches:
                    real tokens/s, and the loss on what was held out, after as many real tokens

Data is Multi30k where $HEEDFUL_DATA has it, else number words made by rule.
Then the trained model is asked how many of its likeliest tokens bfloat16 keeps, under teacher forcing.
"""

from __future__ import annotations

import copy
import itertools
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.peers import marian, same
from heedful.data import text
from heedful.data.batch import NOTHING, Batch, Packed, Padded, Shape, Special
from heedful.data.files import read_pairs
from heedful.data.ragged import Ragged
from heedful.tasks import task
from heedful.train.material import rounded
from heedful.train.objective import surprise
from heedful.train.optimizer import clip, optimizer

TOKENS, VOCAB, WIDTH, DEPTH, HEADS, INNER = 2500, 4000, 256, 2, 4, 1024
RATE, SMOOTHING, UPDATES = 1e-3, 0.1, 10
# Real target tokens that each learns from before losses are compared.
LEARNED = 250_000

BARS = {"identical batches": 0.95, "own batches": 1.5}


def corpora() -> tuple[str, Padded, Padded]:
    """What to learn from, and what to measure on."""
    folder = Path(os.environ.get("HEEDFUL_DATA", "")) / "multi30k"
    if (folder / "train.en").exists():
        name = "Multi30k"
        pairs = read_pairs(folder / "train.en", folder / "train.de").kept
        held = read_pairs(folder / "val.en", folder / "val.de").kept
    else:
        name, rule = "number words", task("numbers-en-de")
        pairs, held = rule.training(29_000, 0), rule.held_out(1000, 0)
    tokenizer = text.trained((side for pair in pairs for side in pair), "bpe", VOCAB)
    special = Special(0, 1, 2)

    def padded(some: Any) -> Padded:
        source, target = (Ragged(text.encoded(tokenizer, side)) for side in zip(*some, strict=True))
        return Padded(source, target, special, Shape(TOKENS))

    return name, padded(pairs), padded(held)


def at_random(corpus: Padded, together: int) -> Iterator[Batch]:
    """Batches as a plain loop draws them: so many sentences, whatever their lengths, padded to the longest."""
    chance = np.random.default_rng(0)
    while True:
        mixed = chance.permutation(len(corpus)).tolist()
        for n in range(0, len(mixed) - together, together):
            yield corpus.collate([[example] for example in mixed[n : n + together]])


def in_order(corpus: Padded | Packed) -> Iterator[Batch]:
    for epoch in itertools.count():
        yield from (corpus.collate(rows) for rows in corpus.order(0, epoch))


class Learner:
    """A model, its optimizer, and one update on a batch; which library's, `ours` says."""

    def __init__(self, model: nn.Module, ours: bool, precision: str) -> None:
        self.model, self.ours, self.precision = model.train(), ours, precision
        self.optimizer = (
            optimizer(model, "adam", decay=0.0)
            if ours
            else torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
        )

    def logits(self, batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bf16"):
            if self.ours:
                return self.model(**batch.inputs)
            return self.model(
                input_ids=batch.inputs["source"], attention_mask=batch.inputs["source_valid"].long(),
                decoder_input_ids=batch.inputs["target"], use_cache=False,
            ).logits  # fmt: skip

    def update(self, batch: Batch, rate: float = RATE) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        (surprise(self.logits(batch), batch.labels, SMOOTHING) / batch.tokens).backward()
        clip(self.model, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def loss(self, held: Padded) -> float:
        self.model.eval()
        batches = [held.collate(rows) for rows in held.order(0, 0)]
        total = sum(float(surprise(self.logits(batch), batch.labels)) for batch in batches)
        self.model.train()
        return total / sum(batch.tokens for batch in batches)


def learners(precision: str) -> tuple[Learner, Learner]:
    torch.manual_seed(0)
    theirs = marian(VOCAB, WIDTH, DEPTH, HEADS, INNER)
    return Learner(same(theirs), True, precision), Learner(theirs, False, precision)


def identical(corpus: Padded, precision: str) -> dict[str, object]:
    ours, theirs = learners(precision)
    batches = in_order(corpus)
    took: dict[Learner, list[float]] = {ours: [], theirs: []}
    tokens = []
    for n in range(UPDATES + 1):
        batch = next(batches)
        for learner, times in took.items():
            began = time.process_time()
            learner.update(batch)
            if n:  # the first is to warm up
                times.append(time.process_time() - began)
        tokens.append(batch.tokens)
    mine, other = (statistics.median(n / t for n, t in zip(tokens[1:], took[x], strict=True)) for x in (ours, theirs))
    return _row(f"identical batches, {precision}", mine, other, BARS["identical batches"])


def own(corpus: Padded, held: Padded, precision: str) -> tuple[list[dict[str, object]], Learner]:
    ours, theirs = learners(precision)
    longest = rounded(int(corpus.lengths.max()))
    packed = Packed(corpus.source, corpus.target, corpus.special, corpus.shape, longest)
    # As many sentences as ours hold on average, so that an update learns from as many real tokens.
    together = round(len(corpus) / len(packed.order(0, 0)))
    speeds, losses = [], []
    for learner, batches in ((ours, in_order(packed)), (theirs, at_random(corpus, together))):
        learned, spent = 0, 0.0
        while learned < LEARNED:
            batch = next(batches)
            began = time.process_time()
            # The rate follows what was learned, so that both have the same one at the same number of tokens.
            learner.update(batch, RATE * min(1.0, (learned + 1) / (LEARNED / 5)))
            spent += time.process_time() - began
            learned += batch.tokens
        speeds.append(learned / spent)
        losses.append(learner.loss(held))
    rows = [_row(f"own batches, {precision}", speeds[0], speeds[1], BARS["own batches"])]
    rows.append(
        {
            "name": f"held-out loss, {precision}",
            "ratio": round(losses[0] / losses[1], 3),
            "at_most": 1.0,
            "heedful": f"{losses[0]:.3f}",
            "transformers": f"{losses[1]:.3f}",
        }
    )
    return rows, ours


@torch.no_grad()
def kept_by_half(learner: Learner, held: Padded) -> dict[str, object]:
    """Of a trained model's likeliest tokens, the share that its copy in bfloat16 says too."""
    model = learner.model.eval()
    half = copy.deepcopy(model).to(torch.bfloat16)
    same_tokens = total = 0
    for rows in held.order(0, 0):
        batch = held.collate(rows)
        real = batch.labels != NOTHING
        a, b = model(**batch.inputs).argmax(-1), half(**batch.inputs).argmax(-1)
        same_tokens, total = same_tokens + int((a == b)[real].sum()), total + int(real.sum())
    return {"name": "tokens that bf16 keeps", "ratio": round(same_tokens / total, 4), "at_least": 0.99}


def _row(name: str, mine: float, other: float, bar: float) -> dict[str, object]:
    return {
        "name": name,
        "ratio": round(mine / other, 3),
        "at_least": bar,
        "heedful": f"{mine:,.0f} tokens/s",
        "transformers": f"{other:,.0f} tokens/s",
    }


def measure() -> list[dict[str, object]]:
    name, corpus, held = corpora()
    made = [identical(corpus, precision) for precision in ("fp32", "bf16")]
    rows, learner = own(corpus, held, "bf16")
    # On, until it is sure of what it says: of a model that guesses, rounding decides between words.
    learned = 0
    for batch in in_order(corpus):
        learner.update(batch)
        learned += batch.tokens
        if learned > 2 * LEARNED:
            break
    return [{**row, "data": name} for row in (*made, *rows, kept_by_half(learner, held))]
