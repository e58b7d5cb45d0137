"""heedful demo, made small: what it says, in which order, and to whom."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import heedful
from heedful.cli import demo
from heedful.cli.app import app
from tests.cli.commands import Done, here

SMALL = """
task = "numbers-en-de"
examples = 200
vocabulary = 300
steps = 3
batch = 256
pack = 0
precision = "fp32"
tokenize = "char"
translate = 2
[model]
width = 16
depth = 1
heads = 2
inner = 32
"""


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's own training, with fewer of everything."""
    (tmp_path / "number-words.toml").write_text(SMALL, encoding="utf-8")
    monkeypatch.setattr("heedful.cli.settings.TRAININGS", tmp_path)
    monkeypatch.setattr(demo, "MEASURED", 12)
    monkeypatch.setattr(demo, "SAMPLES", (21, 1001))
    monkeypatch.chdir(tmp_path)


def done(line: str) -> Done:
    made = here(f"demo --device cpu {line}")
    assert made.code == 0, made.err
    return made


def test_json_is_one_compact_object() -> None:
    said = done("--steps 5 --json").out
    assert said.count("\n") == 1
    made = json.loads(said)
    assert set(made) == {"exact_match", "chrf", "bleu", "train_seconds", "run"}
    assert made["run"] == "runs/demo-de"
    assert 0 <= made["exact_match"] <= 1
    assert made["train_seconds"] > 0
    assert len((Path(made["run"]) / "metrics.jsonl").read_text().splitlines()) == 5


def test_each_demo_has_a_run_of_its_own() -> None:
    runs = [json.loads(done("--steps 1 --json").out)["run"] for _ in range(2)]
    assert runs == ["runs/demo-de", "runs/demo-de-2"]


def test_the_figures_are_the_trained_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured again by the command for that, on the same held-out numbers."""
    made = json.loads(done("--json").out)
    again = here(
        "evaluate runs/demo-de --task numbers-en-de --examples 12 --beams 1 --tokenize char --device cpu --json"
    )
    there = json.loads(again.out)
    assert made["exact_match"] == there["exact_match"]
    assert made["chrf"] == pytest.approx(there["chrf"], abs=0.01)
    assert made["bleu"] == pytest.approx(there["bleu"], abs=0.01)


def test_everything_is_shown_in_turn() -> None:
    made = done("")
    assert made.err.startswith("English number words to German")
    parts = [
        "12 held-out numbers",
        "exactly right",
        "chrF",
        "nc:6",
        "BLEU",
        "tok:char",
        "twenty-one",
        "→",
        "one thousand",
    ]
    parts += ["What to try next", "heedful translate runs/demo-de"]
    places = [made.out.index(part) for part in parts]
    assert places == sorted(places)
    # Nobody sits there to be asked.
    assert "Your turn" not in made.out


def test_the_figures_fit_eighty_columns() -> None:
    lines = done("").out.splitlines()
    assert max(len(line) for line in lines if "version:" in line) <= 80


def test_the_picture_has_a_row_for_each_piece_that_is_said() -> None:
    out = done("").out
    picture = out[out.index("last layer's heads") :].split("\n\n")[1].splitlines()
    said = "".join(re.split(r"\s", line.strip())[0] for line in picture[1:])
    assert said == "einundzwanzig</s>"
    assert picture[0].replace(" ", "") == "twenty-one</s>"
    for line in picture[1:]:
        assert sum(map(int, re.findall(r"\b\d+\b", line))) == pytest.approx(100, abs=4)


def test_what_to_try_next_can_be_tried() -> None:
    out = done("--out 'my runs/one' --steps 1").out
    lines = [line.strip() for line in out.splitlines() if line.startswith("  heedful ")]
    assert len(lines) == 4
    for line in lines:
        app.parse_args(shlex.split(line)[1:], exit_on_error=False, print_error=False)
    assert here(f"{lines[0].removeprefix('heedful ')} --device cpu --length 3").code == 0


@pytest.mark.parametrize("to", ["fr", "zh"])
def test_other_languages(to: str) -> None:
    made = done(f"--to {to} --steps 1")
    assert f"runs/demo-{to}" in made.out
    assert {"fr": "vingt", "zh": "二"}[to] in made.out


def test_what_is_typed_is_translated_until_an_empty_line_or_ctrl_d(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = heedful.load(folder / "RUN", device="cpu")

    def try_with(*lines: str | None) -> list[str]:
        answers: Iterator[str | None] = iter(lines)

        def typed(prompt: str) -> str:
            answer = next(answers)
            if answer is None:
                raise EOFError
            return answer

        monkeypatch.setattr("builtins.input", typed)
        demo._try(model)
        assert next(answers, "all read") == "all read"
        return capsys.readouterr().out.splitlines()

    intro = ["", "Your turn: a number in English words; an empty line ends."]
    expected = heedful.translate(model, ["twenty-one"], beams=1)
    assert try_with(" twenty-one ", "") == intro + expected
    # A terminal that is closed leaves the prompt's line.
    assert try_with("twenty-one", None) == [*intro, *expected, ""]


def test_what_a_model_says_is_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.decode.translate", lambda model, texts, beams: ["[/red] [bold]x :smile:"] * len(texts))
    assert "[/red] [bold]x :smile:" in done("--steps 1").out
