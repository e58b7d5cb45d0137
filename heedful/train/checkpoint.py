"""A run's folder, and the checkpoints in it.

    config.toml        the settings, resolved
    env.json           versions, seed, command
    metrics.jsonl      a line a step: the truth about the run
    tokenizer.json     trained or loaded once, before the first step
    checkpoints/step-00001000/
                       a model's folder, and what going on needs: optimizer.safetensors, trainer_state.json
    latest, best       links to checkpoints

A checkpoint is written beside and renamed, so a kill leaves the one before. `latest` moves only when it is whole.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from safetensors.torch import load_file, save_file
from torch.optim import Optimizer

from heedful import disk
from heedful.folder import contents, load
from heedful.model import Shell
from heedful.train.measure import Measured
from heedful.train.optimizer import optimizer_tensors, restore


@dataclass
class State:
    """Where a training stands: what there is beside weights and optimizer.

    step        updates made
    epoch       of the next batch
    position    of the next batch in its epoch
    tokens      real tokens learned from
    seconds     of training
    best        the best measurement so far, and its step
    worse       measurements since then
    """

    step: int = 0
    epoch: int = 0
    position: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_step: int = 0
    worse: int = 0

    def go_on(self, step: int, epoch: int, position: int, tokens: int, seconds: float) -> None:
        """An update was made."""
        self.step, self.epoch, self.position = step, epoch, position
        self.tokens, self.seconds = self.tokens + tokens, self.seconds + seconds

    def judge(self, measured: Measured | None) -> dict[str, float]:
        """Remember a measurement if it is the best; return it for metrics.jsonl."""
        if measured is None:
            return {}
        if self.best is None or measured.figure > self.best:
            self.best, self.best_step, self.worse = measured.figure, self.step, 0
        else:
            self.worse += 1
        return measured.line()


class Run:
    """The folder of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.checkpoints = folder, folder / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, the latest first."""
        found = (path.name.removeprefix("step-") for path in self.checkpoints.glob("step-*"))
        return sorted((int(name) for name in found if name.isdigit()), reverse=True)

    def save(self, model: Shell, optimizer: Optimizer, state: State, keep: int) -> None:
        """A checkpoint of this moment; the latest `keep` stay, and the best."""

        def write_optimizer(folder: Path) -> None:
            save_file(optimizer_tensors(model, optimizer), folder / "optimizer.safetensors")

        resume = disk.text("trainer_state.json", json.dumps(dataclasses.asdict(state), indent=2) + "\n")
        here = self.checkpoint(state.step)
        disk.write(here, [*contents(model), write_optimizer, resume])
        self.point("latest", here)
        if state.best_step == state.step:
            self.point("best", here)
        for step in self.steps()[keep:]:
            if step != state.best_step:
                shutil.rmtree(self.checkpoint(step))

    def point(self, name: str, to: Path) -> None:
        """Move a link, at once."""
        beside = self.folder / f".{name}.new"
        beside.unlink(missing_ok=True)
        beside.symlink_to(os.path.relpath(to, self.folder))
        os.replace(beside, self.folder / name)
        disk.fsync(self.folder)

    def whole(self) -> Iterator[tuple[Path, str | None]]:
        """Checkpoints, the latest first, each with what is wrong with it, if anything is."""
        for step in self.steps():
            folder = self.checkpoint(step)
            try:
                listed = disk.manifest(folder)
                if "trainer_state.json" not in listed:
                    raise ValueError(f"{folder}: its manifest.json is missing or damaged")
                disk.check(folder, listed)
            except (ValueError, OSError) as error:
                yield folder, str(error)
            else:
                yield folder, None

    def tidy(self) -> None:
        """Remove what a kill has left half-written."""
        for left in (*self.checkpoints.glob(".step-*"), *self.folder.glob(".*.new")):
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


def resume(folder: Path, model: Shell, optimizer: Optimizer) -> State:
    """Put a checkpoint's weights and optimizer into these, and say where it stood."""
    weights = load(folder)
    model.load_state_dict(weights.state_dict())
    restore(model, optimizer, load_file(folder / "optimizer.safetensors"))
    return State(**disk.json_object(folder / "trainer_state.json"))


def averaged(folders: Sequence[Path]) -> Shell:
    """One model of the mean weights of several checkpoints, summed in float64."""
    model, *others = (load(folder) for folder in folders)
    sums = {name: p.double() for name, p in model.named_parameters()}
    for other in others:
        if other.recipe != model.recipe:
            raise ValueError(f"{folders[0]} holds {model.recipe}, another {other.recipe}: average models of one kind")
        for name, p in other.named_parameters():
            sums[name] += p.double()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(sums[name] / len(folders))
    return model


class Metrics:
    """`metrics.jsonl`: a line a step. Going on from a checkpoint forgets what came after it."""

    def __init__(self, folder: Path, step: int, *, write: bool) -> None:
        self.file: TextIO | None = None
        if not write:
            return
        path = folder / "metrics.jsonl"
        kept = [line for line in read_metrics(folder) if line["step"] <= step]
        beside = path.with_name(f".{path.name}.new")
        beside.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        os.replace(beside, path)
        # A line is on its way as soon as it is written: who follows the file sees it.
        self.file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, line: Mapping[str, float]) -> None:
        if self.file is not None:
            self.file.write(json.dumps(line) + "\n")

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *error: object) -> None:
        if self.file is not None:
            self.file.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """A run's lines, as far as they are whole: a kill may cut the last one."""
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
