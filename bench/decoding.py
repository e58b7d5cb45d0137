"""Greedy decoding on one CPU core, the 2017 paper's base shape, against Hugging Face.

Sources of 32 tokens, 48 tokens written, a vocabulary of 32,000, random weights, the same in all.
The figure is tokens/s over Hugging Face's in float32; theirs in bfloat16 stands beside it.
Both write the same tokens, which is checked first; a row may part at a tie, which random weights have some of.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from bench.peers import marian, same
from heedful.decode import Stepper, collected, sample
from heedful.decode.pack import pack
from heedful.model import EncoderDecoder, Shell

VOCAB, SOURCE, WRITTEN, RUNS = 32_000, 32, 48, 5

# (batch, precision) -> the least ratio to Hugging Face's float32
BARS = {(1, "fp32"): 1.15, (32, "fp32"): 1.15, (32, "bf16"): 2.0}


def _write(model: Shell, source: Tensor) -> list[list[int]]:
    assert isinstance(model, EncoderDecoder)
    stepper = Stepper(model, [[1]] * len(source), sources=source.tolist(), room=WRITTEN)
    return collected(sample(stepper))


def _written_by(theirs: torch.nn.Module, source: Tensor) -> list[list[int]]:
    out = theirs.generate(  # type: ignore[operator]
        input_ids=source, attention_mask=torch.ones_like(source), max_new_tokens=WRITTEN, min_new_tokens=WRITTEN,
        num_beams=1, do_sample=False, eos_token_id=None,
    )  # fmt: skip
    written: list[list[int]] = out[:, 1:].tolist()
    return written


def measure() -> list[dict[str, object]]:
    torch.manual_seed(0)
    theirs = marian(VOCAB, 512, 6, 8, 2048).eval()
    # Wide enough that the likeliest token is so by a margin.
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.02 * torch.randn_like(p))
    half = marian(VOCAB, 512, 6, 8, 2048).eval()
    half.load_state_dict(theirs.state_dict())
    half.to(torch.bfloat16)
    ours, ours_half = pack(same(theirs)), pack(same(theirs, torch.bfloat16))
    made: list[dict[str, object]] = []
    for batch in (1, 32):
        source = torch.randint(3, VOCAB, (batch, SOURCE))
        source[:, -1] = 2
        both = zip(_write(ours, source), _written_by(theirs, source), strict=True)
        alike = sum(a == b for a, b in both) / batch
        if alike < 0.9:
            raise SystemExit(f"batch {batch}: heedful and Hugging Face write alike in {alike:.0%} of the rows")
        work: dict[str, Callable[[], object]] = {
            "heedful fp32": lambda source=source: _write(ours, source),  # type: ignore[misc]
            "heedful bf16": lambda source=source: _write(ours_half, source),  # type: ignore[misc]
            "theirs fp32": lambda source=source: _written_by(theirs, source),  # type: ignore[misc]
            "theirs bf16": lambda source=source: _written_by(half, source),  # type: ignore[misc]
        }
        took: dict[str, list[float]] = {name: [] for name in work}
        for _ in range(RUNS):
            for name, run in work.items():
                began = time.process_time()
                run()
                took[name].append(time.process_time() - began)
        speed = {name: batch * WRITTEN / statistics.median(times) for name, times in took.items()}
        for precision in ("fp32", "bf16"):
            made.append(
                {
                    "name": f"greedy, batch {batch}, {precision}",
                    "ratio": round(speed[f"heedful {precision}"] / speed["theirs fp32"], 3),
                    "at_least": BARS.get((batch, precision)),
                    "heedful": f"{speed[f'heedful {precision}']:.0f} tokens/s",
                    "transformers": f"{speed['theirs fp32']:.0f} tokens/s fp32, {speed['theirs bf16']:.0f} bf16",
                }
            )
    return made
