"""All that stands before the first step: settings resolved, the run's folder, texts, tokenizer, model, rate."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import inspect
import json
import os
import platform
import subprocess
import sys
import types
import typing
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from heedful import __version__, disk
from heedful.data import text
from heedful.data.vectors import into
from heedful.known import unknown
from heedful.model import EncoderDecoder, Shell
from heedful.models import RECIPES
from heedful.train import material
from heedful.train.checkpoint import Run, State, resume
from heedful.train.config import OF_THE_CALL, Config, from_toml, to_toml
from heedful.train.material import Material
from heedful.train.optimizer import optimizer
from heedful.train.parallel import Group
from heedful.train.report import Report
from heedful.train.schedule import Schedule, schedule
from heedful.train.score import score

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.processors import PostProcessor

# Sizes that learn something in minutes on two cores. The recipes' own are those of the papers.
_TRANSLATOR = {"width": 256, "depth": 3, "heads": 4, "inner": 1024}
SIZES: dict[str, dict[str, Any]] = {
    "transformer": _TRANSLATOR,
    "marian": _TRANSLATOR,
    "gpt": {"width": 256, "depth": 4, "heads": 4},
    "llama": {"width": 256, "depth": 4, "heads": 4, "inner": 704},
}

# What may change when a run goes on, for it does not change what was learned so far.
FREE = (
    *OF_THE_CALL,
    *("steps", "accumulate", "workers", "compile"),
    *("evaluate_every", "translate", "patience", "save_every", "keep", "tensorboard"),
)

# What a run decides for itself where nothing is said; going on, it has decided.
DECIDED = ("recipe", "decay", "rate", "warmup", "precision", "compile")


def resolved(config: Config, device: torch.device) -> Config:
    """Every setting that depends on others or on the machine, decided."""
    translates = config.text is None
    recipe = config.recipe or ("marian" if translates else "gpt")
    if recipe not in RECIPES:
        raise ValueError(unknown("recipe", recipe, RECIPES))
    for name in ("steps", "batch", "accumulate", "longest", "keep"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)}: give 1 or more")
    for name in ("seed", "pack", "clip", "workers", "evaluate_every", "save_every", "translate", "patience"):
        if (getattr(config, name) or 0) < 0:
            raise ValueError(f"{name}={getattr(config, name)}: give 0 or more")
    if not 0 <= config.smoothing < 1:
        raise ValueError(f"smoothing={config.smoothing}: a share from 0 to below 1; the paper's is 0.1")
    if config.fixed_vectors and config.vectors is None:
        raise ValueError("fixed_vectors=true, but there are no vectors: give a file of them")
    if config.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ValueError("tensorboard=true, but TensorBoard is not installed: pip install 'heedful[tensorboard]'")
    if config.precision not in ("fp32", "bf16", "auto"):
        raise ValueError(f'precision="{config.precision}"; there are fp32, bf16 and auto')
    if config.compile not in ("yes", "no", "auto"):
        raise ValueError(f'compile="{config.compile}"; it is yes, no or auto')
    if config.resume not in (None, "auto"):
        raise ValueError(f'resume="{config.resume}": give auto, or leave it out')
    every = config.evaluate_every or max(1, config.steps // 10)
    running = config.text is not None and material.runs_on(config.text)
    made = dataclasses.replace(
        config,
        recipe=recipe,
        model=_arguments(recipe, config),
        # In Adam decay is a part of the gradient, whose size it then decides: 0.01 keeps a model from learning.
        decay=(0.01 if config.optimizer == "adamw" else 0.0) if config.decay is None else config.decay,
        warmup=min(4000, max(1, config.steps // 10)) if config.warmup is None else config.warmup,
        rate=1e-3 if config.rate is None and config.schedule != "noam" else config.rate,
        precision=("bf16" if _computes_bf16(device) else "fp32") if config.precision == "auto" else config.precision,
        compile=("yes" if device.type == "cuda" and (config.pack != 0 or running) else "no")
        if config.compile == "auto"
        else config.compile,
        evaluate_every=every,
        save_every=config.save_every or every,
    )
    for name in ("source", "target", "text", "valid_source", "valid_target", "valid_text", "vectors"):
        if getattr(made, name) is not None:
            # In full, for the run may go on from another folder.
            setattr(made, name, str((Path(config.data) / getattr(made, name)).resolve()))
    # These say what is wrong with them, before anything is read.
    schedule_of(made)
    optimizer(nn.Linear(1, 1), made.optimizer, decay=made.decay or 0.0)
    score(["a"], ["a"], made.tokenize)
    with torch.device("meta"):
        _check_learns(made, RECIPES[recipe](**{"vocab": 8, **made.model}))
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
    read = {name: _value(name, value) for name, value in config.model.items()}
    for name, value in read.items():
        _check_kind(recipe, name, value, takes[name].annotation)
    given = SIZES.get(recipe, {}) | read
    if "context" in takes:
        # The padding of a packed row has positions, too.
        given.setdefault("context", max(material.rounded(config.longest), config.pack or 0))
    return given


def _check_kind(recipe: str, name: str, value: object, annotation: Any) -> None:
    """An argument is what the recipe's signature says; whole numbers count something, so there is one at least."""
    kinds = {typing.get_origin(kind) or kind for kind in typing.get_args(annotation) or (annotation,)}
    given = type(value)
    fits = given in kinds or (given is int and float in kinds) or (given is dict and Mapping in kinds)
    if not fits:
        wanted = " or ".join(sorted("nothing" if kind is types.NoneType else kind.__name__ for kind in kinds))
        raise ValueError(f"model.{name}={value!r}: {recipe} takes {wanted}")
    if given is int and int in kinds and isinstance(value, int) and value < 1:
        raise ValueError(f"model.{name}={value}: give 1 or more")


