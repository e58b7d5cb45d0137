r"""Text from disk: pairs to translate, documents to read, lines to answer.

    corpus = read_pairs("train.en", "train.de")
    print(corpus)                                  # 29,000 pairs; 2 dropped: 2 with nothing on one side
    training, validation = hold_out(corpus.kept, seed=0)

Files are UTF-8, plain or gzip (told by their content, not by their name).
A byte order mark at the beginning is no text.
Only "\n" and "\r\n" end a line: other separators of Unicode, and a lone "\r", are characters within one.

What cannot be learned from is left out and counted. What is broken is a ValueError, with the file and the line.
"""

from __future__ import annotations

import codecs
import difflib
import gzip
import io
import itertools
import json
import os
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Generic, NoReturn, TypeVar, Union

from heedful.tasks.task import Pair

LONGEST = 100_000  # characters on one side of a pair: more is a file without line ends, not a sentence
HELD_OUT = 1_000  # texts or lines held out at most
GZIP = b"\x1f\x8b"
NUL = "with a NUL character"

T = TypeVar("T")
Name = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Corpus(Generic[T]):
    """What was read: the pairs or documents that were kept, and how many were not, by reason."""

    kind: str
    kept: list[T] = field(repr=False)
    dropped: dict[str, int]

    @property
    def repeated(self) -> int:
        """How many of the kept equal one before them."""
        return len(self.kept) - len(set(self.kept))

    def __str__(self) -> str:
        said = f"{len(self.kept):,} {self.kind}{'' if len(self.kept) == 1 else 's'}"
        if self.repeated:
            said += f", {self.repeated:,} of them repeated"
        if self.dropped:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.dropped.items())
            said += f"; {sum(self.dropped.values()):,} dropped: {reasons}"
        return said


def read_pairs(source: Name, target: Name | None = None) -> Corpus[Pair]:
    """Parallel text: line n of `source` and line n of `target`, or one file that holds both.

    x.tsv     source TAB target
    x.jsonl   {"source": "...", "target": "..."} on each line

    Left out and counted: pairs with nothing but blanks on one side, with a side longer than LONGEST, and with a NUL,
    which no person writes: it is a sign of damage, and programs in C end the text there.
    """
    source = Path(source)
    if target is not None:
        target = Path(target)
        return _corpus("pair", f"{source} and {target}", _side_by_side(source, target), _flaw)
    kind = _kind(source)
    if kind == ".tsv":
        return _corpus("pair", str(source), _tab_separated(source), _flaw)
    if kind == ".jsonl":
        pairs = (Pair(*texts) for texts in _objects(source, "source", "target"))
        return _corpus("pair", str(source), pairs, _flaw)
    # A missing file, or a folder, says so itself.
    _open(source).close()
    raise ValueError(
        f"{source} alone is no parallel text: give the file of its translations too, or one .tsv or .jsonl file"
    )


def read_documents(path: Name) -> Corpus[str]:
    r"""Text for a language model: the whole file is one document; of x.jsonl, "text" on each line is one.

    Lines may have any length. Every line of a plain file ends in "\n" here, the last one too.
    A NUL in a plain file is an error, since no line can be left out of the middle of a text.
    """
    path = Path(path)
    if _kind(path) == ".jsonl":
        texts = (text for (text,) in _objects(path, "text"))
        return _corpus("document", str(path), texts, _document_flaw)
    return _corpus("document", str(path), ["".join(_whole(path))], _document_flaw)


def read_lines(source: Name | BinaryIO) -> Iterator[str]:
    """One text a line, of a file or of a binary stream such as sys.stdin.buffer, as they come.

    Nothing is left out, not even empty lines: line n of the answers belongs to line n here.
    """
    if isinstance(source, (str, os.PathLike)):
        # Opened at once, so that a missing file is said before a model is loaded to answer it.
        return _unpacked(_open(Path(source)), Path(source))
    return _decoded(source, "input")


