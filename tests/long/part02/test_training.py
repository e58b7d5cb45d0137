"""Training, the long forms: every task by heart, twenty kills and one at every call of a save, a thousand bits."""

import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from heedful.decode import generate, translate
from heedful.tasks import TASKS, task
from heedful.train import train
from heedful.train.checkpoint import Run
from heedful.train.signals import Stopped
from tests.train.kill import ROOT, check_recovers, delays, killed, killed_at
from tests.train.test_checkpoint import FILES, damages, named
from tests.train.test_kill import command
from tests.train.test_resume import ask, stopped
from tests.train.tiny import Quiet, config, left, metrics

# What learns by heart.


@pytest.mark.parametrize("name", TASKS)
def test_sixteen_examples_of_every_task_are_learned_by_heart_in_300_steps(name, tmp_path):
    settings = {
        "task": name,
        "examples": 16,
        "tokenizer": "bpe",
        "vocabulary": 400,
        "batch": 16384,
        "model": {"width": 64, "depth": 1, "heads": 4, "inner": 256, "dropout": 0.0},
        "steps": 300,
        "rate": 5e-3,
        "warmup": 30,
        "smoothing": 0.0,
    }
    model = train(config(tmp_path / "run", evaluate_every=300, save_every=300, **settings), Quiet()).model
    pairs = task(name).training(16, 1)
    assert translate(model, [pair.source for pair in pairs], beams=1) == [pair.target for pair in pairs]


