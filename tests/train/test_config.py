"""Settings: to a file and back, whatever they hold; and what is wrong in a file is named."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.train import Config
from heedful.train.config import from_toml, to_toml

HOSTILE = [
    'a "quoted" name',
    "it's",
    "C:\\data\\new\\table",
    "two\nlines\r\nand\ta tab",
    '"""',
    "'''",
    "# no comment",
    "[model]",
    "key = 1",
    "\x00\x01\x1f\x7f\x80\x85\u2028\ufeff",
    "日本語 ümläüt 🦊 \u202e",
    "",
    " ",
    "true",
    "1",
    "nan",
    "null",
    "${HOME} {0} %s",
]


def back(config, folder):
    path = folder / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    return from_toml(path)


FIELDS = dataclasses.fields(Config)
TEXTS = [field.name for field in FIELDS if str(field.type).startswith("str")]
NUMBERS = [field.name for field in FIELDS if str(field.type).startswith(("int", "float"))]
SWITCHES = [field.name for field in FIELDS if str(field.type) == "bool"]


def test_every_setting_is_of_a_kind_that_is_tried_below():
    assert {*TEXTS, *NUMBERS, *SWITCHES, "model"} == {field.name for field in FIELDS}


def test_what_is_not_set_comes_back_unset(tmp_path):
    assert back(Config(), tmp_path) == Config()


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_a_text_comes_back_as_it_was_in_every_setting(text, tmp_path):
    for name in TEXTS:
        config = Config(**{name: text})
        assert back(config, tmp_path) == config, name
    config = Config(**dict.fromkeys(TEXTS, text), model={"name": [text, {"inside": text}]})
    if text != "null":
        assert back(config, tmp_path) == config


@pytest.mark.parametrize("value", [0, 1, -1, 10**18, 1.0, -0.0, 1e-30, 1e300, 0.1, math.inf, -math.inf], ids=str)
def test_a_number_comes_back_as_it_was_in_every_setting(value, tmp_path):
    for name in NUMBERS:
        found = getattr(back(Config(**{name: value}), tmp_path), name)
        assert (found, type(found)) == (value, type(value)), name


def test_switches_come_back(tmp_path):
    for name in SWITCHES:
        assert getattr(back(Config(**{name: True}), tmp_path), name) is True
        assert getattr(back(Config(**{name: False}), tmp_path), name) is False


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"width": 512, "dropout": 0.1, "tied": True, "activation": "silu"},
        {"stretch": {"kind": "linear", "factor": 4.0}},
        {"stretch": {"kind": "llama3", "factor": 8.0, "range": [1.0, 4.0], "deep": {"er": {"still": [[1], [2, 3]]}}}},
        {"kv_heads": None, "inside": {"nothing": None, "list": [None, 1]}},
        {"a name": 1, 'a "quoted" one': 2, "dotted.name": {"b.c": 3, "": 4}, "日本": 5},
        {"list": [], "table": {}},
    ],
    ids=str,
)
def test_arguments_of_a_model_come_back(model, tmp_path):
    assert back(Config(model=model), tmp_path) == Config(model=model)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text().filter(lambda t: t != "null"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.dictionaries(st.text(), VALUES, max_size=4), st.text(), st.floats(allow_nan=False), st.integers())
def test_anything_comes_back(tmp_path_factory, model, source, rate, seed):
    try:
        repr((model, source)).encode()
        str((model, source)).encode()
        config = Config(model=model, source=source, rate=rate, seed=seed)
        to_toml(config).encode()
    except UnicodeEncodeError:
        return  # half a character, which no file can hold
    assert back(config, tmp_path_factory.getbasetemp()) == config


def test_a_file_of_a_few_lines_is_enough(tmp_path):
    (tmp_path / "c.toml").write_text('source = "a"\nsteps = 5\n[model]\nwidth = 8\n')
    assert from_toml(tmp_path / "c.toml") == Config(source="a", steps=5, model={"width": 8})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stepps = 5\n", r'there is no setting "stepps"; did you mean "steps"\?'),
        ("qqqq = 5\n", r'there is no setting "qqqq"; there are data, source, '),
        ("steps = \n", "is not TOML"),
        ("steps = 5\nsteps = 6\n", "is not TOML"),
        ("model = 3\n", r"model is 3; its arguments stand under \[model\]"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(text, words, tmp_path):
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(ValueError, match=rf"c\.toml.*{words}"):
        from_toml(tmp_path / "c.toml")


def test_files_that_are_none(tmp_path):
    with pytest.raises(ValueError, match="there is no such file"):
        from_toml(tmp_path / "c.toml")
    (tmp_path / "c.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not TOML"):
        from_toml(tmp_path / "c.toml")
