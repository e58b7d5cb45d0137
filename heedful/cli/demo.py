"""heedful demo: the whole way, from nothing to a translator that a person can try."""

from __future__ import annotations

import dataclasses
import json as writer
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from heedful.cli.app import command
from heedful.cli.settings import Flag, found

if TYPE_CHECKING:
    from heedful.model import Shell

LANGUAGES = {"de": "German", "fr": "French", "zh": "Chinese"}
# Numbers that show something: words that change places, many zeros, every digit.
SAMPLES = (21, 97, 342, 1001, 7_021, 80_000, 654_321, 1_000_000, 20_304_050, 987_654_321)
# Held-out numbers that the trained model is measured on.
MEASURED = 2000


@command(
    "demo",
    """\
  heedful demo                # English number words to German: train, try
  heedful demo --to zh        # to Chinese
  heedful demo --json         # exact_match, chrf, bleu, train_seconds, run
""",
)
def demo_(
    *,
    to: Literal["de", "fr", "zh"] = "de",
    steps: int | None = None,
    out: Path | None = None,
    device: str | None = None,
    json: Flag = False,
) -> None:
    """Train a Transformer on number words, here and now, and try it.

    Parameters
    ----------
    to
        The language to translate to.
    steps
        Updates; as many as make it right if not given.
    out
        Folder of the run; a new one under runs/ if not given.
    device
        cpu, cuda, ...; the GPU if there is one.
    json
        One compact object, and nothing to try.
    """
    from heedful.decode import translate
    from heedful.tasks import task, words
    from heedful.train.config import from_toml
    from heedful.train.loop import train
    from heedful.train.score import score

    out = out or _new_folder(f"demo-{to}")
    rule = task(f"numbers-en-{to}")
    config = dataclasses.replace(from_toml(found("number-words")), task=rule.name, out=str(out), device=device)
    config = config if steps is None else dataclasses.replace(config, steps=steps)
    print(f"English number words to {LANGUAGES[to]}: 0 to 999,999,999.\n", file=sys.stderr)
    began = time.perf_counter()
    model = train(config).model
    took = time.perf_counter() - began

    pairs = rule.held_out(MEASURED, config.seed)
    said = translate(model, [pair.source for pair in pairs], beams=1)
    made = score(said, [pair.target for pair in pairs], "char")
    if json:
        figures = {"exact_match": made.exact, "chrf": round(made.chrf, 2), "bleu": round(made.bleu, 2)}
        print(writer.dumps({**figures, "train_seconds": round(took, 1), "run": str(out)}))
        return
    print(f"\n{MEASURED:,} held-out numbers of 4 to 9 digits, none of them seen in training:\n")
    print(f"  exactly right  {made.exact:.2%}")
    print(f"  chrF   {made.chrf:6.2f}  {made.signatures[1]}")
    print(f"  BLEU   {made.bleu:6.2f}  {made.signatures[0]}\n")
    _look_inside(model, words(21, "en"), words(21, to))
    samples = [words(n, "en") for n in SAMPLES]
    for source, target in zip(samples, translate(model, samples, beams=1), strict=True):
        print(f"  {source}\n    → {target}")
    _next(out)
    if sys.stdin.isatty() and sys.stdout.isatty():
        _try(model)


def _new_folder(name: str) -> Path:
    """runs/demo-de, or with a number where that is taken."""
    taken = (Path("runs") / (name if n == 1 else f"{name}-{n}") for n in range(1, 10_000))
    return next(path for path in taken if not path.exists())


def _look_inside(model: Shell, source: str, target: str) -> None:
    """Where the decoder looks while it writes: the words change places."""
    from heedful.explain.maps import drawn
    from heedful.explain.translation import looked

    weights, said, read = looked(model, source, target)
    print(f"Where it looks in “{source}” while it says “{target}”")
    print("(cross-attention, the mean of the last layer's heads):\n")
    print(drawn(weights, said, read) + "\n")


def _next(out: Path) -> None:
    run = shlex.quote(str(out))
    print("\nThe model and its run are kept. What to try next:\n")
    for line in (
        f'heedful translate {run} "nine hundred ninety-nine"',
        f"heedful train --out {run} --resume auto --steps 1600",
        "heedful demo --to zh",
        "heedful train --source a.en --target a.de --out RUN",
    ):
        print(f"  {line}")


def _try(model: Shell) -> None:
    from heedful.decode import translate

    print("\nYour turn: a number in English words; an empty line ends.")
    while text := _typed():
        print(translate(model, [text], beams=1)[0])


def _typed() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        print()
        return ""
