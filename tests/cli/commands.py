"""What tests of the commands share: a command run here or in a process of its own, and small runs to use."""

import contextlib
import io
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
from rich.console import Console

from heedful.cli import main
from heedful.cli.app import app
from heedful.tasks import task

# A training that takes a moment. Each test adds where to, and what else it is about.
TINY = (
    "--model.width 16 --model.depth 1 --model.heads 2 --batch 256 --pack 0 --vocabulary 300 --precision fp32 "
    "--translate 4 --evaluate-every 2 --device cpu"
)
TRANSLATES = f"{TINY} --model.inner 32 --source a.en --target a.de"
WRITES = f"{TINY} --text a.en --longest 32"


@dataclass(frozen=True)
class Done:
    """What a command came to; `out` and `err` as they were written."""

    code: int
    out: str
    err: str


def here(line: str, typed: bytes = b"") -> Done:
    """A command line in this process, which has torch already; `typed` is what comes by the pipe."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(typed))),
        pytest.raises(SystemExit) as ending,
    ):
        main(shlex.split(line))
    code = ending.value.code
    assert isinstance(code, int)
    done = Done(code, out.getvalue(), err.getvalue())
    assert "\x1b" not in done.out + done.err, "escape codes where no terminal is"
    return done


def right(line: str, typed: bytes = b"") -> str:
    """What a command that must succeed says."""
    done = here(line, typed)
    assert done.code == 0, done.err
    return done.out


def help_of(verb: str, columns: int = 80) -> str:
    """What --help says where so many columns are."""
    console = Console(file=io.StringIO(), width=columns)
    app.help_print([verb] if verb else [], console=console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def environment(**more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {**kept, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1", **more}


def started(*arguments: str, **settings: object) -> subprocess.Popen[str]:
    """A command in a process of its own, with pipes."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", "heedful", *arguments]
    return subprocess.Popen(command, **{**pipes, "env": environment(), "encoding": "utf-8", **settings})


def apart(*arguments: str, **more: str) -> Done:
    """A command in a process of its own, to its end; `more` goes into its environment."""
    with started(*arguments, env=environment(**more)) as process:
        out, err = process.communicate(timeout=60)
    return Done(process.returncode, out, err)


def make_files() -> None:
    """a.en and a.de, 300 pairs of number words, in the folder where we are."""
    pairs = task("numbers-en-de").training(300, 0)
    Path("a.en").write_text("".join(f"{pair.source}\n" for pair in pairs), encoding="utf-8")
    Path("a.de").write_text("".join(f"{pair.target}\n" for pair in pairs), encoding="utf-8")
