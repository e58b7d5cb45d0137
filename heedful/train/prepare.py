"""All that stands before the first step: settings resolved, the run's folder, texts, tokenizer, model, rate."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from heedful import __version__
from heedful.data import text
from heedful.data.vectors import into
from heedful.model import EncoderDecoder, Shell
from heedful.models import RECIPES
from heedful.train import material
from heedful.train.checkpoint import Run, State, resume
from heedful.train.config import OF_THE_CALL, Config, from_toml, to_toml
from heedful.train.material import Material
from heedful.train.parallel import Group
from heedful.train.report import Report
from heedful.train.schedule import Schedule, schedule

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Sizes that learn something in minutes on two cores. The recipes' own are those of the papers.
_TRANSLATOR = {"width": 256, "depth": 3, "heads": 4, "inner": 1024}
SIZES: dict[str, dict[str, Any]] = {
    "transformer": _TRANSLATOR,
    "marian": _TRANSLATOR,
    "gpt": {"width": 256, "depth": 4, "heads": 4},
    "llama": {"width": 256, "depth": 4, "heads": 4, "inner": 704},
}

# What may change when a run goes on, for it does not change what was learned so far.
FREE = (*OF_THE_CALL, "steps", "accumulate", "workers", "translate", "patience", "keep", "tensorboard", "compile")


def resolved(config: Config, device: torch.device) -> Config:
    """Every setting that depends on others or on the machine, decided."""
    translates = config.text is None
    recipe = config.recipe or ("marian" if translates else "gpt")
    if recipe not in RECIPES:
        near = difflib.get_close_matches(recipe, RECIPES, n=1)
        raise ValueError(
            f'no recipe "{recipe}"; there are {", ".join(RECIPES)}' + (f'; did you mean "{near[0]}"?' if near else "")
        )
    for name in ("steps", "batch", "accumulate", "longest", "keep"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)}: give 1 or more")
    if config.precision not in ("fp32", "bf16", "auto"):
        raise ValueError(f'precision="{config.precision}"; there are fp32, bf16 and auto')
    if config.compile not in ("yes", "no", "auto"):
        raise ValueError(f'compile="{config.compile}"; it is yes, no or auto')
    if config.resume not in (None, "auto"):
        raise ValueError(f'resume="{config.resume}": give auto, or leave it out')
    if config.out is None:
        raise ValueError("where to? give a folder for the run: --out RUN")
    every = config.evaluate_every or max(1, config.steps // 10)
    made = dataclasses.replace(
        config,
        recipe=recipe,
        model=_arguments(recipe, config),
        # In Adam decay is a part of the gradient, whose size it then decides: 0.01 keeps a model from learning.
        decay=(0.01 if config.optimizer == "adamw" else 0.0) if config.decay is None else config.decay,
        warmup=min(4000, config.steps // 10) if config.warmup is None else config.warmup,
        rate=1e-3 if config.rate is None and config.schedule != "noam" else config.rate,
        precision=("bf16" if _computes_bf16(device) else "fp32") if config.precision == "auto" else config.precision,
        compile=("yes" if device.type == "cuda" and (config.pack or not translates) else "no")
        if config.compile == "auto"
        else config.compile,
        evaluate_every=every,
        save_every=config.save_every or every,
    )
    for name in ("source", "target", "text", "valid_source", "valid_target", "valid_text", "vectors"):
        if getattr(made, name) is not None:
            # In full, for the run may go on from another folder.
            setattr(made, name, str((Path(config.data) / getattr(made, name)).resolve()))
    schedule_of(made)  # says what is wrong with it, before anything is read
    return dataclasses.replace(made, data=".")


def _computes_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()


def _arguments(recipe: str, config: Config) -> dict[str, Any]:
    """The recipe's arguments: those given, and sizes for what is not."""
    takes = inspect.signature(RECIPES[recipe]).parameters
    for name in config.model:
        if name not in takes:
            near = difflib.get_close_matches(name, takes, n=1)
            raise ValueError(
                f'{recipe} has no argument "{name}"; it has {", ".join(takes)}'
                + (f'; did you mean "{near[0]}"?' if near else "")
            )
    read = {name: _value(value) for name, value in config.model.items()}
    given = SIZES.get(recipe, {}) | read
    if "context" in takes:
        given.setdefault("context", config.longest)
    return given