@pytest.mark.parametrize("recipe", ["gpt", "llama"])
@pytest.mark.parametrize("tokenizer", ["bpe", "unigram", "bytes", "characters"])
@pytest.mark.parametrize("pack", [0, 96])
def test_sixteen_documents_are_learned_by_heart_in_300_steps(recipe, tokenizer, pack, tmp_path):
    texts = [f"{source}: {target}" for source, target in task("dates-en").training(16, 1)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    outcome = train(
        config(
            tmp_path / "run",
            text=str(tmp_path / "a.jsonl"),
            valid_text=str(tmp_path / "a.jsonl"),
            recipe=recipe,
            model={
                "width": 64,
                "depth": 1,
                "heads": 4,
                "dropout": 0.0,
                **({"inner": 176} if recipe == "llama" else {}),
            },
            tokenizer=tokenizer,
            vocabulary=300,
            longest=96,
            pack=pack,
            batch=16384,
            steps=300,
            rate=5e-3,
            warmup=30,
            smoothing=0.0,
            evaluate_every=300,
            save_every=300,
        ),
        Quiet(),
    )
    begun = [text.split(": ")[0] + ":" for text in texts]
    said = generate(outcome.model, begun, temperature=0, length=96)
    assert [a + b for a, b in zip(begun, said, strict=True)] == texts


# Kills.


@pytest.mark.parametrize("delay", delays(1, 20))
def test_a_run_that_is_killed_at_any_instant_goes_on(delay, tmp_path):
    killed(tmp_path / "run", delay)
    check_recovers(tmp_path / "run", tmp_path)


# A save calls each so often: from the first call of the second save on, into the third.
CALLS = {"os.fsync": 12, "os.replace": 8, "shutil.rmtree": 3, "hashlib.file_digest": 9, "os.unlink": 3}


@pytest.mark.parametrize(("place", "after"), [(place, n) for place, count in CALLS.items() for n in range(count)])
def test_a_run_that_is_killed_at_any_call_of_a_save_goes_on(place, after, tmp_path):
    killed_at(tmp_path / "run", place, after)
    check_recovers(tmp_path / "run", tmp_path)


def test_a_run_that_is_killed_again_and_again_comes_to_its_end(tmp_path):
    for delay in delays(2, 5):
        killed(tmp_path / "run", delay)
    check_recovers(tmp_path / "run", tmp_path)


def test_a_second_interrupt_ends_the_command_at_once(tmp_path):
    """In the middle of a step that takes seconds."""
    process = subprocess.Popen(
        command(tmp_path / "run", {"width": 512, "depth": 3, "heads": 8}, examples=3000, batch=60_000),
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert time.monotonic() - began < 10
    assert "Traceback" not in said
    assert not Run(tmp_path / "run").steps()


# Damage.


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("once") / "run"
    train(config(folder, steps=6, save_every=2), Quiet())
    return folder


@pytest.fixture
def run(once, tmp_path):
    return shutil.copytree(once, tmp_path / "run", symlinks=True)


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_cut_at_every_hundredth_is_named(file, run):
    path = run / "latest" / file
    raw = path.read_bytes()
    for hundredth in range(100):
        path.write_bytes(raw[: hundredth * len(raw) // 100])
        assert named(damages(run)["step-00000006"], file), hundredth


def test_a_thousand_bits_that_flip_are_noticed_and_their_file_is_named(run):
    chance = random.Random(1)
    for n in range(1000):
        path = run / "latest" / FILES[n % len(FILES)]
        raw = path.read_bytes()
        flipped = bytearray(raw)
        flipped[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        path.write_bytes(bytes(flipped))
        assert named(damages(run)["step-00000006"], path.name)
        path.write_bytes(raw)


# Stops, in more settings than the short form has.

PAIRED = list(itertools.product([[1], [4], [5, 9]], [0, 1, 4], [1, 2], [0, None]))


@pytest.mark.parametrize(("stops", "workers", "accumulate", "pack"), PAIRED, ids=str)
def test_stopped_and_gone_on_is_never_stopped(stops, workers, accumulate, pack, tmp_path):
    settings = {"accumulate": accumulate, "pack": pack}
    train(config(tmp_path / "never", **settings), Quiet())
    stopped(config(tmp_path / "run", workers=workers, **settings), stops)
    assert left(tmp_path / "run") == left(tmp_path / "never")


@pytest.mark.parametrize("recipe", ["marian", "transformer"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_every_recipe_and_optimizer_goes_on(recipe, precision, optimizer, tmp_path):
    settings = {"recipe": recipe, "precision": precision, "optimizer": optimizer}
    train(config(tmp_path / "never", **settings), Quiet())
    stopped(config(tmp_path / "run", **settings), [3, 8])
    assert left(tmp_path / "run") == left(tmp_path / "never")


def test_a_stop_at_every_step(tmp_path):
    settings = config(tmp_path / "run")
    train(config(tmp_path / "never"), Quiet())
    for step in range(1, 13):
        with pytest.raises(Stopped):
            train(settings, Quiet({step: ask()}))
        settings.resume = "auto"
    train(settings, Quiet())
    assert left(tmp_path / "run") == left(tmp_path / "never")


# The machine around it.


def test_the_same_seed_gives_the_same_weights_in_another_process(tmp_path):
    hashes = set()
    for n, hashing in enumerate(("0", "1", "random")):
        run = tmp_path / str(n)
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": hashing}
        subprocess.run(command(run, steps=20), cwd=ROOT, env=env, check=True, stderr=subprocess.DEVNULL)
        hashes.add(hashlib.sha256((run / "latest" / "model.safetensors").read_bytes()).hexdigest())
    assert len(hashes) == 1


@pytest.fixture
def small(tmp_path):
    """A file system that holds a few checkpoints, and a way to make it larger."""
    folder = tmp_path / "small"
    folder.mkdir()

    def mount(*options):
        return subprocess.run(
            ["mount", "-t", "tmpfs", "-o", *options, "tmpfs", str(folder)], capture_output=True
        ).returncode

    if sys.platform != "linux" or shutil.which("mount") is None or mount("size=600k") != 0:
        pytest.skip("only root on Linux may mount a small disk")
    yield folder, lambda: mount("remount,size=64m")
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_full_ends_the_command_and_harms_nothing(small, tmp_path):
    folder, enlarge = small
    run = folder / "run"
    settings = {"steps": 12, "save_every": 1, "evaluate_every": 3, "keep": 100}
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command(run, **settings), cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("heedful: step ")
    assert str(run) in last
    assert all(damage is None for _, damage in Run(run).whole())
    assert len(Run(run).steps()) >= 2
    assert (run / "latest").resolve() == Run(run).checkpoint(Run(run).steps()[0]).resolve()
    assert enlarge() == 0
    for asked in (command(run, resume="auto", **settings), command(tmp_path / "never", **settings)):
        subprocess.run(asked, cwd=ROOT, env=env, check=True, stderr=subprocess.DEVNULL)
    assert left(run) == left(tmp_path / "never")
    assert metrics(run)[-1]["step"] == 12


def test_a_disk_that_is_full_from_the_beginning(small):
    folder, _ = small
    (folder / "ballast").write_bytes(b"x" * 595_000)
    done = subprocess.run(command(folder / "run", steps=3), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
