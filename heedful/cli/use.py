"""heedful translate, heedful generate, heedful evaluate."""

import itertools
import json as writer
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from heedful.cli.app import command
from heedful.cli.settings import Flag, UsageError


@command(
    "translate",
    """\
  heedful translate RUN "Good morning." "How are you?"
  heedful translate RUN --file a.en > a.de         # a file, line by line
  echo "Good morning." | heedful translate RUN     # a pipe, as lines come
""",
)
def translate_(
    model: Path,
    /,
    *texts: str,
    file: Path | None = None,
    beams: int = 5,
    penalty: float = 1.0,
    length: int | None = None,
    device: str | None = None,
    json: Flag = False,
) -> None:
    """Translate texts; one translation a line.

    Parameters
    ----------
    model
        Folder of a model or of a run.
    texts
        What to translate; lines from the standard input if nothing is given. -- goes before what begins with a dash.
    file
        A file to translate, line by line.
    beams
        How many candidates go on side by side; 1 is greedy.
    penalty
        Above 0 favours long translations, below 0 short ones.
    length
        Tokens of a translation at most; by the length of the source if not given.
    device
        cpu, cuda, ...; the GPU if there is one.
    json
        One object a line: source and translation.
    """
    from heedful.cli.load import lines_of, loaded
    from heedful.decode import translate

    portions = lines_of(texts, file)
    translator = loaded(model, device)
    for together in portions:
        translations = translate(translator, together, beams=beams, penalty=penalty, length=length)
        for source, said in zip(together, translations, strict=True):
            made = {"source": source, "translation": said}
            # A translation is one line, whatever the model says.
            print(writer.dumps(made, ensure_ascii=False) if json else said.replace("\n", " "), flush=True)


@command(
    "generate",
    """\
  heedful generate RUN "ROMEO:"
  heedful generate RUN "ROMEO:" --length 500 --seed 3
  heedful generate RUN "ROMEO:" --temperature 0.8 --top-k 20
  heedful generate RUN "Q: 2 + 2" --stop "Q:" --temperature 0
""",
)
def generate_(
    model: Path,
    /,
    *texts: str,
    length: int = 200,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    seed: int = 0,
    device: str | None = None,
    json: Flag = False,
) -> None:
    """Continue texts; one text is shown as it is written.

    Parameters
    ----------
    model
        Folder of a model or of a run.
    texts
        Beginnings; lines from the standard input if nothing is given.
    length
        Tokens at most.
    temperature
        0 takes the likeliest token each time; 1 draws from what the model says.
    top_k
        Draw from the k likeliest tokens.
    top_p
        Draw from the likeliest tokens that reach this probability together.
    stop
        A text that ends it, and is left out. May be given several times.
    seed
        The same seed, the same text.
    device
        cpu, cuda, ...; the GPU if there is one.
    json
        One object a line: text and continuation.
    """
    from heedful.cli.load import lines_of, loaded
    from heedful.decode import generate, stream

    portions = lines_of(texts, None)
    writes = loaded(model, device)
    if len(texts) == 1 and not json:
        pieces = stream(
            writes,
            texts[0],
            length=length,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            stop=stop,
            seed=seed,
        )
        # The first piece before the text itself: what is wrong is said before anything is shown.
        first = next(pieces, "")
        for piece in itertools.chain([texts[0], first], pieces):
            print(piece, end="", flush=True)
        print()
        return
    for together in portions:
        continued = generate(
            writes,
            together,
            length=length,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            stop=stop,
            seed=seed,
        )
        for text, said in zip(together, continued, strict=True):
            made = {"text": text, "continuation": said}
            print(writer.dumps(made, ensure_ascii=False) if json else text + said, flush=True)


@command(
    "evaluate",
    """\
  heedful evaluate RUN --source test.en --target test.de
  heedful evaluate RUN --source test.en --target test.de --beams 1 --json
  heedful evaluate RUN --text test.txt                 # a language model
  heedful evaluate RUN --task numbers-en-de --tokenize char
""",
)
def evaluate_(
    model: Path,
    /,
    *,
    source: Path | None = None,
    target: Path | None = None,
    text: Path | None = None,
    task: str | None = None,
    examples: int = 2000,
    beams: int = 5,
    penalty: float = 1.0,
    tokenize: str = "13a",
    seed: int = 1,
    precision: Literal["fp32", "bf16"] = "fp32",
    device: str | None = None,
    json: Flag = False,
) -> None:
    """Measure a model: BLEU and chrF of its translations, loss and perplexity of the right ones.

    Parameters
    ----------
    model
        Folder of a model or of a run.
    source
        File of source texts; or a file of pairs: .tsv, .jsonl.
    target
        File of their translations.
    text
        File of text, for a language model.
    task
        A task made by rule: held-out examples of it.
    examples
        How many of these.
    beams
        How many candidates go on side by side; 1 is greedy.
    penalty
        Above 0 favours long translations, below 0 short ones.
    tokenize
        How sacreBLEU cuts texts into words: 13a, zh, ja-mecab, char, ...
    seed
        Of the task's examples.
    precision
        What is computed in.
    device
        cpu, cuda, ...; the GPU if there is one.
    json
        One compact object.
    """
    from heedful.cli.load import loaded
    from heedful.train.evaluation import evaluate

    if sum(given is not None for given in (source, text, task)) != 1:
        raise UsageError("measure on what? give --source and --target, or --text, or --task")
    report = evaluate(
        loaded(model, device),
        source=source,
        target=target,
        text=text,
        task=task,
        examples=examples,
        beams=beams,
        penalty=penalty,
        tokenize=tokenize,
        seed=seed,
        precision=precision,
    )
    if json:
        print(writer.dumps(report))
        return
    for name, value in report.items():
        print(f"{name:<18}{value:,.4f}" if isinstance(value, float) else f"{name:<18}{value}")