def hold_out(pairs: Sequence[T], seed: int, share: float | None = None) -> tuple[list[T], list[T]]:
    """(training, validation): 1 % of the distinct pairs, at least 1 and at most HELD_OUT, drawn by `seed`.

    share   in place of 1 %; then there is no limit

    Every copy of a pair that is held out leaves the training.
    Where there are fewer than two distinct pairs, nothing is held out.
    """
    distinct = list(dict.fromkeys(pairs))
    if len(distinct) < 2:
        return list(pairs), []
    return _parted(pairs, random.Random(seed).sample(distinct, _count(len(distinct), share)))


def hold_out_end(documents: Sequence[str], share: float | None = None) -> tuple[list[str], list[str]]:
    """(training, validation): the last 1 % of a text, in lines, or of several documents, in documents.

    share   in place of 1 %; then there is no limit

    At least one, at most HELD_OUT; blank lines do not count. Every copy of a held-out document leaves the training.
    Where a text has fewer than two lines with something on them, nothing is held out.
    """
    distinct = list(dict.fromkeys(documents))
    if len(distinct) > 1:
        return _parted(documents, distinct[-_count(len(distinct), share) :])
    if len(documents) > 1:
        return list(documents), []
    lines = [line for document in documents for line in io.StringIO(document, newline="\n")]
    filled = [n for n, line in enumerate(lines) if line.strip()]
    if len(filled) < 2:
        return list(documents), []
    cut = filled[-_count(len(filled), share)]
    return ["".join(lines[:cut])], ["".join(lines[cut:])]


