"""Layers of settings: defaults, under them nothing, over them a file, over it the flags."""

import dataclasses
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.cli.app import app
from heedful.cli.settings import UsageError, found, trainings
from heedful.train.config import Config, from_toml
from heedful.train.prepare import resolved
from tests.cli.commands import here, right

CPU = torch.device("cpu")
NAMES = sorted(trainings())


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def printed(line: str) -> dict[str, Any]:
    """What --print-config says."""
    return tomllib.loads(right(f"train {line} --print-config"))


@pytest.mark.parametrize(
    ("name", "default", "in_file", "filed", "flags", "flagged"),
    [
        ("steps", 5000, "7", 7, "--steps 9", 9),
        ("steps", 5000, "7", 7, "--steps 1_000", 1000),
        ("smoothing", 0.1, "0.25", 0.25, "--smoothing 0", 0.0),
        ("rate", None, "1e-2", 0.01, "--rate 3e-4", 0.0003),
        ("rate", None, "1e-2", 0.01, "--rate none", None),
        ("warmup", None, "5", 5, "--warmup 0", 0),
        ("warmup", None, "5", 5, "--warmup null", None),
        ("fixed_vectors", False, "true", True, "--no-fixed-vectors", False),
        ("tensorboard", False, "false", False, "--tensorboard", True),
        ("tensorboard", False, "true", True, "--no-tensorboard", False),
        ("optimizer", "adamw", '"sgd"', "sgd", "--optimizer adam", "adam"),
        ("task", None, '"copy"', "copy", "--task sort", "sort"),
        ("task", None, '"copy"', "copy", "--task none", None),
        ("source", None, '"größe.en"', "größe.en", "--source 'a b.en'", "a b.en"),
        ("hold_out", None, "0.5", 0.5, "--hold-out 0.25", 0.25),
        ("valid_source", None, '"v.en"', "v.en", "--valid-source none", None),
        # Settings that bear the name of a command.
        ("schedule", "cosine", '"linear"', "linear", "--schedule noam", "noam"),
        ("translate", 100, "3", 3, "--translate 4", 4),
        ("recipe", None, '"gpt"', "gpt", "--recipe llama", "llama"),
        ("evaluate_every", 0, "3", 3, "--evaluate-every 4", 4),
        ("out", None, '"A"', "A", "--out B", "B"),
    ],
)
def test_a_flag_wins_over_the_file_and_the_file_over_the_default(
    name: str, default: object, in_file: str, filed: object, flags: str, flagged: object
) -> None:
    Path("c.toml").write_text(f"{name} = {in_file}\n", encoding="utf-8")
    assert printed("").get(name) == default
    assert printed("-c c.toml").get(name) == filed
    assert printed(flags).get(name) == flagged
    assert printed(f"-c c.toml {flags}").get(name) == flagged
    assert printed(f"{flags} --config c.toml").get(name) == flagged
    # And nothing else was touched.
    others = [{**printed(line), name: None} for line in ("", f"-c c.toml {flags}")]
    assert {**others[0], name: None} == others[1]


def test_a_models_arguments_are_joined_one_by_one() -> None:
    Path("c.toml").write_text(
        '[model]\nwidth = 16\ndepth = 1\nactivation = "relu"\ndropout_at = { branch = 0.5 }\n', encoding="utf-8"
    )
    assert printed("")["model"] == {}
    from_file = {"width": 16, "depth": 1, "activation": "relu", "dropout_at": {"branch": 0.5}}
    assert printed("-c c.toml")["model"] == from_file
    flags = "--model.width 32 --model.decoder-depth 2 --model.tied false --model.dropout 0.0"
    given = {"width": 32, "decoder_depth": 2, "tied": False, "dropout": 0.0}
    assert printed(flags)["model"] == given
    assert printed(f"-c c.toml {flags}")["model"] == from_file | given
    other = """--model.dropout_at '{"attention": 0.25}' --model.activation silu"""
    expected = from_file | {"dropout_at": {"attention": 0.25}, "activation": "silu"}
    assert printed(f"-c c.toml {other}")["model"] == expected
    # Numbers and truth values are what they say, not texts.
    assert type(printed(flags)["model"]["width"]) is int
    assert printed(flags)["model"]["tied"] is False


def test_a_models_argument_may_be_nothing() -> None:
    Path("c.toml").write_text("[model]\ndecoder_depth = 2\n", encoding="utf-8")
    Path("d.toml").write_text(right("train -c c.toml --model.decoder_depth null --print-config"), encoding="utf-8")
    assert from_toml(Path("d.toml")).model == {"decoder_depth": None}


