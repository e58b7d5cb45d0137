"""A run that is killed goes on; a command that is asked to end saves, says how to go on, and has its exit code."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from heedful.train.checkpoint import Run
from tests.train.kill import check_recovers, delays, killed, killed_at
from tests.train.tiny import MODEL, metrics

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("delay", delays(0, 3))
def test_a_run_that_is_killed_at_any_instant_goes_on(delay, tmp_path):
    killed(tmp_path / "run", delay)
    check_recovers(tmp_path / "run", tmp_path)


def test_a_run_that_is_killed_between_a_checkpoint_and_its_link_goes_on(tmp_path):
    """The second renaming of a save: the checkpoint is in its place, `latest` still points to the one before."""
    killed_at(tmp_path / "run", "os.replace", 1)
    assert (tmp_path / "run" / "latest").resolve().name != f"step-{Run(tmp_path / 'run').steps()[0]:08d}"
    check_recovers(tmp_path / "run", tmp_path)


def command(run, model=None, examples=24, **settings):
    """A small training by the command."""
    flags = {"out": run, "task": "copy", "examples": examples, "tokenizer": "characters", "device": "cpu", **settings}
    flags |= {f"model.{name}": value for name, value in (model or MODEL).items()}
    given = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    return [sys.executable, "-m", "heedful", "train", *given]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_command_that_is_asked_to_end_saves_and_says_how_to_go_on(number, code, tmp_path):
    run = tmp_path / "a run"
    process = subprocess.Popen(
        command(run, save_every=5000, evaluate_every=5000),
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (run / "metrics.jsonl").exists() or len(metrics(run)) < 3:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    before = len((run / "metrics.jsonl").read_text().splitlines())
    process.send_signal(number)
    said, told = process.communicate(timeout=60)
    assert process.returncode == code, told
    assert said == ""
    assert told.splitlines()[-1] == f"heedful: stopped and saved; go on with: heedful train --out '{run}' --resume auto"
    assert "Traceback" not in told
    reached = metrics(run)[-1]["step"]
    # Between our count and its hearing of it there may have been a few.
    assert before <= reached < before + 30
    assert Run(run).steps() == [reached]
    assert json.loads((run / "latest" / "trainer_state.json").read_text())["step"] == reached
