"""heedful schedule, heedful recipes, heedful explain."""

import inspect
import json as writer
import shutil
import textwrap
from typing import Any

from heedful.cli.app import command
from heedful.cli.settings import Flag, trainings, unknown
from heedful.train.config import checked
from heedful.train.schedule import SCHEDULES, schedule

# What a step, or a restart, multiplies by if nothing is said.
FACTORS = {"steps": 0.5, "exponential": 0.995, "restarts": 1.0}


@command(
    "schedule",
    """\
  heedful schedule noam --width 512 --warmup 4000 --steps 20000
  heedful schedule cosine cycles restarts --every 250   # several at once
  heedful schedule steps --every 300 --factor 0.5 --rate 0.1
""",
)
def schedule_(
    *names: str,
    steps: int = 1000,
    rate: float | None = None,
    warmup: int | None = None,
    width: int = 512,
    floor: float = 0.0,
    every: int | None = None,
    factor: float | None = None,
    json: Flag = False,
) -> None:
    """Draw how learning rates go, one or several.

    Parameters
    ----------
    names
        noam, inverse-root, constant, linear, cosine, cycles, restarts, steps, exponential; all if not given.
    steps
        Updates of the run.
    rate
        The highest rate; 1e-3 if not given, and the paper's for noam.
    warmup
        Updates until the highest rate; a tenth of the steps if not given.
    width
        Of the model, for noam.
    floor
        Where the rate ends, for the schedules that fall to an end.
    every
        Updates of a cycle or step; a quarter of the run if not given.
    factor
        What a step multiplies the rate by, or a restart its length.
    json
        One object a line: name, step, rate.
    """
    for name in names:
        if name not in SCHEDULES:
            raise unknown("schedule", name, SCHEDULES)
    takes = {name: inspect.signature(SCHEDULES[name]).parameters for name in names or SCHEDULES}
    said: dict[str, Any] = {"floor": floor, "every": every, "factor": factor}
    curves = {}
    for name, known in takes.items():
        settings = {
            setting: value
            for setting, value in said.items()
            # Each takes what it knows; what none of them knows, the first one complains of.
            if value is not None and (setting in known or not any(setting in others for others in takes.values()))
        }
        if "every" in known:
            settings.setdefault("every", max(steps // 4, 1))
        if name in FACTORS:
            settings.setdefault("factor", FACTORS[name])
        peak = 1e-3 if rate is None and name != "noam" else rate
        first = max(steps // 10, 1) if warmup is None else warmup
        made = schedule(name, peak=peak, warmup=first, steps=steps, width=width, **settings)
        curves[name] = range(1, steps + 1), [made(step) for step in range(1, steps + 1)]
    if json:
        for name, (xs, ys) in curves.items():
            for step, value in zip(xs, ys, strict=True):
                print(writer.dumps({"name": name, "step": step, "rate": value}))
        return
    from heedful.train.curves import draw

    print(draw(curves, title="learning rate", width=max(30, min(100, shutil.get_terminal_size().columns))))


@command(
    "recipes",
    """\
  heedful recipes                  # the models, and ready trainings
  heedful recipes gpt              # one model's arguments
  heedful recipes number-words     # one training's settings
""",
)
def recipes(name: str | None = None, /, *, json: Flag = False) -> None:
    """List the models that can be built, and the trainings that come with heedful.

    Parameters
    ----------
    name
        A model: its arguments, with what they are if not given. Or a training: its file.
    json
        One compact object.
    """
    from heedful.models import RECIPES

    files = trainings()
    if name is not None and name not in {**RECIPES, **files}:
        raise unknown("model or training", name, [*RECIPES, *files])
    arguments = {
        model: {
            p.name: None if p.default is p.empty else p.default for p in inspect.signature(build).parameters.values()
        }
        for model, build in RECIPES.items()
        if name in (None, model)
    }
    if json:
        settings = {training: checked(path) for training, path in files.items() if name in (None, training)}
        print(writer.dumps({"recipes": arguments, "trainings": settings}))
    elif name in files:
        print(files[name].read_text(encoding="utf-8"), end="")
    elif name is not None:
        for argument, default in arguments[name].items():
            print(f"--model.{argument:<20}{writer.dumps(default)}")
        print(f"\n{inspect.getdoc(RECIPES[name])}")
    else:
        models = {model: (inspect.getdoc(build) or "").splitlines()[0] for model, build in RECIPES.items()}
        heads = {path.stem: path.read_text(encoding="utf-8").splitlines()[0] for path in files.values()}
        _list("Models, for --recipe:", models)
        print()
        _list("Trainings, for -c:", {training: head.removeprefix("# ") for training, head in heads.items()})


def _list(title: str, entries: dict[str, str]) -> None:
    print(title)
    width = shutil.get_terminal_size().columns
    for name, says in entries.items():
        print(textwrap.fill(says, width, initial_indent=f"  {name:<14}", subsequent_indent=" " * 16))


@command(
    "explain",
    """\
  heedful explain --example self-attention   # every number of one
  heedful explain                            # which examples there are
""",
)
def explain(example: str | None = None) -> None:
    """Show a computation step by step: formula, exact numbers, and the study notes' beside them.

    Parameters
    ----------
    example
        A worked example of the study notes, by name.
    """
    from rich.console import Console

    from heedful.explain import EXAMPLES, show

    if example is None:
        for name, known in EXAMPLES.items():
            print(f"{name}    {known.title} ({known.place})")
        return
    if example not in EXAMPLES:
        raise unknown("example", example, EXAMPLES)
    show(EXAMPLES[example], Console())