LINES = [
    "",
    "--source a.en --target a.de --out RUN --steps 500 --seed 3",
    "--recipe gpt --text 'my \"own\" text\\.txt' --model.width 128 --model.tied true --device cpu",
    "--task numbers-en-fr --rate 1e-2 --floor 1e-5 --schedule linear --tensorboard --clip 0 --hold-out 0.1",
    "--out 運行 --model.decoder-depth null --model.activation gelu --model.dropout 1e-1",
    *(f"-c {name}" for name in NAMES),
    *(f"-c {name} --steps 7 --task none --no-fixed-vectors" for name in NAMES),
]


@pytest.mark.parametrize("line", LINES)
def test_what_is_printed_and_read_is_printed_again(line: str) -> None:
    first = right(f"train {line} --print-config")
    Path("c.toml").write_text(first, encoding="utf-8")
    assert right("train -c c.toml --print-config") == first


@pytest.mark.parametrize("name", NAMES)
def test_a_training_is_found_by_name_and_by_path(name: str) -> None:
    text = trainings()[name].read_text(encoding="utf-8")
    said = tomllib.loads(text)
    model = said.pop("model")
    by_name = printed(f"-c {name}")
    assert {key: by_name[key] for key in said} == said
    assert by_name["model"] == model
    Path("mine.toml").write_text(text, encoding="utf-8")
    assert printed("-c mine.toml") == by_name


def test_a_folder_of_data_does_not_hide_the_training_of_its_name(tmp_path: Path) -> None:
    Path("multi30k").mkdir()
    assert found("multi30k") == trainings()["multi30k"]
    # A file of one's own does, for it can be meant.
    Path("shakespeare").write_text("steps = 3\n", encoding="utf-8")
    assert printed("-c shakespeare")["steps"] == 3


def test_of_a_run_its_settings_are_read() -> None:
    Path("RUN").mkdir()
    Path("RUN/config.toml").write_text("steps = 3\n", encoding="utf-8")
    assert found("RUN") == Path("RUN/config.toml")
    assert printed("-c RUN")["steps"] == 3
    assert printed("--out RUN --resume auto")["steps"] == 3
    # Without --resume it is only the place to write to.
    assert printed("--out RUN")["steps"] == Config().steps
    # A file that was named wins over the run's own.
    Path("c.toml").write_text("seed = 5\n", encoding="utf-8")
    assert printed("--out RUN --resume auto -c c.toml")["steps"] == Config().steps


@pytest.mark.parametrize("name", ["multi3k", "no.toml", "folder"])
def test_what_is_no_file_and_no_training_is_said(name: str) -> None:
    Path("folder").mkdir()
    with pytest.raises(UsageError, match=rf'"{name}"; there are multi30k'):
        found(name)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--steps 2.5", "--steps 2.5: give a whole number"),
        ("--warmup many", "--warmup many: give a whole number"),
        ("-c c.toml", "--steps 2.5 in c.toml: give a whole number"),
    ],
)
def test_half_an_update_is_not_rounded(line: str, says: str) -> None:
    Path("c.toml").write_text("steps = 2.5\n", encoding="utf-8")
    done = here(f"train {line} --print-config")
    assert (done.code, done.out, done.err) == (2, "", f"heedful: {says}\n")


@pytest.mark.parametrize("name", NAMES)
def test_a_training_that_comes_with_heedful_can_be_run(name: str) -> None:
    settings = from_toml(trainings()[name])
    made = resolved(dataclasses.replace(settings, out="RUN"), CPU)
    assert sum(given is not None for given in (made.source, made.text, made.task)) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_training_says_its_command(name: str) -> None:
    comments = [line for line in trainings()[name].read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    commands = [
        re.split(r"\s{3,}", line.removeprefix("#   "))[0] for line in comments if line.startswith("#   heedful")
    ]
    assert commands[0].startswith(f"heedful train -c {name} ")
    for line in commands:
        app.parse_args(shlex.split(line)[1:], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_training_says_what_it_takes_and_reaches(name: str) -> None:
    text = trainings()[name].read_text(encoding="utf-8")
    comments = " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
    assert re.search(r"(\d[\d.]*|a|half a) (second|minute|hour)s?\b", comments), "how long?"
    assert re.search(r"(BLEU|loss|right)\D{0,40}\d", comments), "how good?"
