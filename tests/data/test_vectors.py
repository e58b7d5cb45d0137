"""Word vectors: each row read is the one that NumPy reads, and a broken file writes nothing."""

import gzip
import io
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from heedful.data.vectors import into, read_vectors

GLOVE = "the 0.5 -1.25 2\nof 1e-3 4 -0\n. . . 7 8 9\ncat 0.1 0.2 0.3\n"
VOCABULARY = {"<pad>": 0, "cat": 3, "the": 1, "heedful": 2}


def written(folder: Path, content: str | bytes, name: str = "vectors.txt") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def table(rows: int = 5, width: int = 3) -> nn.Embedding:
    return nn.Embedding(rows, width)


def test_glove_by_hand(tmp_path: Path) -> None:
    embedding = table()
    before = embedding.weight.detach().clone()
    found = into(embedding, VOCABULARY, written(tmp_path, GLOVE))
    assert embedding.weight[1].tolist() == [0.5, -1.25, 2.0]
    assert torch.equal(embedding.weight[3], torch.tensor([0.1, 0.2, 0.3]))
    for unknown in (0, 2, 4):
        assert torch.equal(embedding.weight[unknown], before[unknown])
    assert (found.found, found.missing) == (2, ("<pad>", "heedful"))
    assert str(found) == "2 of 4 words found; 2 keep their initial vectors, such as '<pad>', 'heedful'"
    assert embedding.weight.requires_grad
    assert embedding.weight.grad_fn is None


def test_a_fixed_table_stays_and_a_trainable_one_learns(tmp_path: Path) -> None:
    embedding = table()
    embedding.weight.requires_grad_(False)
    into(embedding, VOCABULARY, written(tmp_path, GLOVE))
    assert not embedding.weight.requires_grad
    assert embedding.weight[1].tolist() == [0.5, -1.25, 2.0]
    embedding.weight.requires_grad_(True)
    embedding(torch.tensor([1])).sum().backward()
    assert embedding.weight.grad is not None