def _value(value: object) -> object:
    """A flag's text as what it says: a number, true, null, a list; else the text itself."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def prepared(config: Config, group: Group, report: Report) -> tuple[Config, Run, Tokenizer, Material]:
    """The settings resolved, the folder begun or found again, the tokenizer, and the texts in batches."""
    config = resolved(config, group.device)
    run = Run(Path(str(config.out)))
    going_on = config.resume == "auto" and (run.folder / "config.toml").exists()
    if going_on:
        _check_same(config, from_toml(run.folder / "config.toml"), run.folder)
    elif group.first:
        _check_free(run)
    texts = material.read(config)
    made = run.folder / "tokenizer.json"
    with group.in_turn():
        if not made.exists() and group.first:
            tokenizer = material.tokenizer_of(config, texts)
            run.checkpoints.mkdir(parents=True, exist_ok=True)
            beside = run.folder / ".tokenizer.json.new"
            tokenizer.save(str(beside))
            beside.replace(made)
    tokenizer = text.loaded(made)
    # On an accelerator each new shape costs; on a CPU padding does.
    grid = 1 if group.device.type == "cpu" else 8
    ready = material.prepare(config, texts, tokenizer, grid)
    if group.first:
        run.tidy()
        (run.folder / "config.toml").write_text(to_toml(_of_the_run(config)), encoding="utf-8")
        (run.folder / "env.json").write_text(json.dumps(_environment(group), indent=2) + "\n", encoding="utf-8")
    for line in [*ready.said, f"tokenizer: {config.tokenizer}, {tokenizer.get_vocab_size():,} entries"]:
        report.say(line)
    return config, run, tokenizer, ready


def _check_free(run: Run) -> None:
    """A run begins in a folder of its own; one that never came to a checkpoint may be begun again."""
    if run.steps():
        raise ValueError(f"{run.folder} holds a run already: go on with --resume auto, or choose another --out")
    ours = {"config.toml", "env.json", "metrics.jsonl", "tokenizer.json", "checkpoints"}
    others = sorted({path.name for path in run.folder.iterdir()} - ours) if run.folder.exists() else []
    if others:
        raise ValueError(f"{run.folder} is not empty ({', '.join(others[:5])}): choose another --out")


def _of_the_run(config: Config) -> Config:
    return dataclasses.replace(config, out=None, resume=None, device=None)


def _check_same(config: Config, before: Config, folder: Path) -> None:
    """Going on with other settings would be another run under the same name."""
    now, then = dataclasses.asdict(config), dataclasses.asdict(before)
    other = [name for name in now if name not in FREE and now[name] != then[name]]
    if other:
        said = ", ".join(f"{name} was {then[name]!r} and is {now[name]!r}" for name in other)
        raise ValueError(f"{folder} was begun with other settings: {said}. Give the same ones, or another --out")


def _environment(group: Group) -> dict[str, object]:
    names = ("torch", "tokenizers", "safetensors", "numpy", "sacrebleu")
    heedful = {"python": platform.python_version(), "heedful": __version__}
    root = Path(__file__).parents[2]
    asked = ["git", "-C", str(root), "rev-parse", "HEAD"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False) if (root / ".git").exists() else None
    return {
        "command": sys.argv,
        "versions": heedful | {name: version(name) for name in names},
        "commit": found.stdout.strip() if found is not None and found.returncode == 0 else None,
        "platform": platform.platform(),
        "device": str(group.device),
        "processes": group.size,
        "threads": torch.get_num_threads(),
    }


def model_of(config: Config, tokenizer: Tokenizer, report: Report) -> Shell:
    """The recipe's model for this vocabulary, from the run's seed."""
    torch.manual_seed(config.seed)
    assert config.recipe is not None
    arguments = {"vocab": tokenizer.get_vocab_size(), **config.model}
    try:
        model = RECIPES[config.recipe](**arguments)
    except TypeError as error:
        raise ValueError(f"{config.recipe}: {error}") from None
    if isinstance(model, EncoderDecoder) != (config.text is None):
        learns, fits = ("pairs", "marian") if config.text is None else ("a text", "gpt")
        raise ValueError(f"{config.recipe} does not learn from {learns}; try --recipe {fits}")
    model.tokenizer, model.generation = tokenizer, dict(text.special_ids(tokenizer))
    if config.vectors is not None:
        tables = [part for part in model.modules() if isinstance(part, nn.Embedding)]
        report.say(str(into(tables[0], tokenizer.get_vocab(), config.vectors)))
        tables[0].requires_grad_(not config.fixed_vectors)
    return model


def schedule_of(config: Config) -> Schedule:
    assert config.warmup is not None
    width = config.model.get("width")
    return schedule(
        config.schedule,
        peak=config.rate,
        warmup=config.warmup,
        steps=config.steps,
        width=width,
        floor=config.floor,
        every=config.every,
        factor=config.factor,
    )


def compiled(config: Config, model: Shell) -> nn.Module:
    """The model as it is called: compiled where that was asked for. Its parameters are the same ones."""
    if config.compile != "yes":
        return model
    forward = torch.compile(model, dynamic=False)
    assert isinstance(forward, nn.Module)
    return forward


def resumed(run: Run, config: Config, model: Shell, learner: Optimizer, report: Report) -> State:
    """Where the run stands: at its latest whole checkpoint, or at the beginning."""
    if config.resume is None:
        return State()
    for folder, damage in run.whole():
        if damage is not None:
            report.say(f"{damage}. Going back to the checkpoint before it")
            continue
        state = resume(folder, model, learner)
        report.say(f"going on from step {state.step:,}")
        return state
    report.say("no checkpoint to go on from: beginning at step 1")
    return State()
