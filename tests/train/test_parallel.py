"""Two processes under torchrun learn what one process learns."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import heedful
from heedful.data.batch import NOTHING, Padded, Shape, Special
from heedful.data.ragged import Ragged
from heedful.train import train
from heedful.train.checkpoint import Run
from heedful.train.parallel import Group, joined, place
from tests.train.tiny import MODEL, Quiet, config, metrics

ROOT = Path(__file__).parents[2]
STILL = {**MODEL, "dropout": 0.0}


def free_port():
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return listening.getsockname()[1]


def together(code, *arguments, processes=2):
    """Run this code in several processes, each with its RANK, as torchrun starts them; how each ends, and its words."""
    shared = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "localhost"}
    # One thread each: they share the cores with other tests.
    env = {**os.environ, **shared, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    try:
        ended = [process.communicate(timeout=60) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, *said) for process, said in zip(started, ended, strict=True)]


# Both trainings in one start of two processes, which takes longer than they do.
CODE = """
import json, os, sys
import torch
torch.set_num_threads(1)
from heedful.data import text
from heedful.train import train
from tests.train.tiny import Quiet, config

trained = text.trained
def told(*given):
    print("trains a tokenizer")
    return trained(*given)
text.trained = told

class Plain(Quiet):
    def say(self, line):
        print(line)

for name, (port, settings) in json.loads(sys.argv[2]).items():
    # A port serves one group; the next must not meet the last one's.
    os.environ["MASTER_PORT"] = str(port)
    try:
        outcome = train(config(sys.argv[1] + "/" + name, **settings), Plain())
        print(name, "ended at", outcome.state.step, sum(p.double().sum().item() for p in outcome.model.parameters()))
    except ValueError as error:
        print(name, "failed:", error)
sys.stdout.flush()
os._exit(0)
"""

# Batches of 5 rows and fewer, so that many do not divide by two; and of one row.
RUNS = {
    "plain": {"model": STILL, "translate": 1},
    "single": {"model": STILL, "batch": 20, "translate": 0, "steps": 6},
    "parts": {"model": STILL, "accumulate": 2, "translate": 0, "steps": 6},
    "sgd": {"model": STILL, "optimizer": "sgd", "translate": 0, "steps": 6},
    "wild": {"model": STILL, "rate": 1e30, "schedule": "constant", "warmup": 0, "clip": 0.0, "steps": 6},
}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The runs above in two processes: their folder, and what each process said."""
    folder = tmp_path_factory.mktemp("two")
    ended = together(CODE, folder, json.dumps({name: (free_port(), settings) for name, settings in RUNS.items()}))
    assert [code for code, _, _ in ended] == [0, 0], ended
    return folder, [said for _, said, _ in ended]


@pytest.mark.parametrize("name", [name for name in RUNS if name != "wild"])
def test_two_processes_have_the_losses_of_one(name, two, tmp_path):
    train(config(tmp_path / "run", **RUNS[name]), Quiet())
    alone, shared = metrics(tmp_path / "run"), metrics(two[0] / name)
    assert len(alone) == len(shared)
    for one, other in zip(alone, shared, strict=True):
        assert one.keys() == other.keys()
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-6)
        assert other == pytest.approx(one, rel=1e-5)
    if name == "sgd":
        # Adam divides a gradient by its size, and that of key biases is rounding alone.
        pair = heedful.load(tmp_path / "run" / "latest"), heedful.load(two[0] / name / "latest")
        for one, other in zip(*(model.parameters() for model in pair), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_some_of_these_batches_do_not_divide_by_two():
    from heedful.tasks import task

    texts = Ragged([[0] * len(pair.source) for pair in task("copy").training(24, 1)])
    corpus = Padded(texts, texts, Special(0, 1, 2), Shape(128))
    heights = {len(rows) for rows in corpus.order(1, 0)}
    assert any(height % 2 for height in heights)


def test_both_processes_end_with_the_same_weights(two):
    ends = [[line for line in said.splitlines() if "ended at" in line] for said in two[1]]
    assert len(ends[0]) == 4
    assert ends[0] == ends[1]


def test_the_first_process_alone_trains_tokenizers(two):
    assert [said.count("trains a tokenizer") for said in two[1]] == [len(RUNS), 0]


def test_the_first_process_alone_writes(two):
    for name in RUNS:
        assert not list((two[0] / name).rglob(".*"))
    run = two[0] / "plain"
    assert Run(run).steps() == [12, *(step for step in (10, 9, 6, 5, 3) if step in Run(run).steps())]
    assert all(damage is None for _, damage in Run(run).whole())
    assert json.loads((run / "env.json").read_text())["processes"] == 2


def test_values_that_are_not_finite_stop_both(two):
    for said in two[1]:
        assert "wild failed: step 2 (batch 2 of epoch 1)" in said


def test_one_process_goes_on_from_what_two_have_saved(two, tmp_path):
    """And comes as far as it would have alone: how many there are is no setting."""
    train(config(tmp_path / "run", **RUNS["plain"]), Quiet())
    alone = metrics(tmp_path / "run")
    run = two[0] / "plain"
    for step in Run(run).steps():
        if step > 6:
            Run(run).remove(step)
    train(config(run, resume="auto", **RUNS["plain"]), Quiet())
    assert [line["loss"] for line in metrics(run)] == pytest.approx([line["loss"] for line in alone], rel=1e-6)


def test_torchrun_and_the_command_end_cleanly(tmp_path):
    """The whole way: torchrun starts `python -m heedful train`, and both say nothing that is wrong."""
    arguments = ["--task", "copy", "--examples", "24", "--tokenizer", "characters", "--steps", "3", "--device", "cpu"]
    sizes = [f"--model.{name}={value}" for name, value in STILL.items()]
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--nproc-per-node",
                "2",
                "--master-port",
                str(free_port()),
            ),
            *("-m", "heedful", "train", *arguments, *sizes, "--out", str(tmp_path / "run"), "--json"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("updates of") == 1
    assert [json.loads(line)["steps"] for line in done.stdout.splitlines()] == [3]
    assert len(metrics(tmp_path / "run")) == 3


# Alone.


def test_without_torchrun_there_is_one_process(monkeypatch):
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with joined("cpu") as group:
        assert (group.rank, group.size, group.first, group.device.type) == (0, 1, True, "cpu")
        assert group.most(15) == 15
        assert group.sum(torch.tensor(3.0)).item() == 3.0


@pytest.mark.parametrize("of", [2, 3, 7])
def test_the_parts_of_a_batch_are_the_batch(of):
    texts = Ragged([list(range(5, 6 + n)) for n in range(5)])
    corpus = Padded(texts, texts, Special(0, 1, 2), Shape(1000))
    (rows,) = corpus.order(0, 0)
    batch = corpus.collate(rows)
    parts = [batch.part(n, of) for n in range(of)]
    assert len({part.labels.shape for part in parts}) == 1
    assert sum(part.tokens for part in parts) == batch.tokens
    said = sorted(tuple(row) for part in parts for row in part.labels.tolist() if set(row) != {NOTHING})
    assert said == sorted(map(tuple, batch.labels.tolist()))


def test_a_device_is_what_was_asked_for():
    assert place("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match='device="gpu" is none'):
        place("gpu")


def test_a_group_of_one_waits_for_nobody(tmp_path):
    group = Group(0, 1, torch.device("cpu"))
    with group.in_turn():
        group.wait()
    assert group.shared(torch.nn.Linear(1, 1)).in_features == 1