@pytest.mark.parametrize("kind", ["glove", "word2vec", "word2vec.gz", "trailing spaces", "windows"])
def test_every_row_is_numpys(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    words = [f"word{n}" for n in range(200)]
    lines = [
        " ".join([word, *(f"{x:.6g}" for x in rng.normal(size=17) * 10.0 ** rng.integers(-9, 9))]) for word in words
    ]
    expected = np.loadtxt(io.StringIO("\n".join(lines)), usecols=range(1, 18)).astype(np.float32)
    if kind != "glove":
        lines = ["200 17", *lines]
    end = {"trailing spaces": " \n", "windows": "\r\n"}.get(kind, "\n")
    content = "".join(line + end for line in lines).encode()
    path = written(tmp_path, gzip.compress(content) if kind.endswith("gz") else content)
    wanted = rng.permutation(words)[:50].tolist()
    vectors = read_vectors(path, [*wanted, "absent"])
    assert set(vectors) == set(wanted)
    for word, vector in vectors.items():
        np.testing.assert_array_equal(vector.numpy(), expected[int(word[4:])])


def test_words_with_spaces(tmp_path: Path) -> None:
    content = "the 1 2 3\n. . . 4 5 6\nat name@domain.com 7 8 9\n\xa0 1 1 1\na\u2028b 2 2 2\n"
    vectors = read_vectors(written(tmp_path, content), [". . .", "at name@domain.com", ".", "\xa0", "a\u2028b"])
    assert {word: vector.tolist() for word, vector in vectors.items()} == {
        ". . .": [4, 5, 6],
        "at name@domain.com": [7, 8, 9],
        "\xa0": [1, 1, 1],
        "a\u2028b": [2, 2, 2],
    }
    first = written(tmp_path, ". . . 4 5 6\n1 1 2 3\n")
    assert {word: vector.tolist() for word, vector in read_vectors(first, [". . .", "1"]).items()} == {
        ". . .": [4, 5, 6],
        "1": [1, 2, 3],
    }


def test_the_first_of_two_counts(tmp_path: Path) -> None:
    path = written(tmp_path, "3 2\ncat 1 2\ndog 3 4\ncat 5 6\n")
    assert read_vectors(path, ["cat"])["cat"].tolist() == [1, 2]


def test_words_of_numbers_and_blank_last_lines(tmp_path: Path) -> None:
    path = written(tmp_path, "2004 0.5 0.25\nnan 1 2\n\n")
    vectors = read_vectors(path, ["2004", "nan"])
    assert vectors["2004"].tolist() == [0.5, 0.25]
    assert vectors["nan"].tolist() == [1, 2]


def test_another_precision(tmp_path: Path) -> None:
    embedding = table().to(torch.bfloat16)
    into(embedding, VOCABULARY, written(tmp_path, GLOVE))
    assert torch.equal(embedding.weight[3], torch.tensor([0.1, 0.2, 0.3]).bfloat16())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", r"vectors.txt has no word vectors: its first line is ''"),
        ("cat\ndog\n", r"has no word vectors: its first line is 'cat'"),
        ("the 1 2 3 4\n", r"the vectors of .*vectors.txt are 4 wide, 3 are wanted"),
        ("2 4\nthe 1 2 3 4\ncat 1 2 3 4\n", r"are 4 wide, 3 are wanted"),
        ("1 0\nthe\n", r"has no word vectors: its first line is '1 0'"),
        ("the 1 2 3\nof 1 2\n", r"vectors.txt:2: 2 numbers after the word, not 3: 'of 1 2'"),
        ("the 1 2 3\nof 1 2 3 4\n", r"vectors.txt:2: 4 numbers after the word, not 3"),
        ("2 3\nthe 1 2 3\nof\n", r"vectors.txt:3: 0 numbers after the word, not 3"),
        ("the 1 2 3\ncat 1 x 3\n", r"vectors.txt:2: 'x' is no number"),
        ("the 1 2 3\ncat 1 1_0 3\n", r"vectors.txt:2: '1_0' is no number"),
        ("the 1 2 3\ncat 1  3\n", r"vectors.txt:2: '' is no number"),
        ("the 1 2 3\ncat 1 nan 3\n", r"vectors.txt:2: nan is no number that a vector can have"),
        ("the 1 -inf 3\n", r"vectors.txt:1: -inf is no number that a vector can have"),
        ("the 1 1e300 3\n", r"vectors.txt:1: 1e\+300 is no number that a vector can have"),
        ("3 3\nthe 1 2 3\ncat 1 2 3\n", r"says 3 words in its first line, but 2 follow: is it cut\?"),
        ("1 3\nthe 1 2 3\ncat 1 2 3\n", r"says 1 words in its first line, but 2 follow"),
        (b"the 1 2 3\nc\xe9 1 2 3\n", r"vectors.txt:2: not UTF-8"),
        (gzip.compress(GLOVE.encode(), mtime=0)[:-9], r"vectors.txt is a cut or broken gzip file"),
    ],
)
def test_a_broken_file_writes_nothing(tmp_path: Path, content: str | bytes, said: str) -> None:
    embedding = table()
    before = embedding.weight.detach().clone()
    with pytest.raises(ValueError, match=said):
        into(embedding, VOCABULARY, written(tmp_path, content))
    assert torch.equal(embedding.weight, before)


def test_an_embedding_of_another_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rows 0\.\.2, but 'cat' has id 3"):
        into(table(rows=3), VOCABULARY, written(tmp_path, GLOVE))


def test_a_missing_file(tmp_path: Path) -> None:
    written(tmp_path, GLOVE, "glove.txt")
    with pytest.raises(ValueError, match=r"there is no file .*did you mean glove.txt\?"):
        into(table(), VOCABULARY, tmp_path / "glov.txt")


def test_no_word_is_found(tmp_path: Path) -> None:
    found = into(table(), {f"Ġw{n}": 0 for n in range(1234)}, written(tmp_path, GLOVE))
    assert str(found).startswith("0 of 1,234 words found; 1,234 keep their initial vectors, such as 'Ġw0', 'Ġw1'")


def test_rows_that_are_not_wanted_cost_little(tmp_path: Path) -> None:
    """Their numbers are not read: 20,000 rows of 300 in less than a second."""
    row = " 0.123456" * 300 + "\n"
    path = written(tmp_path, "".join(f"word{n}{row}" for n in range(20_000)))
    began = time.process_time()
    assert set(read_vectors(path, ["word19999"])) == {"word19999"}
    assert time.process_time() - began < 1.0
