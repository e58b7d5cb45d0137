"""The command: examples first in every help, exit codes, messages where they belong."""

import subprocess
import sys
import time

import pytest

import heedful
from heedful.cli.app import app


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "heedful", *arguments]
    env = {"PATH": "/usr/bin:/bin", "COLUMNS": "100", "PYTHONIOENCODING": "utf-8", **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env, encoding="utf-8")


@pytest.mark.parametrize("arguments", [(), ("--help",), ("explain", "--help")])
def test_help_begins_with_examples(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 0
    assert done.stdout.startswith("Examples:\n\n  heedful ")


def test_help_answers_in_half_a_second() -> None:
    took = []
    for _ in range(3):
        began = time.perf_counter()
        run("--help")
        took.append(time.perf_counter() - began)
    assert min(took) < 0.5


def test_the_version_is_printed() -> None:
    assert run("--version").stdout.strip() == heedful.__version__


def test_the_example_is_explained() -> None:
    done = run("explain", "--example", "self-attention")
    assert done.returncode == 0
    assert "3 differ at the printed precision" in done.stdout
    assert "\x1b[" not in done.stdout
    assert done.stderr == ""


def test_without_an_example_the_examples_are_listed() -> None:
    assert run("explain").stdout.startswith("self-attention    Self-attention over two words")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("explian",), 'Did you mean "explain"?'),
        (("explain", "--exampel", "x"), "Did you mean --example?"),
        (("explain", "--example", "nothing"), "there are: self-attention"),
    ],
)
def test_a_wrong_command_line_is_answered_on_stderr_with_2(arguments: tuple[str, ...], says: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_the_verbs_are_these() -> None:
    assert sorted(name for name in app.resolved_commands() if not name.startswith("-")) == [
        "average",
        "demo",
        "evaluate",
        "explain",
        "generate",
        "recipes",
        "schedule",
        "train",
        "translate",
    ]
