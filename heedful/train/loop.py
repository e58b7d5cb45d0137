"""The training: `train(config)`. Read it from top to bottom.

What it needs is made first: texts, tokenizer, model, optimizer, schedule. Then comes the loop, in one piece.

Everything that is random in a step is drawn from (seed, step, process), and the order of the data from (seed, epoch).
So a run that goes on from a checkpoint is the run that was never stopped.
"""

from __future__ import annotations

import functools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from heedful.data.batch import Batch, Corpus, Rows
from heedful.folder import one_tensor, tensors_by_name
from heedful.model import Shell
from heedful.trace import listen
from heedful.train.checkpoint import Metrics, State, not_finite
from heedful.train.config import Config
from heedful.train.measure import measure
from heedful.train.objective import surprise
from heedful.train.optimizer import clip, optimizer
from heedful.train.parallel import joined
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
        state = resumed(run, config, model, learner, group, report)
        forward = group.shared(compiled(config, model))
        autocast = functools.partial(
            torch.autocast, group.device.type, torch.bfloat16, enabled=config.precision == "bf16"
        )
        report.begin(config, model, group.device, state)
        with (
            report,
            stopping() as asked,
            Metrics(run.folder, state.step, write=group.first, tensorboard=config.tensorboard) as metrics,
        ):
            for epoch, position, batch in batches(material.training, config, state):
                if ended(config, state):
                    break
                began, step, tokens = time.perf_counter(), state.step + 1, batch.tokens
                for parameters in learner.param_groups:
                    parameters["lr"] = rate(step)

                # The gradient of the mean over all real tokens of the batch, whoever computes which part of it.
                seed(config.seed, step, group.rank)
                loss = torch.zeros((), device=group.device)
                first, of = group.rank * config.accumulate, group.size * config.accumulate
                mine = range(first, first + config.accumulate)
                parts = [batch.part(n, of).to(group.device) for n in mine]
                for part in parts:
                    with group.together(forward, last=part is parts[-1]):
                        with autocast():
                            logits = forward(**part.inputs)
                        surprised = surprise(logits, part.labels, config.smoothing)
                        (surprised * (group.size / tokens)).backward()
                    loss += surprised.detach()
                norm = clip(model, config.clip or None)
                mean, size = (group.sum(loss) / tokens).item(), norm.item()
                if not math.isfinite(mean) or not math.isfinite(size):
                    seed(config.seed, step, group.rank)
                    found = diagnosis(model, parts, config.smoothing, autocast)
                    raise ValueError(
                        f"step {step} (batch {position} of epoch {epoch + 1}): the loss is {mean}, the norm of the "
                        f"gradients {size}: {found}. The weights were not changed, and the checkpoints in "
                        f"{run.folder} are whole. Try a lower rate"
                    )
                learner.step()
                learner.zero_grad(set_to_none=True)

                took = time.perf_counter() - began
                state.go_on(step, epoch, position, tokens, took)
                line = {"step": step, "loss": mean, "lr": rate(step), "grad_norm": size, "tokens_per_s": tokens / took}
                if step % config.evaluate_every == 0 or step == config.steps:
                    line |= state.judge(measure(model, material, config.translate, config.tokenize, group, autocast))
                metrics.write(line)
                report.step(line, state, took)
                stop = group.most(asked.signal)
                if step % config.save_every == 0 or state.best_step == step or ended(config, state) or stop:
                    if group.first:
                        run.save(model, learner, state, config.keep)
                    group.wait()
                if stop:
                    raise Stopped(stop, run.folder)
        report.end(run.folder, state)
        return Outcome(model.eval(), run.folder, state)


def ended(config: Config, state: State) -> bool:
    """Whether all updates are made, or measurements have stopped to get better."""
    return state.step >= config.steps or state.worse >= config.patience > 0


def batches(corpus: Corpus, config: Config, state: State) -> Iterator[tuple[int, int, Batch]]:
    """Batches without end, from where `state` stands, each with its epoch and how many of it are done then."""

    def places() -> Iterator[tuple[int, int, Rows]]:
        epoch, position = state.epoch, state.position
        while True:
            order = corpus.order(config.seed, epoch)
            yield from ((epoch, n + 1, order[n]) for n in range(position, len(order)))
            epoch, position = epoch + 1, 0

    collated = Collated(corpus)
    if config.workers == 0:
        return (collated[place] for place in places())
    with warnings.catch_warnings():
        # As many as were asked for, even where the machine has fewer cores.
        warnings.filterwarnings("ignore", "This DataLoader will create")
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


def diagnosis(
    model: Shell, parts: Sequence[Batch], smoothing: float, autocast: Callable[[], AbstractContextManager[object]]
) -> str:
    """Where the first value that is no number comes from: the step once more, with every value looked at."""
    broken = not_finite(model)
    if broken is not None:
        return f"the weights of {broken} are not finite"
    tensors = {name: one_tensor(places) for name, places in tensors_by_name(model).items()}
    trained = {name: weights for name, weights in tensors.items() if weights.requires_grad}
    for part in parts:
        with listen(model) as trace, autocast():
            logits = model(**part.inputs)
        for path in trace:
            # Scores that a mask has ruled out are infinite on purpose.
            ruled = path.endswith("scores")
            if any(heard.isnan().any() or (not ruled and heard.isinf().any()) for heard in trace.all(path)):
                return f"{path} is the first that is not finite"
        loss = surprise(logits, part.labels, smoothing)
        gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        wrong = [n for n, g in zip(trained, gradients, strict=True) if g is not None and not g.isfinite().all()]
        if wrong:
            # They are computed from the model's end to its beginning.
            return f"the gradient of {wrong[-1]} is the first that is not finite"
    return "computed once more, every value of this process is finite"
