"""Checkpoints: whole or not there, damage found and named, full disks survived, and readable by anyone."""

import json
import os
import random
import shutil
import stat
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open

import heedful
from heedful import disk
from heedful.train import train
from heedful.train.checkpoint import Metrics, Run, averaged, read_metrics
from tests.train.tiny import Quiet, config, left, metrics

FILES = [
    "README.md",
    "config.json",
    "generation.json",
    "manifest.json",
    "model.safetensors",
    "optimizer.safetensors",
    "tokenizer.json",
    "trainer_state.json",
]


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """A run of 6 steps with checkpoints at 2, 4 and 6, the best of them at 6; and what it leaves after 12."""
    folder = tmp_path_factory.mktemp("once")
    settings = {"save_every": 2, "evaluate_every": 2, "translate": 0, "schedule": "constant", "warmup": 2}
    train(config(folder / "run", steps=6, **settings), Quiet())
    shutil.copytree(folder / "run", folder / "longer", symlinks=True)
    train(config(folder / "longer", steps=12, resume="auto", **settings), Quiet())
    return folder / "run", settings, left(folder / "longer")


@pytest.fixture
def run(once, tmp_path):
    return Path(shutil.copytree(once[0], tmp_path / "run", symlinks=True))


def going_on(run, settings, steps=12):
    report = Quiet()
    train(config(run, steps=steps, resume="auto", **settings), report)
    return report


# What a checkpoint is.


def test_a_checkpoint_has_these_files(run):
    assert sorted(path.name for path in (run / "latest").iterdir()) == FILES
    assert sorted(path.name for path in run.iterdir()) == [
        *("best", "checkpoints", "config.toml", "env.json", "latest", "metrics.jsonl", "tokenizer.json")
    ]


def test_it_opens_with_plain_safetensors_and_tokenizers(run):
    from tokenizers import Tokenizer

    model = heedful.load(run / "latest")
    names = set()
    with safe_open(run / "latest" / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118  it is no dict
            names.add(name)
            weights = model.get_parameter(with_branches(name, model))
            assert torch.equal(file.get_tensor(name), weights)
    with safe_open(run / "latest" / "optimizer.safetensors", "pt") as file:
        kinds = {"step", "exp_avg", "exp_avg_sq"}
        assert set(file.keys()) == {f"{kind}/{name}" for kind in kinds for name in names}
    plain = Tokenizer.from_file(str(run / "latest" / "tokenizer.json"))
    assert plain.encode("a b c").ids == model.tokenizer.encode("a b c").ids
    assert plain.decode(plain.encode("a b c").ids) == "a b c"


def with_branches(name, model):
    """A path as PyTorch says it, with the wrappers that heedful's paths see through."""
    from heedful.folder import tensors_by_name

    by_identity = {id(p): said for said, p in model.named_parameters()}
    module, leaf = tensors_by_name(model)[name][0]
    return by_identity[id(getattr(module, leaf))]


def test_a_run_loads_as_its_best_checkpoint_or_else_its_latest(run):
    for name, step in {"best": 2, "latest": 6}.items():
        (run / name).unlink()
        (run / name).symlink_to(f"checkpoints/step-{step:08d}")

    def same(a, b):
        return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))

    two, six = (heedful.load(run / "checkpoints" / f"step-{step:08d}") for step in (2, 6))
    assert not same(two, six)
    assert same(heedful.load(run), two)
    (run / "best").unlink()
    assert same(heedful.load(run), six)


def test_others_may_read_it(run):
    for path in (run / "latest").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) & 0o444 == 0o444, path


# Damage.


def damages(run):
    return {folder.name: damage for folder, damage in Run(run).whole()}


def test_a_whole_run_has_no_damage(run):
    assert damages(run) == {f"step-{step:08d}": None for step in (6, 4, 2)}