def _count(of: int, share: float | None) -> int:
    """How many are held out; never all."""
    if share is None:
        return max(1, min(of // 100, HELD_OUT))
    if not 0 < share < 1:
        raise ValueError(f"hold_out={share}: a share between 0 and 1, such as 0.1")
    return min(max(1, round(of * share)), of - 1)


def _parted(texts: Sequence[T], held_out: Iterable[T]) -> tuple[list[T], list[T]]:
    held = dict.fromkeys(held_out)
    in_order = [text for text in dict.fromkeys(texts) if text in held]
    return [text for text in texts if text not in held], in_order


def _corpus(kind: str, name: str, texts: Iterable[T], flaw: Callable[[T], str | None]) -> Corpus[T]:
    kept: list[T] = []
    dropped: Counter[str] = Counter()
    for text in texts:
        reason = flaw(text)
        if reason is None:
            kept.append(text)
        else:
            dropped[reason] += 1
    corpus = Corpus(kind, kept, dict(dropped))
    if not kept:
        advice = f"; {_convert('utf-16')}" if NUL in dropped else ""
        raise ValueError(f"nothing to learn from in {name}: {corpus}{advice}")
    return corpus


def _flaw(pair: Pair) -> str | None:
    source, target = pair
    if not source.strip() or not target.strip():
        return "with nothing on one side"
    if len(source) > LONGEST or len(target) > LONGEST:
        return f"longer than {LONGEST:,} characters"
    return NUL if "\0" in source or "\0" in target else None


def _document_flaw(text: str) -> str | None:
    if not text.strip():
        return "with nothing in it"
    return NUL if "\0" in text else None


def _side_by_side(source: Path, target: Path) -> Iterator[Pair]:
    pairs = lonely = 0
    longer = source
    for ours, theirs in itertools.zip_longest(_lines(source), _lines(target)):
        if ours is None or theirs is None:
            lonely += 1
            longer = target if ours is None else source
        else:
            pairs += 1
            yield Pair(ours, theirs)
    if lonely:
        counts = {source: pairs, target: pairs, longer: pairs + lonely}
        raise ValueError(
            f"{source} has {counts[source]:,} lines, {target} has {counts[target]:,}: "
            "line n of one must be the translation of line n of the other"
        )


def _tab_separated(path: Path) -> Iterator[Pair]:
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            yield Pair("", "")
            continue
        sides = line.split("\t")
        if len(sides) != 2:
            raise ValueError(
                f"{path}:{number}: {len(sides) - 1} tabs; one must part the source from the target: {_brief(line)}"
            )
        yield Pair(*sides)


def _objects(path: Path, *fields: str) -> Iterator[tuple[str, ...]]:
    wanted = "{" + ", ".join(f'"{name}": "..."' for name in fields) + "}"
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            yield ("",) * len(fields)
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ValueError(f"{path}:{number}: not a JSON object: {_brief(line)}; each line must be like {wanted}")
        for name in fields:
            if name not in found:
                raise ValueError(f"{path}:{number}: no field {name!r}: {_brief(line)}; each line must be like {wanted}")
            text = found[name]
            if not isinstance(text, str):
                raise ValueError(f"{path}:{number}: {name!r} is no text: {_brief(repr(text))}; try {wanted}")
            try:
                text.encode()
            except UnicodeEncodeError:
                # JSON can say "\ud83d" alone. No tokenizer can read it, no file hold it.
                raise ValueError(f"{path}:{number}: {name!r} holds half a character: {_brief(ascii(text))}") from None
        yield tuple(found[name] for name in fields)


def _whole(path: Path) -> Iterator[str]:
    for number, line in enumerate(_lines(path), 1):
        if "\0" in line:
            raise ValueError(
                f"{path}:{number}: a NUL character, which no text has: {_brief(line)}; "
                f"{_convert('utf-16')}; if it is damaged, try tr -d '\\000'"
            )
        yield line + "\n"


def _kind(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix


def _lines(path: Path) -> Iterator[str]:
    yield from _unpacked(_open(path), path)


def _unpacked(file: io.BufferedReader, path: Path) -> Iterator[str]:
    with file:
        head = file.peek(2)[:2]
        # Cut after its first byte, it is still one.
        packed = head != b"" and GZIP.startswith(head)
        try:
            yield from _decoded(gzip.GzipFile(fileobj=file) if packed else file, str(path))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path} is a cut or broken gzip file: {error}; try gzip -t, and another copy") from None


def _decoded(stream: Iterable[bytes], name: str) -> Iterator[str]:
    at = 0
    for number, line in enumerate(stream, 1):
        text, begin = line, at
        at += len(line)
        if number == 1 and line.startswith(codecs.BOM_UTF8):
            text = line.removeprefix(codecs.BOM_UTF8)
            begin += len(codecs.BOM_UTF8)
            if not text:
                continue
        if text.endswith(b"\n"):
            text = text[: -2 if text.endswith(b"\r\n") else -1]
        try:
            decoded = text.decode("utf-8")
        except UnicodeDecodeError as error:
            _not_utf8(name, number, text, begin, error.start)
        yield decoded


def _not_utf8(name: str, number: int, line: bytes, begin: int, at: int) -> NoReturn:
    where = f"{name}:{number}: not UTF-8: byte {begin + at + 1} of the file, 0x{line[at]:02x}"
    before = line[max(at - 20, 0) : at].decode("utf-8", "replace")
    if before:
        where += f" after {before!r}"
    if number == 1 and (line.startswith(GZIP) or name.endswith(".gz")):
        raise ValueError(f"{where}; if it is a gzip file, it is a broken one, or comes by a pipe: try zcat, or gzip -t")
    wide = b"\0" in line or line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    raise ValueError(f"{where}; {_convert('utf-16' if wide else 'latin-1')}")


def _convert(encoding: str) -> str:
    return f"if it is {encoding}, try iconv -f {encoding} -t utf-8"


def _open(path: Path) -> io.BufferedReader:
    try:
        return path.open("rb")
    except IsADirectoryError:
        files = sorted(entry.name for entry in path.iterdir() if entry.is_file())
        raise ValueError(f"{path} is a folder, not a file; in it are: {', '.join(files[:5]) or 'no files'}") from None
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise ValueError(f"there is no file {path}: there is no folder {path.parent}") from None
        near = difflib.get_close_matches(path.name, os.listdir(path.parent))
        advice = f"; did you mean {' or '.join(near)}?" if near else f": look into {path.parent.resolve()}"
        raise ValueError(f"there is no file {path}{advice}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def _brief(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "...")
