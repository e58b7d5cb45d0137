"""What the commands that use a model share: the model, and the texts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from heedful.cli.settings import UsageError
from heedful.data.files import read_lines
from heedful.folder import load
from heedful.model import Shell
from heedful.train.parallel import place

# Lines of a file that are read ahead, to be sorted by length and translated together.
TOGETHER = 2000


def loaded(folder: Path, device: str | None) -> Shell:
    return load(folder, device=place(device))


def lines_of(texts: Sequence[str], file: Path | None) -> Iterator[list[str]]:
    """Texts in the portions in which they are worked on: a pipe's line by line, for who waits for each."""
    if texts and file is not None:
        raise UsageError("texts and --file: give one of them")
    if texts:
        yield list(texts)
        return
    if file is None:
        if sys.stdin.isatty():
            print("One text a line; Ctrl-D ends.", file=sys.stderr)
        for line in read_lines(sys.stdin.buffer):
            yield [line]
        return
    held: list[str] = []
    for line in read_lines(file):
        held.append(line)
        if len(held) == TOGETHER:
            yield held
            held = []
    if held:
        yield held
