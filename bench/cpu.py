"""heedful against Hugging Face on one CPU core: forward and backward at equal outputs.

Each line first checks that both models compute the same loss from the same weights.
Then both run in turn, nine times each; the figure is the ratio of the medians of process time.
Only ratios inside one run mean anything: the machine's speed cancels.
"""

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.peers import marian, same

RUNS = 9

# name -> the most that heedful may take, as a share of Hugging Face's time
BARS = {"gpt-1000": 0.92, "gpt-50257": 1.12, "transformer-base": 1.12}

Step = Callable[[], Tensor]


def gpt(vocab: int) -> tuple[Step, Step]:
    """GPT-2's shape: batch 4, 4 layers of 256, 512 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocab, n_positions=512, n_embd=256, n_layer=4, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    theirs = GPT2LMHeadModel._from_config(config, attn_implementation="sdpa")
    ours = same(theirs).train()
    ids = torch.randint(0, vocab, (4, 513))

    def their_step() -> Tensor:
        return _loss(theirs(input_ids=ids[:, :-1], use_cache=False).logits, ids[:, 1:])

    return lambda: _loss(ours(ids[:, :-1]), ids[:, 1:]), their_step


def transformer_base() -> tuple[Step, Step]:
    """The paper's base with 2 + 2 layers: batch 64, 32 tokens on each side, a vocabulary of 8,000."""
    vocab = 8000
    theirs = marian(vocab, 512, 2, 8, 2048)
    ours = same(theirs).train()
    source, target = torch.randint(2, vocab, (64, 32)), torch.randint(2, vocab, (64, 33))

    def their_step() -> Tensor:
        out = theirs(input_ids=source, decoder_input_ids=target[:, :-1], use_cache=False)
        return _loss(out.logits, target[:, 1:])

    return lambda: _loss(ours(source, target[:, :-1]), target[:, 1:]), their_step


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


WORK = {
    "gpt-1000": lambda: gpt(1000),
    "gpt-50257": lambda: gpt(50257),
    "transformer-base": transformer_base,
}


def measure() -> list[dict[str, object]]:
    return [_measured(name) for name in WORK]


def _measured(name: str) -> dict[str, object]:
    torch.manual_seed(0)
    ours, theirs = WORK[name]()
    with torch.no_grad():
        a, b = ours().item(), theirs().item()
    if abs(a - b) > 1e-4 * abs(b):
        raise SystemExit(f"{name}: the two models differ: loss {a} and {b}")
    times: dict[Step, list[float]] = {ours: [], theirs: []}
    for run in range(RUNS + 1):
        for step, took in times.items():
            began = time.process_time()
            step().backward()
            if run:  # the first is to warm up
                took.append(time.process_time() - began)
    mine, other = statistics.median(times[ours]), statistics.median(times[theirs])
    return {
        "name": f"forward + backward, {name}",
        "ratio": round(mine / other, 3),
        "at_most": BARS[name],
        "heedful": f"{mine:.3f} s",
        "transformers": f"{other:.3f} s",
    }
