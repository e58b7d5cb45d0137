"""Word vectors from disk into an embedding.

    print(into(model.embedding.tokens, tokenizer.get_vocab(), "glove.6B.300d.txt"))
    # 9,214 of 10,000 words found; 786 keep their initial vectors, such as 'Multi30k', 'heedful'

Two text formats, plain or gzip, one word and its numbers on each line, parted by single spaces:

    word2vec   the first line says "count width"    Mikolov et al. 2013, arXiv:1310.4546
    GloVe      has no such line                     Pennington et al. 2014, doi:10.3115/v1/D14-1162

They are vectors of whole words, so the vocabulary has to be one of words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from heedful.data.files import Name, read_lines

HEADER = re.compile(r"([0-9]{1,12}) ([0-9]{1,6})")


@dataclass(frozen=True)
class Found:
    """How many words of a vocabulary have a vector now, and which have none."""

    found: int
    missing: tuple[str, ...] = field(repr=False)

    def __str__(self) -> str:
        said = f"{self.found:,} of {self.found + len(self.missing):,} words found"
        if self.missing:
            some = ", ".join(repr(word) for word in self.missing[:5])
            said += f"; {len(self.missing):,} keep their initial vectors, such as {some}"
        return said


def into(embedding: nn.Embedding, vocabulary: Mapping[str, int], path: Name) -> Found:
    """Write the vectors of known words into the rows of an embedding; other rows stay as they are.

    vocabulary   word -> id, as `tokenizer.get_vocab()` gives it

    The table stays trainable. To keep it fixed: `embedding.weight.requires_grad_(False)`.
    The file is read to its end first: where it is broken, nothing is written.
    """
    rows, width = embedding.weight.shape
    wrong = [f"{word!r} has id {id}" for word, id in vocabulary.items() if not 0 <= id < rows]
    if wrong:
        raise ValueError(f"the embedding has rows 0..{rows - 1}, but {wrong[0]}: do they belong together?")
    vectors = read_vectors(path, vocabulary, width=width)
    if vectors:
        ids = torch.tensor([vocabulary[word] for word in vectors], device=embedding.weight.device)
        with torch.no_grad():
            embedding.weight.index_copy_(0, ids, torch.stack(list(vectors.values())).to(embedding.weight))
    return Found(len(vectors), tuple(word for word in vocabulary if word not in vectors))


def read_vectors(path: Name, words: Iterable[str], *, width: int | None = None) -> dict[str, Tensor]:
    """word -> its vector, for those of `words` that the file has; the first counts where a word comes twice.

    width   what the vectors must have; the file's own, if not given

    Numbers are read for these words alone: what the others' are is not looked at, only that they are as many.
    """
    wanted = frozenset(words)
    lines = enumerate(read_lines(path), 1)
    first = next(lines, (0, ""))[1].rstrip(" ")
    header = HEADER.fullmatch(first)
    own = int(header[2]) if header else _numbers_at_end(first)
    if own == 0:
        raise ValueError(f"{path} has no word vectors: its first line is {first[:60]!r}, not a word and its numbers")
    if width is not None and own != width:
        raise ValueError(f"the vectors of {path} are {own} wide, {width} are wanted")
    vectors: dict[str, Tensor] = {}
    count = 0
    for number, line in lines if header else _again(first, lines):
        line = line.rstrip(" ")  # word2vec's own program ends each line with one
        if not line:
            continue
        count += 1
        word = _word(line, own, f"{path}:{number}")
        if word in wanted and word not in vectors:
            vectors[word] = _vector(line, own, f"{path}:{number}")
    if header and count != int(header[1]):
        raise ValueError(f"{path} says {int(header[1]):,} words in its first line, but {count:,} follow: is it cut?")
    return vectors


def _again(first: str, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield 1, first
    yield from lines


def _numbers_at_end(line: str) -> int:
    """The width of a file by its first line: as many as stand at its end, after one word at least."""
    fields = line.split(" ")
    count = 0
    while count < len(fields) - 1 and _number(fields[-1 - count]) is not None:
        count += 1
    return count


def _word(line: str, width: int, where: str) -> str:
    extra = line.count(" ") - width
    if extra == 0:
        return line[: line.index(" ")]
    # GloVe's largest file has words with spaces in them, such as ". . ."; a number before the vector is none of them.
    word = line.rsplit(" ", width)[0]
    if extra < 0 or _number(word.rsplit(" ", 1)[1]) is not None:
        raise ValueError(f"{where}: {line.count(' ')} numbers after the word, not {width}: {line[:60]!r}")
    return word


def _vector(line: str, width: int, where: str) -> Tensor:
    values = []
    for text in line.rsplit(" ", width)[1:]:
        value = _number(text)
        if value is None:
            raise ValueError(f"{where}: {text!r} is no number: {line[:60]!r}")
        values.append(value)
    vector = torch.tensor(values, dtype=torch.float32)
    if not vector.isfinite().all():
        wrong = next(value for value, kept in zip(values, vector.tolist(), strict=True) if not math.isfinite(kept))
        raise ValueError(f"{where}: {wrong} is no number that a vector can have: {line[:60]!r}")
    return vector


def _number(text: str) -> float | None:
    try:
        # Python's own numbers may have underscores, 1_000; those of a file may not.
        return None if "_" in text else float(text)
    except ValueError:
        return None
