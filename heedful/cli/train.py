"""heedful train, heedful average."""

import dataclasses
import json as writer
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from heedful.cli.app import command
from heedful.cli.settings import Flag, UsageError, file_of
from heedful.train.config import Config, checked, to_toml


@command(
    "train",
    """\
  heedful train --source a.en --target a.de --out RUN               a translator, from two files
  heedful train --source a.en --target a.de --out RUN --steps 500 --seed 3
  heedful train --recipe gpt --text a.txt --out RUN                 a language model
  heedful train --task numbers-en-fr --out RUN --model.width 128    a task made by rule, a model of another size
  heedful train -c multi30k --data FOLDER --out RUN                 a training that comes with heedful
  heedful train --out RUN --resume auto                             go on where it stopped
  torchrun --nproc-per-node 2 -m heedful train ...                  in several processes
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
        A file of settings (TOML), or the name of a training that comes with heedful. Flags win over it.
    print_config
        Print the settings as such a file, and do nothing else.
    json
        Print one compact object at the end.
    """
    settings = settings or Config()
    path = file_of(config, settings.resume, settings.out)
    if path is not None:
        settings = dataclasses.replace(settings, model={**checked(path).get("model", {}), **settings.model})
    if print_config:
        print(to_toml(settings), end="")
        return
    from heedful.train.loop import train

    outcome = train(settings)
    if json:
        state = outcome.state
        made = {"run": str(outcome.folder), "steps": state.step, "tokens": state.tokens}
        print(writer.dumps({**made, "seconds": round(state.seconds, 2), "best_step": state.best_step}))


@command(
    "average",
    """\
  heedful average RUN OUT             the latest 5 checkpoints of a run
  heedful average RUN OUT --last 10
""",
)
def average(run: Path, out: Path, *, last: int = 5) -> None:
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
    folders = [Run(run).checkpoint(step) for step in Run(run).steps()[:last]]
    if len(folders) < last:
        raise ValueError(f"{run} has {len(folders)} checkpoints, not {last}; train with --keep {last}")
    save(averaged(folders), out)
    print(out)
