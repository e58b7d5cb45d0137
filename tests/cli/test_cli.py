"""All commands together: examples first in every help, exit codes, messages where they belong."""

import os
import pty
import re
import resource
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import heedful
from heedful.cli import main
from heedful.cli.app import VERBS, app
from heedful.tasks import TASKS
from heedful.train.prepare import resolved
from heedful.train.signals import Stopped
from tests.cli.commands import apart, environment, help_of, here, right, started

PAGES = ["", *VERBS]


def examples(page: str, columns: int = 80) -> list[str]:
    """The command lines that a help begins with."""
    lines = help_of(page, columns).split("\n\n")[1].splitlines()
    return [line.strip() for line in lines]


def test_the_verbs_are_these_and_help_lists_them_in_this_order() -> None:
    assert sorted(VERBS) == sorted(name for name in app.resolved_commands() if not name.startswith("-"))
    listed = re.findall(r"^│ (\w+) ", help_of(""), re.MULTILINE)
    assert listed == list(VERBS)


@pytest.mark.parametrize("page", PAGES)
def test_help_begins_with_examples(page: str) -> None:
    said = right(f"{page} --help")
    assert said.startswith("Examples:\n\n  heedful ")
    assert f"Usage: heedful {page}" in said


@pytest.mark.parametrize("page", PAGES)
def test_help_fits_eighty_columns(page: str) -> None:
    assert max(map(len, help_of(page).splitlines())) <= 80
    # Nothing of the examples was wrapped to get there.
    assert examples(page) == examples(page, columns=200)


@pytest.mark.parametrize("page", PAGES)
def test_every_option_is_explained(page: str) -> None:
    bare = re.findall(r"^│\s+(?:\*\s+)?(-[\w-]+(?: [A-Z]+)?)\s*│$", help_of(page, columns=200), re.MULTILINE)
    assert [name for name in bare if not name.startswith("--no-")] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_example_is_a_right_command_line(page: str) -> None:
    for line in examples(page):
        *_, words = line.rpartition("heedful ") if line.startswith(("torchrun", "echo")) else ("", "", line)
        words = shlex.split(words.split(" > ")[0].replace("...", ""), comments=True)
        words = words[1:] if words[0] == "heedful" else words
        assert words[0] in VERBS
        assert page in ("", words[0])
        function, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
        given = bound.arguments
        assert function.__name__.rstrip("_") == words[0]
        assert given.get("task") in {None, *TASKS}
        if words[0] == "train" and "settings" in given:
            resolved(given["settings"], torch.device("cpu"))
        if words[0] in ("recipes", "explain", "schedule"):
            right(shlex.join(words))


def test_help_answers_in_half_a_second() -> None:
    """Of its own time: beside other tests, the clock on the wall says little."""
    for arguments in (["--help"], ["train", "--help"]):
        took = []
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            assert apart(*arguments).code == 0
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            took.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        assert min(took) < 0.5