def named(damage, file):
    """A wrong digest accuses the file beside it, and says that the manifest does."""
    return damage is not None and ("manifest" if file == "manifest.json" else file) in damage


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_cut_short_is_named(file, run):
    path = run / "latest" / file
    raw = path.read_bytes()
    for length in sorted({0, 1, len(raw) // 3, len(raw) // 2, len(raw) - 2, len(raw) - 1}):
        path.write_bytes(raw[:length])
        assert named(damages(run)["step-00000006"], file), length
    path.unlink()
    assert named(damages(run)["step-00000006"], file)


def test_a_hundred_bits_that_flip_are_noticed_and_their_file_is_named(run):
    chance = random.Random(0)
    for n in range(104):
        path = run / "latest" / FILES[n % len(FILES)]
        raw = path.read_bytes()
        flipped = bytearray(raw)
        flipped[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        path.write_bytes(bytes(flipped))
        assert named(damages(run)["step-00000006"], path.name)
        path.write_bytes(raw)
    assert damages(run)["step-00000006"] is None


@pytest.mark.parametrize("file", ["model.safetensors", "manifest.json", "trainer_state.json"])
def test_a_run_goes_on_from_the_checkpoint_before_the_damaged_one_and_says_so(file, run, once):
    (run / "latest" / file).write_bytes((run / "latest" / file).read_bytes()[:50])
    report = going_on(run, once[1])
    said = next(line for line in report.lines if "Going back" in line)
    assert named(said, file)
    assert "step-00000006" in said
    assert "going on from step 4" in report.lines
    assert left(run) == once[2]
    assert all(damage is None for damage in damages(run).values())


def test_going_back_keeps_what_is_saved_next(run, once):
    """With one checkpoint to keep, the damaged ones that bear higher numbers must not count."""
    for step in (4, 6):
        (Run(run).checkpoint(step) / "manifest.json").unlink()
    train(config(run, steps=3, resume="auto", **(once[1] | {"keep": 1, "evaluate_every": 100})), Quiet())
    assert Run(run).steps() == [3]
    assert (run / "latest").resolve().name == "step-00000003"
    assert [line["step"] for line in metrics(run)] == [1, 2, 3]


def test_a_run_without_a_whole_checkpoint_does_not_begin_again_by_itself(run, once):
    for step in Run(run).steps():
        (Run(run).checkpoint(step) / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"no checkpoint in .* is whole"):
        going_on(run, once[1])
    assert Run(run).steps() == [6, 4, 2]


def test_links_that_a_kill_has_left_behind_catch_up(run, once):
    """It came after a checkpoint was in its place, and before the links were moved."""
    for name in ("latest", "best"):
        (run / name).unlink()
        (run / name).symlink_to("checkpoints/step-00000002")
    going_on(run, once[1], steps=6)
    assert (run / "latest").resolve().name == (run / "best").resolve().name == "step-00000006"
    assert left(run)[1]["best_step"] == 6


def test_what_a_kill_has_left_half_written_is_removed(run, once):
    checkpoints = run / "checkpoints"
    shutil.copytree(checkpoints / "step-00000006", checkpoints / ".step-00000008.x1")
    shutil.copytree(checkpoints / "step-00000002", checkpoints / ".step-00000002.gone")
    (run / ".latest.new").symlink_to("checkpoints/step-00000006")
    for name in (".config.toml.new", ".env.json.new", ".metrics.jsonl.new", ".tokenizer.json.new"):
        (run / name).write_text("half")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "lo')
    going_on(run, once[1])
    assert not list(run.rglob(".*"))
    assert left(run) == once[2]


def test_a_removed_checkpoint_is_gone_at_once(run, monkeypatch):
    """Removing takes time, and a kill may come in between: what is left then is not taken for a checkpoint."""
    monkeypatch.setattr(shutil, "rmtree", lambda *given, **more: None)
    Run(run).remove(2)
    assert Run(run).steps() == [6, 4]
    monkeypatch.undo()
    Run(run).tidy()
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000004", "step-00000006"]


# A disk that is full.

FULL = OSError(28, "No space left on device")
PLACES = [
    ("heedful.train.checkpoint.save_file", 0),
    ("heedful.folder.save_file", 0),
    ("heedful.disk.os.fsync", 0),
    ("heedful.disk.os.fsync", 5),
    ("heedful.disk.os.replace", 0),
    ("heedful.disk.Path.write_text", 0),
    ("heedful.disk.Path.write_text", 3),
    ("heedful.disk.tempfile.mkdtemp", 0),
    ("heedful.train.checkpoint.Path.symlink_to", 0),
]


def found(where):
    """The module or class that a dotted place is in, and its name there."""
    parts = where.split(".")
    modules = [n for n in range(1, len(parts)) if ".".join(parts[:n]) in sys.modules]
    owner = sys.modules[".".join(parts[: modules[-1]])]
    for part in parts[modules[-1] : -1]:
        owner = getattr(owner, part)
    return owner, parts[-1]


@pytest.mark.parametrize(("where", "after"), PLACES)
def test_a_disk_that_is_full_while_a_checkpoint_is_written(where, after, run, once, monkeypatch):
    (owner, name), calls = found(where), iter(range(100))
    real = getattr(owner, name)

    def full(*given, **more):
        if next(calls) >= after:
            raise SafetensorError(f"Error while serializing: {FULL}") if name == "save_file" else FULL
        return real(*given, **more)

    def fill():
        monkeypatch.setattr(owner, name, full)

    with pytest.raises(OSError, match=r"^step 8 could not be saved: .*No space left on device.*are whole") as error:
        train(config(run, steps=12, resume="auto", **once[1]), Quiet({7: fill}))
    monkeypatch.undo()
    assert "go on with --resume auto" in str(error.value)
    assert (run / "latest").resolve().name == "step-00000006"
    assert all(damage is None for damage in damages(run).values())
    assert set(Run(run).steps()) >= {2, 4, 6}
    going_on(run, once[1])
    assert left(run) == once[2]
    assert not list(run.rglob(".*"))


def test_a_disk_that_is_full_for_the_lines(run, once):
    """/dev/full is one that always is."""
    metrics = Metrics(run, 6, write=True)
    metrics.file.close()
    metrics.file = open("/dev/full", "a", buffering=1)  # noqa: SIM115
    with pytest.raises(OSError, match=r"metrics\.jsonl cannot be written: No space left on device"), metrics:
        metrics.write({"step": 7, "loss": 1.0})
    assert [line["step"] for line in read_metrics(run)] == [1, 2, 3, 4, 5, 6]


def test_a_file_is_put_whole_or_not_at_all(tmp_path, monkeypatch):
    disk.put(tmp_path / "a.toml", "one")
    for name in ("fsync", "replace"):

        def full(*given):
            raise FULL

        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(OSError, match=r"a\.toml cannot be written: No space left on device"):
                disk.put(tmp_path / "a.toml", "two")
        assert [path.name for path in tmp_path.iterdir()] == ["a.toml"]
        assert (tmp_path / "a.toml").read_text() == "one"
    disk.put(tmp_path / "a.toml", "two")
    assert (tmp_path / "a.toml").read_text() == "two"


# Lines, and averages.


def test_lines_after_the_checkpoint_are_forgotten_and_a_cut_one_too(tmp_path):
    lines = [{"step": step, "loss": 1 / step} for step in range(1, 6)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 6, "l')
    assert read_metrics(tmp_path) == lines
    with Metrics(tmp_path, 3, write=True) as log:
        log.write({"step": 4, "loss": 0.5})
        assert read_metrics(tmp_path) == [*lines[:3], {"step": 4, "loss": 0.5}]


def test_who_does_not_write_leaves_the_lines_alone(tmp_path):
    with Metrics(tmp_path, 0, write=False) as log:
        log.write({"step": 1})
    assert list(tmp_path.iterdir()) == []


def test_an_average_is_the_mean_of_the_weights_in_float64(run):
    folders = [Run(run).checkpoint(step) for step in (2, 4, 6)]
    made, models = averaged(folders), [heedful.load(folder) for folder in folders]
    for name, p in made.named_parameters():
        mean = sum(model.get_parameter(name).double() for model in models) / 3
        assert torch.equal(p, mean.float())
    assert made.tokenizer is not None


def test_models_of_two_kinds_have_no_average(run, tmp_path):
    from heedful.models import gpt

    heedful.save(gpt(vocab=9, width=8, depth=1, heads=1, context=4), tmp_path / "other")
    with pytest.raises(ValueError, match="average models of one kind"):
        averaged([run / "latest", tmp_path / "other"])