def _value(name: str, value: object) -> object:
    """A flag's text as what it says: a number, true, null, a list; else the text itself."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            return value
    try:
        # As it comes back from a file, where a tuple is a list.
        return json.loads(json.dumps(value))
    except TypeError as error:
        raise ValueError(f"model.{name}={value!r}: give a plain value: {error}") from None


def prepared(config: Config, group: Group, report: Report) -> tuple[Config, Run, Tokenizer, Material]:
    """The settings resolved, the folder begun or found again, the tokenizer, and the texts in batches."""
    if config.out is None:
        raise ValueError("where to? give a folder for the run: --out RUN")
    run = Run(Path(config.out))
    written = run.folder / "config.toml"
    before = from_toml(written) if config.resume == "auto" and written.exists() else None
    if before is None:
        config = resolved(config, group.device)
    else:
        config = resolved(_decided(config, before), group.device)
        _check_same(config, before, run.folder)
    if group.first:
        _check_place(run, going_on=before is not None)
    texts = material.read(config)
    made = run.folder / "tokenizer.json"
    with group.in_turn():
        if group.first and (before is None or not made.exists()):
            tokenizer = material.tokenizer_of(config, texts)
            tokenizer.post_processor = _beginning(config, tokenizer)
            run.checkpoints.mkdir(parents=True, exist_ok=True)
            disk.put(made, tokenizer.to_str(pretty=True))
    tokenizer = text.loaded(made)
    # On an accelerator each new shape costs; on a CPU padding does.
    grid = 1 if group.device.type == "cpu" else 8
    ready = material.prepare(config, texts, tokenizer, grid)
    if group.first:
        run.tidy()
        disk.put(written, to_toml(_of_the_run(config)))
        disk.put(run.folder / "env.json", json.dumps(_environment(config, group), indent=2) + "\n")
    for line in [*ready.said, f"tokenizer: {config.tokenizer}, {tokenizer.get_vocab_size():,} entries"]:
        report.say(line)
    return config, run, tokenizer, ready


def _check_place(run: Run, *, going_on: bool) -> None:
    """A run begins in a folder of its own; one that never came to a checkpoint may be begun again."""
    stands = next(path for path in (run.folder, *run.folder.absolute().parents) if path.exists())
    if not stands.is_dir():
        raise ValueError(f"{stands} is a file, so {run.folder} cannot be a run's folder: choose another --out")
    if not os.access(stands, os.W_OK):
        raise ValueError(f"{run.folder} cannot be written: you may not write to {stands}; choose another --out")
    if going_on:
        return
    if run.steps():
        raise ValueError(f"{run.folder} holds a run already: go on with --resume auto, or choose another --out")
    ours = {"config.toml", "env.json", "metrics.jsonl", "tokenizer.json", "checkpoints", "tensorboard"}
    there = {path.name for path in run.folder.iterdir()} if run.folder.exists() else set()
    others = sorted(there - ours - {f".{name}.new" for name in ours})
    if others:
        raise ValueError(f"{run.folder} is not empty ({', '.join(others[:5])}): choose another --out")


def _begins(config: Config) -> bool:
    """Whether the model has seen each text begin with a start token; in a running text it has seen none."""
    return config.text is not None and not material.runs_on(config.text)


def _beginning(config: Config, tokenizer: Tokenizer) -> PostProcessor:
    """What a tokenizer puts around a text that is to be used: the same as in training, whatever it did before."""
    from tokenizers.processors import TemplateProcessing

    start = (text.START, text.special_ids(tokenizer)["start"])
    return TemplateProcessing(single=f"{text.START} $A" if _begins(config) else "$A", special_tokens=[start])


def _decided(config: Config, before: Config) -> Config:
    unset = [name for name in DECIDED if getattr(config, name) == getattr(Config(), name)]
    return dataclasses.replace(config, **{name: getattr(before, name) for name in unset})


def _of_the_run(config: Config) -> Config:
    return dataclasses.replace(config, out=None, resume=None, device=None)


def _check_same(config: Config, before: Config, folder: Path) -> None:
    """Going on with other settings would be another run under the same name."""
    now, then = dataclasses.asdict(config), dataclasses.asdict(before)
    other = [name for name in now if name not in FREE and now[name] != then[name]]
    if other:
        said = ", ".join(f"{name} was {then[name]!r} and is {now[name]!r}" for name in other)
        raise ValueError(f"{folder} was begun with other settings: {said}. Give the same ones, or another --out")


def _environment(config: Config, group: Group) -> dict[str, object]:
    names = ("torch", "tokenizers", "safetensors", "numpy", "sacrebleu")
    heedful = {"python": platform.python_version(), "heedful": __version__}
    root = Path(__file__).parents[2]
    asked = ["git", "-C", str(root), "rev-parse", "HEAD"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False) if (root / ".git").exists() else None
    return {
        "command": sys.argv,
        "seed": config.seed,
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
    model.tokenizer, model.generation = tokenizer, dict(text.special_ids(tokenizer))
    if _begins(config):
        model.generation["begin"] = model.generation["start"]
    if config.vectors is not None:
        tables = [part for part in model.modules() if isinstance(part, nn.Embedding)]
        report.say(str(into(tables[0], tokenizer.get_vocab(), config.vectors)))
        tables[0].requires_grad_(not config.fixed_vectors)
    return model


def _check_learns(config: Config, model: Shell) -> None:
    if isinstance(model, EncoderDecoder) != (config.text is None):
        learns, fits = ("pairs", "marian") if config.text is None else ("a text", "gpt")
        raise ValueError(f"{config.recipe} does not learn from {learns}; try --recipe {fits}")


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


def resumed(run: Run, config: Config, model: Shell, learner: Optimizer, group: Group, report: Report) -> State:
    """Where the run stands: at its latest whole checkpoint, or at the beginning."""
    if config.resume is None:
        return State()
    damages = []
    with group.in_turn():
        for folder, damage in run.whole():
            if damage is None:
                state = resume(folder, model, learner)
                if group.first:
                    run.go_back(state)
                report.say(f"going on from step {state.step:,}")
                return state
            damages.append(damage)
            report.say(f"{damage}. Going back to the checkpoint before it")
    if damages:
        raise ValueError(f"no checkpoint in {run.checkpoints} is whole: begin again, with another --out")
    report.say("no checkpoint to go on from: beginning at step 1")
    return State()
