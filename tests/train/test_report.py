"""What a person sees: a line that moves in a terminal, plain lines elsewhere, nothing where nothing is to be shown."""

import io
import re
import sys

import pytest
import torch

from heedful.train import report as module
from heedful.train import train
from heedful.train.checkpoint import State
from heedful.train.config import Config
from heedful.train.report import Report, clock
from tests.train.tiny import config

ESCAPE = "\x1b["


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _plain(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def shown(monkeypatch, where, settings, **given):
    monkeypatch.setattr(sys, "stderr", where)
    train(settings, Report(**given))
    return where.getvalue()


def test_elsewhere_than_in_a_terminal_there_are_plain_lines(tmp_path, monkeypatch):
    said = shown(monkeypatch, io.StringIO(), config(tmp_path / "run"))
    assert ESCAPE not in said
    assert "\r" not in said
    lines = said.splitlines()
    assert lines[0] == "copy: 24 examples, 1 others held out by rule"
    assert lines[1] == "tokenizer: characters, 31 entries"
    assert lines[2].startswith("marian width=16 depth=1 heads=2 inner=32 dropout=0.1: 6,095 parameters, fp32 on cpu")
    assert lines[2].endswith("seed 1")
    assert lines[3] == "12 updates of 128 tokens, cosine up to 0.01"
    measured = [line for line in lines if line.startswith("step ")]
    assert [line.split(":")[0] for line in measured] == ["step 3", "step 6", "step 9", "step 12"]
    scores = r"greedy: chrF \d+\.\d, BLEU \d+\.\d, exactly right \d+\.\d%"
    assert re.fullmatch(rf"step 3: held out: loss \d\.\d{{4}}, perplexity \d+\.\d\d; {scores}", measured[0])
    assert re.fullmatch(rf"12 updates, [\d,]+ tokens, 0:0\d of training; in {tmp_path / 'run'}", lines[-1])


def test_quiet_is_quiet(tmp_path, monkeypatch):
    assert shown(monkeypatch, io.StringIO(), config(tmp_path / "a"), show=False) == ""
    assert shown(monkeypatch, Terminal(), config(tmp_path / "b"), show=False) == ""


def test_in_a_terminal_a_line_moves_and_the_curve_is_drawn(tmp_path, monkeypatch):
    said = shown(monkeypatch, Terminal(), config(tmp_path / "run"))
    assert ESCAPE in said
    assert "tokens/s" in said
    assert "held out" in said.split("12 updates, ")[0]
    assert re.search(r"[\u2801-\u28ff]", said), "a curve of dots"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_that_asks_for_plain_lines_gets_them(name, value, tmp_path, monkeypatch):
    monkeypatch.setenv(name, value)
    said = shown(monkeypatch, Terminal(), config(tmp_path / "run"))
    assert ESCAPE not in said
    assert "step 12: held out" in said


def test_a_pipe_stays_plain_where_colours_are_forced(tmp_path, monkeypatch):
    """As a build server does."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert ESCAPE not in shown(monkeypatch, io.StringIO(), config(tmp_path / "run"))


def test_text_in_brackets_is_no_markup(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    Report().say("[red]a[/red] [/nothing] " + "long " * 50)
    assert sys.stderr.getvalue() == "[red]a[/red] [/nothing] " + "long " * 50 + "\n"


def test_a_line_now_and_then(monkeypatch):
    """Where no line can move, one is said after a pause, with the time left at the pace so far."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    report, state = Report(), State()
    report.begin(Config(steps=100, recipe="gpt"), torch.nn.Linear(2, 2), torch.device("cpu"), state)
    line = {"loss": 2.5, "lr": 1e-3, "grad_norm": 0.5, "tokens_per_s": 1234.0}
    begun = len(sys.stderr.getvalue())
    # The first step takes 9 seconds, those after it 1 second, and each tenth another 4 to measure and save.
    left = {}
    for step in range(1, 61):
        took = 9.0 if step == 1 else 1.0
        now[0] += took
        state.go_on(step, 0, step, 100, took)
        report.step(line, state, took)
        now[0] += 4.0 if step % 10 == 0 else 0.0
        for found in re.findall(r"step (\d+)/100 · (\d+):(\d\d) left", sys.stderr.getvalue()[begun:]):
            left.setdefault(int(found[0]), 60 * int(found[1]) + int(found[2]))
    assert 4 <= len(left) <= 9
    for step, seconds in left.items():
        truly = sum(1.0 + (4.0 if n % 10 == 0 else 0.0) for n in range(step + 1, 101))
        if step > 20:
            assert seconds == pytest.approx(truly, rel=0.15), step
    for figure in ("loss 2.500", "lr 1.0e-03", "norm 0.50", "1,234 tokens/s", "GiB"):
        assert figure in sys.stderr.getvalue()


def test_the_time_left_of_a_run_that_goes_on_is_that_of_the_rest(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module, "PAUSE", 0.5)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    report, state = Report(), State(step=900, seconds=5000.0)
    report.begin(Config(steps=1000, recipe="gpt"), torch.nn.Linear(2, 2), torch.device("cpu"), state)
    for step in (901, 902, 903):
        now[0] += 2.0
        state.go_on(step, 0, step, 100, 2.0)
        report.step({"loss": 1.0, "lr": 1.0, "grad_norm": 1.0, "tokens_per_s": 1.0}, state, 2.0)
    assert "100 updates of" in sys.stderr.getvalue()
    assert sys.stderr.getvalue().count("3:14 left") == 1


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0:00"), (0.6, "0:01"), (59.9, "1:00"), (61, "1:01"), (3599.7, "1:00:00"), (3661, "1:01:01")],
)
def test_seconds_as_a_clock_shows_them(seconds, said):
    assert clock(seconds) == said
