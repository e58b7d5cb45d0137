"""heedful against Hugging Face on one CPU core: forward and backward at equal outputs.

    python -m bench.cpu                 all of the table
    python -m bench.cpu gpt-1000        one line of it
    python -m bench.cpu --json          one object a line

Each line first checks that both models compute the same loss from the same weights.
Then both run in turn, nine times each; the figure is the ratio of the medians of process time.
Only ratios inside one run mean anything: the machine's speed cancels.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import heedful

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
    ours = _same(theirs)
    ids = torch.randint(0, vocab, (4, 513))

    def their_step() -> Tensor:
        return _loss(theirs(input_ids=ids[:, :-1], use_cache=False).logits, ids[:, 1:])

    return lambda: _loss(ours(ids[:, :-1]), ids[:, 1:]), their_step


def transformer_base() -> tuple[Step, Step]:
    """The paper's base with 2 + 2 layers: batch 64, 32 tokens on each side, a vocabulary of 8,000."""
    from transformers import MarianConfig, MarianMTModel

    vocab = 8000
    config = MarianConfig(
        vocab_size=vocab, d_model=512, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=2048, decoder_ffn_dim=2048,
        encoder_attention_heads=8, decoder_attention_heads=8, dropout=0.0, scale_embedding=True,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, max_position_embeddings=512,
    )  # fmt: skip
    theirs = MarianMTModel._from_config(config, attn_implementation="sdpa")
    ours = _same(theirs)
    source, target = torch.randint(2, vocab, (64, 32)), torch.randint(2, vocab, (64, 33))

    def their_step() -> Tensor:
        out = theirs(input_ids=source, decoder_input_ids=target[:, :-1], use_cache=False)
        return _loss(out.logits, target[:, 1:])

    return lambda: _loss(ours(source, target[:, :-1]), target[:, 1:]), their_step


def _same(theirs: torch.nn.Module) -> torch.nn.Module:
    """heedful's model with the other's weights, through a folder on disk."""
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)  # type: ignore[operator]
        return heedful.load(folder).train()


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


WORK = {
    "gpt-1000": lambda: gpt(1000),
    "gpt-50257": lambda: gpt(50257),
    "transformer-base": transformer_base,
}


def measure(name: str) -> dict[str, object]:
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
        "name": name,
        "ratio": round(mine / other, 3),
        "at_most": BARS[name],
        "heedful_s": round(mine, 3),
        "transformers_s": round(other, 3),
        "loss": round(a, 4),
    }


def main(arguments: list[str]) -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    as_json = "--json" in arguments
    if not as_json:
        print(f"{'forward + backward, one core':30}{'heedful':>10}{'Hugging Face':>15}{'ratio':>9}{'at most':>9}")
    for name in [a for a in arguments if a != "--json"] or list(WORK):
        made = measure(name)
        if as_json:
            print(json.dumps(made), flush=True)
        else:
            ours, theirs = f"{made['heedful_s']} s", f"{made['transformers_s']} s"
            print(f"{name:30}{ours:>10}{theirs:>15}{made['ratio']:>9}{made['at_most']:>9}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
