"""Training in a process of its own, to be killed; and what must be left of it.

python -m tests.train.kill FOLDER STEPS [PLACE AFTER]

PLACE     a function of Python's own, such as os.replace: its AFTER-th call from the second save on kills the process
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from heedful.train import train
from heedful.train.checkpoint import Run, read_metrics
from tests.train.tiny import Quiet, config, left

ROOT = Path(__file__).parents[2]
# Saved after every step, with rates that do not depend on how many steps there are to come.
SETTINGS = {"save_every": 1, "evaluate_every": 7, "translate": 0, "keep": 2, "schedule": "constant", "warmup": 4}


def main(folder, steps, place="", after="0"):
    torch.set_num_threads(1)
    report = Quiet()
    if place:
        report.at[2] = lambda: _deadly(place, int(after))
    train(config(folder, steps=int(steps), resume="auto", **SETTINGS), report)


def _deadly(place, after):
    module, name = place.split(".")
    real, calls = getattr(sys.modules[module], name), iter(range(10_000))

    def called(*given, **more):
        if next(calls) == after:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given, **more)

    setattr(sys.modules[module], name, called)


def started(run, steps, *where):
    command = [sys.executable, "-m", "tests.train.kill", str(run), str(steps), *map(str, where)]
    return subprocess.Popen(command, cwd=ROOT)


def killed(run, delay):
    """Let a run begin, and kill it so many seconds after its first checkpoint."""
    process = started(run, 100_000)
    deadline = time.monotonic() + 60
    while not (run / "latest").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.005)
    time.sleep(delay)
    process.kill()
    assert process.wait() == -signal.SIGKILL


def killed_at(run, place, after):
    """Let a run kill itself at a certain call."""
    assert started(run, 100_000, place, after).wait() == -signal.SIGKILL


def check_recovers(run, tmp_path):
    """It goes on with the loss of a step at most, to where a run that nobody killed comes; nothing is left lying."""
    reached = read_metrics(run)[-1]["step"]
    report = Quiet()
    outcome = train(config(run, steps=reached + 3, resume="auto", **SETTINGS), report)
    (said,) = [line for line in report.lines if line.startswith("going on from step ")]
    assert int(said.split()[-1].replace(",", "")) >= reached - 1
    assert outcome.state.step == reached + 3
    assert not list(run.rglob(".*"))
    assert all(damage is None for _, damage in Run(run).whole())
    assert len(Run(run).steps()) <= 3
    train(config(tmp_path / "never", steps=reached + 3, **SETTINGS), Quiet())
    assert left(run) == left(tmp_path / "never")


def delays(seed, count):
    chance = random.Random(seed)
    return [chance.uniform(0, 0.4) for _ in range(count)]


if __name__ == "__main__":
    main(*sys.argv[1:])
