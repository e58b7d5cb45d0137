"""The training: `train(config)`. Read it from top to bottom.

What it needs is made first: texts, tokenizer, model, optimizer, schedule. Then comes the loop, in one piece.

Everything that is random in a step is drawn from (seed, step, process), and the order of the data from (seed, epoch).
So a run that goes on from a checkpoint is the run that was never stopped.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from heedful.data.batch import Batch, Corpus, Rows
from heedful.model import Shell
from heedful.trace import listen
from heedful.train.checkpoint import Metrics, State
from heedful.train.config import Config
from heedful.train.measure import measure
from heedful.train.objective import surprise
from heedful.train.optimizer import clip, optimizer
from heedful.train.parallel import Group, joined
from heedful.train.prepare import compiled, model_of, prepared, resumed, schedule_of
from heedful.train.report import Report
from heedful.train.signals import Stopped, stopping


@dataclass(frozen=True)
class Outcome:
    """What a training comes to: the model as it is now, its run's folder, and where it stands."""

    model: Shell
    folder: Path
    state: State


def train(config: Config, report: Report | None = None) -> Outcome:
    """Train what `config` says, into the folder `config.out`."""
    with joined(config.device) as group:
        report = Report(group.first) if report is None else report
        config, run, tokenizer, material = prepared(config, group, report)
        model = model_of(config, tokenizer, report).to(group.device)
        learner = optimizer(model, config.optimizer, decay=config.decay or 0.0)
        rate = schedule_of(config)
        state = resumed(run, config, model, learner, report)
        forward = group.shared(compiled(config, model))
        autocast = functools.partial(
            torch.autocast, group.device.type, torch.bfloat16, enabled=config.precision == "bf16"
        )
        report.begin(config, model, group.device, state)
        with report, stopping() as asked, Metrics(run.folder, state.step, write=group.first) as metrics:
            for epoch, position, batch in batches(material.training, config, state):
                if state.step >= config.steps or state.worse >= config.patience > 0:
                    break
                began, step, tokens = time.perf_counter(), state.step + 1, batch.tokens
                for parameters in learner.param_groups:
                    parameters["lr"] = rate(step)

                # The gradient of the mean over all real tokens of the batch, whoever computes which part of it.
                seed(config.seed, step, group.rank)
                loss = torch.zeros((), device=group.device)
                for n in range(config.accumulate):
                    mine = group.rank * config.accumulate + n
                    part = batch.part(mine, group.size * config.accumulate).to(group.device)
                    with group.together(forward, last=n == config.accumulate - 1):
                        with autocast():
                            logits = forward(**part.inputs)
                        surprised = surprise(logits, part.labels, config.smoothing)
                        (surprised * (group.size / tokens)).backward()
                    loss += surprised.detach()
                norm = clip(model, config.clip or None)
                mean, size = (group.sum(loss) / tokens).item(), norm.item()
                if not math.isfinite(mean) or not math.isfinite(size):
                    raise ValueError(diagnosis(model, part, config, group, step, mean, size))
                learner.step()
                learner.zero_grad(set_to_none=True)

                took = time.perf_counter() - began
                state.go_on(step, epoch, position + 1, tokens, took)
                line = {"step": step, "loss": mean, "lr": rate(step), "grad_norm": size, "tokens_per_s": tokens / took}
                stop = group.agree(asked.signal != 0)
                if step % config.evaluate_every == 0 or step == config.steps:
                    line |= state.judge(measure(model, material, config.translate, config.tokenize, group, autocast))
                metrics.write(line)
                report.step(line, state, took)
                if step % config.save_every == 0 or state.best_step == step or step == config.steps or stop:
                    if group.first:
                        run.save(model, learner, state, config.keep)
                    group.wait()
                if stop:
                    raise Stopped(asked.signal, run.folder)
        report.end(run.folder, state)
        return Outcome(model.eval(), run.folder, state)


def batches(corpus: Corpus, config: Config, state: State) -> Iterator[tuple[int, int, Batch]]:
    """Batches without end, from where `state` stands, each with its epoch and its position in it."""

    def places() -> Iterator[tuple[int, int, Rows]]:
        epoch, position = state.epoch, state.position
        while True:
            order = corpus.order(config.seed, epoch)
            yield from ((epoch, n, order[n]) for n in range(position, len(order)))
            epoch, position = epoch + 1, 0

    collated = Collated(corpus)
    if config.workers == 0:
        return (collated[place] for place in places())
    return iter(DataLoader(collated, batch_size=None, sampler=places(), num_workers=config.workers))


class Collated(Dataset[tuple[int, int, Batch]]):
    """Batches by their place in the order, for `DataLoader` and its processes."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def __getitem__(self, place: tuple[int, int, Rows]) -> tuple[int, int, Batch]:
        epoch, position, rows = place
        return epoch, position, self.corpus.collate(rows)


def seed(*numbers: int) -> None:
    """Draw what follows from these numbers alone."""
    torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1))


def diagnosis(model: Shell, part: Batch, config: Config, group: Group, step: int, loss: float, norm: float) -> str:
    """Where the first value that is no number came from. The weights are still those of the step before."""
    said = f"step {step}: the loss is {loss}, the norm of the gradients {norm}"
    last = f"The weights were not changed, and the checkpoints in {config.out} are whole. Try a lower rate"
    broken = [name for name, p in model.named_parameters() if not p.isfinite().all()]
    if broken:
        return f"{said}: the weights of {broken[0]} are not finite. {last}"
    seed(config.seed, step, group.rank)
    with torch.no_grad(), listen(model) as trace:
        model(**part.inputs)
    for path in trace:
        heard = trace[path]
        # Scores that a mask has ruled out are infinite on purpose.
        if heard.isnan().any() or (not path.endswith("scores") and heard.isinf().any()):
            return f"{said}: {path} is the first that is not finite. {last}"
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            return f"{said}: the gradient of {name} is not finite. {last}"
    return f"{said}, in another process's part of the batch. {last}"
