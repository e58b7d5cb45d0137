"""What a person sees while a model trains: one line that moves in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from rich.console import Console
from rich.live import Live
from rich.text import Text
from torch import nn

from heedful.train.checkpoint import State, read_metrics
from heedful.train.config import Config
from heedful.train.curves import draw

# Seconds between two lines where no terminal can show one that moves.
PAUSE = 10.0


class Report:
    """Says on stderr how a training goes; nothing if it is not to `show`."""

    def __init__(self, show: bool = True) -> None:
        self.console = Console(stderr=True, quiet=not show, highlight=False)
        # A line that moves needs a terminal, and one that is told to move it.
        plain = self.console.quiet or self.console.no_color or self.console.is_dumb_terminal
        self.moves = sys.stderr.isatty() and not plain
        self.live: Live | None = None
        self.steps, self.said = 0, 0.0
        # The first step, and when it was over: it takes longer than those after it.
        self.first: tuple[int, float] | None = None

    def say(self, line: str) -> None:
        self.console.print(Text(line), soft_wrap=True)

    def begin(self, config: Config, model: nn.Module, device: torch.device, state: State) -> None:
        parameters = sum(p.numel() for p in model.parameters())
        settings = " ".join(f"{name}={value}" for name, value in config.model.items())
        self.say(
            f"{config.recipe} {settings}: {parameters:,} parameters, {config.precision} on {device}, seed {config.seed}"
        )
        left = max(config.steps - state.step, 0)
        self.say(f"{left:,} updates of {config.batch:,} tokens, {config.schedule} up to {config.rate}")
        self.steps, self.said = config.steps, time.monotonic()
        if self.moves:
            self.live = Live(console=self.console, refresh_per_second=4, transient=True)
            self.live.start()

    def step(self, line: Mapping[str, float], state: State, took: float) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first = state.step, now
        # All that a step comes to, with measuring and saving.
        done = state.step - self.first[0]
        left = (self.steps - state.step) * ((now - self.first[1]) / done if done else took)
        text = (
            f"step {state.step:,}/{self.steps:,} · {clock(left)} left · loss {line['loss']:.3f} · "
            f"{line['tokens_per_s']:,.0f} tokens/s · lr {line['lr']:.1e} · norm {line['grad_norm']:.2f} · {memory()}"
        )
        if "valid_loss" in line:
            self.say(f"step {state.step:,}: {measured(line)}")
        if self.live is not None:
            self.live.update(Text(text, no_wrap=True, overflow="ellipsis"))
        elif now - self.said > PAUSE:
            self.said = now
            self.say(text)

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *error: object) -> None:
        """The line that moves goes; what was said stays."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def end(self, folder: Path, state: State) -> None:
        self.__exit__()
        lines = read_metrics(folder)
        if self.console.is_terminal and len(lines) > 1:
            series = {"loss": ([line["step"] for line in lines], [line["loss"] for line in lines])}
            held = [line for line in lines if "valid_loss" in line]
            if len(held) > 1:
                series["held out"] = [line["step"] for line in held], [line["valid_loss"] for line in held]
            self.say(draw(series, title="loss", width=max(40, min(100, self.console.width))))
        self.say(f"{state.step:,} updates, {state.tokens:,} tokens, {clock(state.seconds)} of training; in {folder}")


def measured(line: Mapping[str, float]) -> str:
    """A measurement in words."""
    said = f"held out: loss {line['valid_loss']:.4f}, perplexity {line['perplexity']:.2f}"
    if "chrf" in line:
        said += f"; greedy: chrF {line['chrf']:.1f}, BLEU {line['bleu']:.1f}, exactly right {line['exact_match']:.1%}"
    return said


def memory() -> str:
    """The most that was held so far."""
    if torch.cuda.is_available():
        return f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"
    unit = 1 if sys.platform == "darwin" else 1024
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30:.1f} GiB"


def clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
