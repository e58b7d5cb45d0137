"""heedful train, heedful average."""

import dataclasses
import json as writer
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from heedful.cli.app import command
from heedful.cli.settings import Flag, UsageError, file_of
from heedful.train.config import Config, checked, to_toml


@command(
    "train",
    """\
  heedful train --source a.en --target a.de --out RUN      # a translator
  heedful train --source a.en --target a.de --out RUN --steps 500 --seed 3
  heedful train --recipe gpt --text a.txt --out RUN        # a language model
  heedful train --task numbers-en-fr --out RUN             # data made by rule
  heedful train --task sort --out RUN --model.width 128    # a smaller model
  heedful train -c multi30k --data FOLDER --out RUN        # ready settings
  heedful train --out RUN --resume auto                    # go on with a run
  torchrun --nproc-per-node 2 -m heedful train ...         # two processes
""",
)
def train_(
    *,
    settings: Annotated[Config | None, Parameter(name="*")] = None,
    config: Annotated[str | None, Parameter(name=("--config", "-c"))] = None,
    print_config: Flag = False,
    json: Flag = False,
) -> None:
    """Train a translator or a language model.

    Parameters
    ----------
    config
        A file of settings (TOML), or a training that comes with heedful. Flags win; --task none takes its task back.
    print_config
        Print the settings as such a file, and do nothing else.
    json
        Print one compact object at the end.
    """
    settings = settings or Config()
    path = file_of(config, settings.resume, settings.out)
    model = {} if path is None else checked(path).get("model", {})
    for name, text in settings.model.items():
        model[name.replace("-", "_")] = _value(text)
    settings = dataclasses.replace(settings, model=model)
    if print_config:
        print(to_toml(settings), end="")
        return
    if settings.out is None:
        raise UsageError("where to? give a folder for the run: --out RUN")
    from heedful.model import EncoderDecoder
    from heedful.train.loop import train

    outcome = train(settings)
    if os.environ.get("RANK", "0") != "0":
        # Of many processes, the first one speaks.
        return
    if json:
        state = outcome.state
        made = {"run": str(outcome.folder), "steps": state.step, "tokens": state.tokens}
        print(writer.dumps({**made, "seconds": round(state.seconds, 2), "best_step": state.best_step}))
        return
    verb = "translate" if isinstance(outcome.model, EncoderDecoder) else "generate"
    print(f'use it: heedful {verb} {shlex.quote(str(outcome.folder))} "..."', file=sys.stderr)


def _value(text: str) -> object:
    """What a flag's text says: a number, true, null, a list; else the text itself."""
    try:
        return writer.loads(text)
    except writer.JSONDecodeError:
        return text


@command(
    "average",
    """\
  heedful average RUN AVERAGED             # the latest 3 checkpoints of a run
  heedful average RUN AVERAGED --last 10   # of one trained with --keep 10
""",
)
def average(run: Path, out: Path, /, *, last: int = 3) -> None:
    """Average the weights of a run's latest checkpoints into one model.

    Parameters
    ----------
    run
        Folder of the run.
    out
        Folder of the new model.
    last
        How many checkpoints, the latest first.
    """
    from heedful.folder import save
    from heedful.train.checkpoint import Run, averaged

    if last < 1:
        raise UsageError(f"--last {last}: give 1 or more")
    steps = Run(run).steps()
    if not steps:
        raise ValueError(f"{run} is not a run's folder: it has no checkpoints/step-...")
    if len(steps) < last:
        raise ValueError(f"{run} has {len(steps)} checkpoints: give --last {len(steps)}, or train with --keep {last}")
    save(averaged([Run(run).checkpoint(step) for step in steps[:last]]), out)
    print(out)
