"""heedful schedule, heedful recipes, heedful explain."""

import inspect
import json as writer

from rich.console import Console

from heedful.cli.app import command
from heedful.cli.settings import Flag, UsageError, trainings

# What a step, or a restart, multiplies by if nothing is said.
FACTORS = {"steps": 0.5, "exponential": 0.995, "restarts": 1.0}


@command(
    "schedule",
    """\
  heedful schedule noam --width 512 --warmup 4000 --steps 20000
  heedful schedule cosine cycles restarts --every 250         several at once
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
    from heedful.train.curves import draw
    from heedful.train.schedule import SCHEDULES, schedule

    curves = {}
    for name in names or SCHEDULES:
        takes = inspect.signature(SCHEDULES[name]).parameters if name in SCHEDULES else {}
        alone = len(names) == 1
        made = schedule(
            name,
            peak=1e-3 if rate is None and name != "noam" else rate,
            warmup=steps // 10 if warmup is None else warmup,
            steps=steps,
            width=width,
            # Of several, each takes what it knows.
            floor=floor if alone or "floor" in takes else 0.0,
            every=(every or steps // 4) if "every" in takes else every if alone else None,
            factor=(factor or FACTORS[name]) if "factor" in takes else factor if alone else None,
        )
        curves[name] = range(1, steps + 1), [made(step) for step in range(1, steps + 1)]
    if json:
        for name, (xs, ys) in curves.items():
            for step, value in zip(xs, ys, strict=True):
                print(writer.dumps({"name": name, "step": step, "rate": value}))
        return
    print(draw(curves, title="learning rate", width=min(100, Console().width)))


@command(
    "recipes",
    """\
  heedful recipes          which models can be built, and which trainings come with heedful
  heedful recipes gpt      one model's arguments
""",
)
def recipes(name: str | None = None, *, json: Flag = False) -> None:
    """List the models that can be built, and the trainings that come with heedful.

    Parameters
    ----------
    name
        A model: its arguments, with what they are if not given. Or a training: its file.
    json
        One compact object.
    """
    from heedful.models import RECIPES

    files = {path.stem: path for path in trainings()}
    if name in files:
        print(files[name].read_text(encoding="utf-8"), end="")
        return
    if name is not None and name not in RECIPES:
        raise UsageError(f'no model or training "{name}"; there are {", ".join([*RECIPES, *files])}')
    if json:
        arguments = {
            model: {
                p.name: None if p.default is p.empty else p.default
                for p in inspect.signature(build).parameters.values()
            }
            for model, build in RECIPES.items()
            if name in (None, model)
        }
        print(writer.dumps({"recipes": arguments, "trainings": list(files)}))
        return
    if name is not None:
        build = RECIPES[name]
        for parameter in inspect.signature(build).parameters.values():
            print(
                f"--model.{parameter.name:<20}",
                "" if parameter.default is parameter.empty else writer.dumps(parameter.default),
            )
        print(f"\n{inspect.getdoc(build)}")
        return
    print("Models, for --recipe:")
    for model, build in RECIPES.items():
        print(f"  {model:<20}{(inspect.getdoc(build) or '').splitlines()[0]}")
    print("\nTrainings, for -c:")
    for training, path in files.items():
        print(f"  {training:<20}{path.read_text(encoding='utf-8').splitlines()[0].removeprefix('# ')}")


@command(
    "explain",
    """\
  heedful explain --example self-attention    two words, one head, every number
  heedful explain                             which examples there are
""",
)
def explain(*, example: str | None = None) -> None:
    """Show a computation step by step: formula, exact numbers, and the study notes' beside them.

    Parameters
    ----------
    example
        A worked example of the study notes, by name.
    """
    from heedful.explain import EXAMPLES, show

    console = Console()
    if example is None:
        for name, known in EXAMPLES.items():
            console.print(f"{name}    {known.title} ({known.place})", highlight=False)
        return
    if example not in EXAMPLES:
        raise UsageError(f'no example "{example}"; there are: {", ".join(EXAMPLES)}')
    show(EXAMPLES[example], console)
