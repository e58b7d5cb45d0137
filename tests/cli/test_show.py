"""heedful schedule, recipes and explain: what can be shown without a model."""

import inspect
import json
import tomllib

import pytest

from heedful.cli.settings import trainings
from heedful.models import RECIPES
from heedful.train.schedule import SCHEDULES, schedule
from tests.cli.commands import help_of, right


def rates(line: str) -> dict[str, list[float]]:
    made: dict[str, list[float]] = {}
    for text in right(f"schedule {line} --json").splitlines():
        point = json.loads(text)
        made.setdefault(point["name"], []).append(point["rate"])
        assert point["step"] == len(made[point["name"]])
    return made


def test_a_schedule_as_json_is_the_schedule() -> None:
    made = rates("cosine --steps 40 --rate 2e-3 --warmup 4 --floor 1e-4")
    rate = schedule("cosine", peak=2e-3, warmup=4, steps=40, floor=1e-4)
    assert made == {"cosine": [rate(step) for step in range(1, 41)]}


def test_of_several_each_takes_what_it_knows() -> None:
    made = rates("cosine cycles steps --steps 40 --every 5 --factor 0.1 --floor 1e-5")
    given = {"peak": 1e-3, "warmup": 4, "steps": 40}
    expected = {
        "cosine": schedule("cosine", **given, floor=1e-5),
        "cycles": schedule("cycles", **given, floor=1e-5, every=5),
        "steps": schedule("steps", **given, every=5, factor=0.1),
    }
    assert made == {name: [rate(step) for step in range(1, 41)] for name, rate in expected.items()}


@pytest.mark.parametrize("steps", [1, 2, 3, 50])
def test_all_are_drawn_where_none_is_named(steps: int) -> None:
    assert list(rates(f"--steps {steps}")) == list(SCHEDULES)


def test_noam_has_the_papers_peak_unless_told() -> None:
    assert max(rates("noam --width 512 --warmup 40 --steps 100")["noam"]) == pytest.approx((512 * 40) ** -0.5)
    assert max(rates("noam --warmup 40 --steps 100 --rate 0.5")["noam"]) == 0.5


@pytest.mark.parametrize("columns", [20, 80, 300])
def test_the_picture_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    drawn = right("schedule cosine cycles restarts --every 250")
    assert drawn.startswith("learning rate\n")
    assert all(name in drawn for name in ("cosine", "cycles", "restarts"))
    assert max(map(len, drawn.splitlines())) <= max(30, min(columns, 100))


def test_help_names_every_schedule() -> None:
    for verb in ("schedule", "train"):
        assert ", ".join(SCHEDULES) in help_of(verb, columns=200)


def test_models_and_trainings_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = right("recipes")
    models, files = said.split("\n\n")
    names = [[line.split()[0] for line in part.splitlines()[1:] if line[2] != " "] for part in (models, files)]
    assert names == [list(RECIPES), list(trainings())]
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize("name", RECIPES)
def test_a_models_arguments_are_listed(name: str) -> None:
    said = right(f"recipes {name}")
    arguments, docstring = said.split("\n\n", 1)
    assert docstring == f"{inspect.getdoc(RECIPES[name])}\n"
    parameters = inspect.signature(RECIPES[name]).parameters
    listed = dict(line.split(maxsplit=1) for line in arguments.splitlines())
    assert list(listed) == [f"--model.{argument}" for argument in parameters]
    made = json.loads(right(f"recipes {name} --json"))
    defaults = {argument: None if p.default is p.empty else p.default for argument, p in parameters.items()}
    assert made == {"recipes": {name: defaults}, "trainings": {}}


@pytest.mark.parametrize("name", trainings())
def test_a_training_is_shown_as_it_stands(name: str) -> None:
    text = trainings()[name].read_text(encoding="utf-8")
    assert right(f"recipes {name}") == text
    assert json.loads(right(f"recipes {name} --json")) == {"recipes": {}, "trainings": {name: tomllib.loads(text)}}


def test_everything_as_one_object() -> None:
    said = right("recipes --json")
    assert said.count("\n") == 1
    made = json.loads(said)
    assert list(made["recipes"]) == list(RECIPES)
    assert list(made["trainings"]) == list(trainings())


def test_the_example_is_explained() -> None:
    said = right("explain --example self-attention")
    assert "3 differ at the printed precision" in said
    assert right("explain self-attention") == said


def test_without_an_example_the_examples_are_listed() -> None:
    assert right("explain").startswith("self-attention    Self-attention over two words")