def test_help_and_wrong_flags_do_without_torch() -> None:
    asked = [[verb, "--help"] for verb in VERBS] + [["train", "--nope"], ["train"], ["schedule", "nope"], ["--version"]]
    code = (
        "import sys\n"
        "from heedful.cli import main\n"
        f"for line in {asked!r}:\n"
        "    try: main(line)\n"
        "    except SystemExit: pass\n"
        "    assert 'torch' not in sys.modules, line\n"
        "    assert 'numpy' not in sys.modules, line\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment())


def test_python_m_heedful_is_heedful() -> None:
    script = Path(sys.executable).with_name("heedful")
    for arguments in (["--version"], ["schedule", "--help"], ["trian"]):
        done = subprocess.run([script, *arguments], capture_output=True, check=False, env=environment(), text=True)
        there = apart(*arguments)
        assert (done.returncode, done.stdout, done.stderr) == (there.code, there.out, there.err)
    assert apart("--version").out == f"{heedful.__version__}\n"


def test_every_command_that_computes_takes_a_device() -> None:
    for verb in ("demo", "train", "translate", "generate", "evaluate"):
        assert "--device STR" in help_of(verb)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("trian", 'Unknown command "trian". Did you mean "train"?'),
        ("train --stpes 3", "Unknown option: --stpes. Did you mean --steps?"),
        ("train --steps", "--steps requires an argument"),
        ("train file.en", "Unused Tokens: ['file.en']"),
        ("translate", "MODEL requires an argument"),
    ],
)
def test_a_wrong_command_line_is_one_line_on_stderr_and_says_where_examples_are(line: str, says: str) -> None:
    done = here(line)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert done.err.startswith("heedful: ")
    assert done.err.count("\n") == 1
    verb = line.split()[0]
    assert done.err.endswith(f"Examples: heedful {verb if verb in VERBS else ''} --help\n".replace("  ", " "))


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (ValueError("what is wrong"), 1, "what is wrong"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (MemoryError(), 1, "MemoryError"),
        (torch.OutOfMemoryError("CUDA out of memory"), 1, "CUDA out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 1, "can't allocate memory"),
        (Stopped(signal.SIGTERM, Path("RUN")), 143, "--out RUN --resume auto"),
        (Stopped(signal.SIGINT, Path("RUN")), 130, "--out RUN --resume auto"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_ending_has_its_exit_code(
    error: BaseException, code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(settings: object) -> None:
        raise error

    monkeypatch.setattr("heedful.train.loop.train", train)
    done = here("train --task copy --out RUN")
    assert (done.code, done.out) == (code, "")
    assert done.err == (f"heedful: {error}\n" if str(error) else says and f"heedful: {says}\n")
    assert says in done.err


def test_memory_that_there_is_not_says_so() -> None:
    """PyTorch has no type for it on a CPU, so it is known by its words."""
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        torch.empty(10**15)


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(settings: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("heedful.train.loop.train", train)
    with pytest.raises(KeyError, match="a bug"):
        main(["train", "--task", "copy", "--out", "RUN"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has one")
@pytest.mark.parametrize("to", ["/dev/full", None])
def test_an_output_that_takes_nothing(to: str | None) -> None:
    """A full disk is said; without any output there is nobody to miss it."""
    command = f"'{sys.executable}' -m heedful schedule noam --steps 5 --json {f'> {to}' if to else '>&-'}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False, env=environment(), text=True)
    assert done.returncode == (1 if to else 0)
    assert done.stderr == ("heedful: [Errno 28] No space left on device\n" if to else "")


def test_a_pipe_is_answered_line_by_line(place: Path) -> None:
    with started("translate", "RUN", "--device", "cpu", "--beams", "2", "--length", "4") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for text in ("twenty-one", "", "five hundred"):
            process.stdin.write(f"{text}\n")
            process.stdin.flush()
            assert select.select([process.stdout], [], [], 30)[0], "no answer to a line before the next one"
            assert bool(process.stdout.readline().strip()) == bool(text)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")


def test_who_reads_no_further_ends_it_without_a_word(place: Path) -> None:
    with started("translate", "RUN", "--device", "cpu", "--beams", "1", "--length", "4") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write("five\n")
        process.stdin.flush()
        assert process.stdout.readline().endswith("\n")
        process.stdout.close()
        process.stdin.write("six\n")
        process.stdin.flush()
        assert process.wait(timeout=30) == 128 + signal.SIGPIPE
        assert process.stderr.read() == ""


def test_ctrl_c_ends_a_translation_without_a_traceback(place: Path) -> None:
    with started("translate", "RUN", "--device", "cpu", "--beams", "1", "--length", "4") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("five\n")
        process.stdin.flush()
        assert process.stdout.readline().endswith("\n")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")


def in_a_terminal(*arguments: str, typed: bytes = b"", **more: str) -> tuple[int, str]:
    """Run a command with a terminal of 80 columns for all three streams; return its exit code and what was shown."""
    ours, theirs = pty.openpty()
    env = environment(TERM="xterm-256color", **more)
    command = [sys.executable, "-m", "heedful", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        os.write(ours, typed)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # Linux says so when the other side is closed
                break
            if not piece:
                break
            shown += piece
    os.close(ours)
    return process.returncode, shown.decode()


def test_no_color_is_heard_in_a_terminal() -> None:
    _, coloured = in_a_terminal("--help")
    _, plain = in_a_terminal("--help", NO_COLOR="1")
    assert re.search(r"\x1b\[[\d;]*3\dm", coloured)
    assert not re.search(r"\x1b\[[\d;]*[34]\d", plain)


def test_a_terminal_is_asked_for_lines_until_ctrl_d(place: Path) -> None:
    code, shown = in_a_terminal(
        "translate", "RUN", "--device", "cpu", "--beams", "1", "--length", "4", typed=b"twenty-one\n\x04"
    )
    assert code == 0
    assert "One text a line; Ctrl-D ends." in shown
    # What was typed, the hint, and the translation.
    assert len(shown.splitlines()) == 3
    assert "Traceback" not in shown
