"""A run's folder, and the checkpoints in it.

    config.toml        the settings, resolved
    env.json           versions, seed, command
    metrics.jsonl      a line a step: the truth about the run
    tokenizer.json     trained or loaded once, before the first step
    checkpoints/step-00001000/
                       a model's folder, and what going on needs: optimizer.safetensors, trainer_state.json
    latest, best       links to checkpoints
    tensorboard/       the curves once more, if they were asked for

A checkpoint is written beside and renamed, so a kill leaves the one before. `latest` moves only when it is whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import Optimizer

from heedful import disk
from heedful.folder import contents, load, one_tensor, tensors_by_name
from heedful.model import Shell
from heedful.train.measure import Measured
from heedful.train.optimizer import optimizer_tensors, restore

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


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

        broken = not_finite(model)
        if broken is not None:
            raise ValueError(f"step {state.step}: the weights of {broken} are not finite, so they are not saved")
        resume = disk.text("trainer_state.json", json.dumps(dataclasses.asdict(state), indent=2) + "\n")
        here = self.checkpoint(state.step)
        try:
            disk.write(here, [*contents(model), write_optimizer, resume])
            self.point("latest", here)
            if state.best_step == state.step:
                self.point("best", here)
        except OSError as error:
            raise OSError(
                f"step {state.step} could not be saved: {error}. The checkpoints in {self.checkpoints} are whole; "
                f"make room, and go on with --resume auto"
            ) from None
        for step in self.steps()[keep:]:
            if step != state.best_step:
                self.remove(step)

    def remove(self, step: int) -> None:
        """A checkpoint, gone at once: what a kill leaves of it bears another name."""
        gone = self.checkpoints / f".step-{step:08d}.gone"
        os.replace(self.checkpoint(step), gone)
        shutil.rmtree(gone, ignore_errors=True)

    def go_back(self, state: State) -> None:
        """Make the checkpoint of `state` the latest: later ones are damaged, and a kill may have left links behind."""
        for step in self.steps():
            if step > state.step:
                self.remove(step)
        self.point("latest", self.checkpoint(state.step))
        if self.checkpoint(state.best_step).exists():
            self.point("best", self.checkpoint(state.best_step))
        else:
            (self.folder / "best").unlink(missing_ok=True)

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


def not_finite(model: nn.Module) -> str | None:
    """The name of the first weights that have an infinity or a NaN among them, if any have."""
    tensors = {name: one_tensor(places) for name, places in tensors_by_name(model).items()}
    return next((name for name, weights in tensors.items() if not weights.isfinite().all()), None)


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
    """`metrics.jsonl`: a line a step. Going on from a checkpoint forgets what came after it.

    tensorboard   copy each line for TensorBoard, too
    """

    def __init__(self, folder: Path, step: int, *, write: bool, tensorboard: bool = False) -> None:
        self.path = folder / "metrics.jsonl"
        self.file: TextIO | None = None
        self.board: SummaryWriter | None = None
        if not write:
            return
        kept = [line for line in read_metrics(folder) if line["step"] <= step]
        disk.put(self.path, "".join(json.dumps(line) + "\n" for line in kept))
        # A line is on its way as soon as it is written: who follows the file sees it.
        self.file = self.path.open("a", encoding="utf-8", buffering=1)
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, line: Mapping[str, float]) -> None:
        if self.file is None:
            return
        try:
            self.file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise OSError(f"{self.path} cannot be written: {error.strerror or error}") from None
        if self.board is not None:
            for name, value in line.items():
                if name != "step":
                    self.board.add_scalar(name, value, int(line["step"]))

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *error: object) -> None:
        if self.file is not None:
            # Each line was written when it came; a full disk has been told of by then.
            with contextlib.suppress(OSError):
                self.file.close()
        if self.board is not None:
            self.board.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """A run's lines, as far as they are whole: a kill may cut the last one."""
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
