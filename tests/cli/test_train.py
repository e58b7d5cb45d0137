"""heedful train and heedful average: from two files to a model, and on."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from safetensors.torch import load_file

import heedful
from tests.cli.commands import TRANSLATES, WRITES, apart, here, make_files, right


@pytest.fixture
def copy(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The translator's run in a folder of its own, where one may write."""
    shutil.copytree(folder / "RUN", tmp_path / "RUN", symlinks=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "RUN"


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_two_files_are_enough_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_files()
    done = apart("train", *TRANSLATES.split(), "--out", "RUN", "--steps", "2", "--seed", "3")
    assert (done.code, done.out) == (0, "")
    assert "300 pairs" in done.err
    assert "held out" in done.err
    assert done.err.endswith('use it: heedful translate RUN "..."\n')
    assert "\x1b" not in done.err
    assert len(losses(tmp_path / "RUN")) == 2
    assert isinstance(heedful.load("RUN"), heedful.EncoderDecoder)


def test_a_language_model_from_one_file(place: Path) -> None:
    assert isinstance(heedful.load("LM"), heedful.Decoder)
    assert heedful.load("LM").recipe[0] == "gpt"


def test_json_is_one_compact_object(place: Path, tmp_path: Path) -> None:
    said = right(f"train {TRANSLATES} --out {tmp_path}/R --steps 2 --json")
    assert said.count("\n") == 1
    made = json.loads(said)
    assert set(made) == {"run", "steps", "tokens", "seconds", "best_step"}
    assert (made["run"], made["steps"]) == (f"{tmp_path}/R", 2)


def test_only_the_first_of_many_processes_speaks(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert right(f"train {TRANSLATES} --out {tmp_path}/R --steps 1 --json") == ""


def test_the_settings_that_are_printed_are_the_same_run(place: Path, tmp_path: Path) -> None:
    line = f"train {TRANSLATES} --out RUN --steps 6 --seed 3"
    settings = tmp_path / "c.toml"
    settings.write_text(right(f"{line} --print-config"), encoding="utf-8")
    right(f"train -c {settings} --out {tmp_path}/again")
    assert losses(tmp_path / "again") == losses(place / "RUN")
    right(f"train -c RUN --device cpu --out {tmp_path}/once-more")
    for run in ("again", "once-more"):
        mine, theirs = (load_file(path / "latest/model.safetensors") for path in (tmp_path / run, place / "RUN"))
        assert mine.keys() == theirs.keys()
        assert all(mine[name].equal(theirs[name]) for name in mine)


def test_a_run_goes_on_with_its_own_settings(copy: Path) -> None:
    before = tomllib.loads((copy / "config.toml").read_text(encoding="utf-8"))
    assert right("train --out RUN --resume auto --device cpu") == ""
    assert len(losses(copy)) == 6
    right("train --out RUN --resume auto --steps 8 --device cpu")
    assert len(losses(copy)) == 8
    assert tomllib.loads((copy / "config.toml").read_text(encoding="utf-8")) == {**before, "steps": 8}


def test_going_on_with_other_settings_is_refused(copy: Path) -> None:
    done = here("train --out RUN --resume auto --seed 4 --model.width 32 --device cpu")
    assert (done.code, done.out) == (1, "")
    assert "seed was 3 and is 4" in done.err
    assert "'width': 16" in done.err


def test_a_model_argument_may_be_written_with_dashes(place: Path, tmp_path: Path) -> None:
    right(f"train {TRANSLATES} --out {tmp_path}/R --steps 1 --model.decoder-depth 2")
    model = heedful.load(tmp_path / "R")
    assert len(model.encoder.layers) == 1
    assert len(model.decoder.layers) == 2


def test_the_average_is_the_mean_of_the_latest_checkpoints(copy: Path) -> None:
    steps = sorted(copy.glob("checkpoints/step-*"), reverse=True)
    assert [path.name for path in steps[:3]] == ["step-00000006", "step-00000004", "step-00000002"]
    for flags, count in (("", 3), ("--last 2", 2), ("--last 1", 1)):
        out = f"AVERAGED-{count}"
        assert right(f"average RUN {out} {flags}") == f"{out}\n"
        mine = load_file(f"{out}/model.safetensors")
        theirs = [load_file(path / "model.safetensors") for path in steps[:count]]
        for name, tensor in mine.items():
            mean = sum(one[name].double() for one in theirs) / count
            assert tensor.double().sub(mean).abs().max() < 1e-7
    # What comes out is a model like any other.
    assert right("translate AVERAGED-3 five --length 3 --beams 1 --device cpu").count("\n") == 1


def test_a_writer_is_told_to_generate(place: Path, tmp_path: Path) -> None:
    done = here(f"train {WRITES} --out '{tmp_path}/my run' --steps 1")
    assert done.code == 0
    assert done.err.endswith(f"""use it: heedful generate '{tmp_path}/my run' "..."\n""")
