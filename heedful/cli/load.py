"""What the commands that use a model share: the model, and the texts."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from heedful.cli.settings import UsageError
from heedful.data.files import read_lines
from heedful.decode.pack import pack
from heedful.folder import load
from heedful.model import Shell
from heedful.train.parallel import place

# Lines of a file that are read ahead, to be sorted by length and translated together.
TOGETHER = 2000


def loaded(folder: Path, device: str | None) -> Shell:
    return pack(load(folder, device=place(device)))


def lines_of(texts: Sequence[str], file: Path | None) -> Iterator[list[str]]:
    """Texts in the portions in which they are worked on: a pipe's line by line, for who waits for each."""
    if texts and file is not None:
        raise UsageError("texts and --file: give one of them")
    if texts:
        for text in texts:
            _check_characters(text)
        return iter([list(texts)])
    if file is not None:
        lines = read_lines(file)
        return iter(lambda: list(itertools.islice(lines, TOGETHER)), [])
    if sys.stdin.isatty():
        print("One text a line; Ctrl-D ends.", file=sys.stderr)
    return ([line] for line in read_lines(sys.stdin.buffer))


def _check_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{text!a} is not UTF-8: is it from a file of another encoding?") from None
