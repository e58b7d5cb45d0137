"""Text from disk: what is a line, what is left out, and what is said where a file is broken."""

import bz2
import gzip
import io
import json
import os
import random
import re
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data.files import (
    HELD_OUT,
    LONGEST,
    Corpus,
    hold_out,
    hold_out_end,
    read_documents,
    read_lines,
    read_pairs,
)
from heedful.tasks.task import Pair

# Whatever Python's splitlines takes for the end of a line, and files do not.
SEPARATORS = ["\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
MILLION = "x" * 1_000_000


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.fixture(scope="module")
def multi30k() -> Path:
    data = os.environ.get("HEEDFUL_DATA")
    if data is None:
        # On the continuous integration it has to be there.
        assert os.environ.get("CI") != "true", "set HEEDFUL_DATA to the folder that holds multi30k/train.{en,de}"
        pytest.skip("HEEDFUL_DATA is not set to the folder that holds multi30k/train.{en,de}")
    return Path(data) / "multi30k"


# Parallel text, well formed.


def by_name(folder: Path, name: str, pairs: list[tuple[str, str]]) -> Corpus[Pair]:
    """Pairs written in one of the formats, each byte by hand, and read again."""
    if name == "two files":
        a = written(folder, "a", "".join(source + "\n" for source, _ in pairs))
        b = written(folder, "b", "".join(target + "\n" for _, target in pairs))
        return read_pairs(a, b)
    if "tsv" in name.lower():
        content = "".join(f"{source}\t{target}\n" for source, target in pairs).encode()
    else:
        lines = [json.dumps({"target": b, "more": 1, "source": a}, ensure_ascii=False) for a, b in pairs]
        content = "\n".join(lines).encode()
    return read_pairs(written(folder, name, gzip.compress(content) if name.endswith(".gz") else content))


@pytest.mark.parametrize("name", ["two files", "x.tsv", "x.tsv.gz", "x.jsonl", "x.jsonl.gz", "X.TSV"])
def test_every_format_gives_the_same_pairs(tmp_path: Path, name: str) -> None:
    pairs = [("a cat", "eine Katze"), ("二", " zwei "), ("a\u2028b", "\x0c\x85c"), ("a cat", "eine Katze")]
    corpus = by_name(tmp_path, name, pairs)
    assert corpus.kept == [Pair(*pair) for pair in pairs]
    assert str(corpus) == "4 pairs, 1 of them repeated"
    assert "cat" not in repr(corpus)


def test_gzip_is_told_by_its_content(tmp_path: Path) -> None:
    packed = written(tmp_path, "x.tsv", gzip.compress(b"a\tb\n") + gzip.compress(b"c\td\n"))
    plain = written(tmp_path, "y.tsv.gz", b"a\tb\nc\td\n")
    assert read_pairs(packed).kept == read_pairs(plain).kept == [("a", "b"), ("c", "d")]


line = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=20) | st.sampled_from(SEPARATORS[1:])


@settings(max_examples=100, deadline=None)
@given(lines=st.lists(line, min_size=1, max_size=8), end=st.sampled_from(["\n", "\r\n"]), last=st.booleans())
def test_lines_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, lines, end, last) -> None:
    if lines[-1] == "" or lines[0].startswith("\ufeff"):
        lines = ["x", *lines, "x"]  # an empty last line without an end is no line, and a BOM at the beginning no text
    content = (end.join(lines) + (end if last else "")).encode()
    path = written(tmp_path_factory.mktemp("lines"), "x", content)
    assert list(read_lines(path)) == lines
    assert list(read_lines(io.BytesIO(content))) == lines
    path.write_bytes(gzip.compress(content))
    assert list(read_lines(path)) == lines


@settings(max_examples=100, deadline=None)
@given(pairs=st.lists(st.tuples(line, line), max_size=8))
def test_what_is_kept_and_what_is_dropped_is_everything(tmp_path_factory: pytest.TempPathFactory, pairs) -> None:
    pairs = [("x", "y"), *pairs]
    folder = tmp_path_factory.mktemp("pairs")
    corpus = by_name(folder, "two files", pairs)
    good = [(a, b) for a, b in pairs if not (a + " ").isspace() and not (b + " ").isspace() and "\0" not in a + b]
    assert corpus.kept == good
    assert sum(corpus.dropped.values()) == len(pairs) - len(good)
    assert by_name(folder, "x.jsonl", pairs) == corpus


@pytest.mark.parametrize("separator", SEPARATORS)
def test_only_newlines_end_a_line(tmp_path: Path, separator: str) -> None:
    path = written(tmp_path, "x", f"{separator}a{separator}b\nc{separator}")
    assert list(read_lines(path)) == [f"{separator}a{separator}b", f"c{separator}"]


# The ten hostile corpora: as two files, and the message or the result.


def test_an_empty_file(tmp_path: Path) -> None:
    empty, also = written(tmp_path, "a", ""), written(tmp_path, "b", "\ufeff")
    with pytest.raises(ValueError, match=r"nothing to learn from in .*a and .*b: 0 pairs$"):
        read_pairs(empty, also)
    for path in (empty, also, written(tmp_path, "c.jsonl", "")):
        with pytest.raises(ValueError, match="nothing to learn from in"):
            read_documents(path)
    assert list(read_lines(empty)) == list(read_lines(also)) == []
    with pytest.raises(ValueError, match="0 pairs; 3 dropped: 3 with nothing on one side"):
        read_pairs(written(tmp_path, "d", "\n\u3000\n \n"), written(tmp_path, "e", "a\nb\nc\n"))


def test_one_line(tmp_path: Path) -> None:
    corpus = read_pairs(written(tmp_path, "a", "one"), written(tmp_path, "b", "eins\n"))
    assert corpus.kept == [("one", "eins")]
    assert str(corpus) == "1 pair"
    assert hold_out(corpus.kept, seed=0) == (corpus.kept, [])


def test_unequal_lines(tmp_path: Path) -> None:
    two, three = written(tmp_path, "a", "1\n2\n"), written(tmp_path, "b", "1\n2\n3")
    for source, target, said in ((two, three, (2, 3)), (three, two, (3, 2))):
        message = f"{source} has {said[0]} lines, {target} has {said[1]}: line n of one"
        with pytest.raises(ValueError, match=re.escape(message)):
            read_pairs(source, target)
    with pytest.raises(ValueError, match=r"a has 2 lines, .*e has 0"):
        read_pairs(two, written(tmp_path, "e", ""))


def test_windows_line_ends_and_a_byte_order_mark(tmp_path: Path) -> None:
    a = written(tmp_path, "a", b"\xef\xbb\xbfone\r\n\xef\xbb\xbftwo\r\n\r\n")
    b = written(tmp_path, "b", b"eins\nzwei\r\r\ndrei")
    corpus = read_pairs(a, b)
    # Within a file the mark is a character, and of "\r\r\n" only the last two end the line.
    assert corpus.kept == [("one", "eins"), ("\ufefftwo", "zwei\r")]
    assert str(corpus) == "2 pairs; 1 dropped: 1 with nothing on one side"


def test_nul(tmp_path: Path) -> None:
    a, b = written(tmp_path, "a", "one\nt\0wo\nthree\n"), written(tmp_path, "b", "eins\nzwei\n\0drei\n")
    corpus = read_pairs(a, b)
    assert corpus.kept == [("one", "eins")]
    assert corpus.dropped == {"with a NUL character": 2}
    with pytest.raises(ValueError, match=r"a:2: a NUL character.*'t\\x00wo'.*iconv -f utf-16.*tr -d"):
        read_documents(a)
    assert list(read_lines(a))[1] == "t\0wo"


def test_a_million_characters(tmp_path: Path) -> None:
    a, b = written(tmp_path, "a", f"one\n{MILLION}\n"), written(tmp_path, "b", "eins\nzwei\n")
    assert str(read_pairs(a, b)) == "1 pair; 1 dropped: 1 longer than 100,000 characters"
    assert read_pairs(b, a).kept == [("eins", "one")]
    assert read_documents(a).kept == [f"one\n{MILLION}\n"]
    exactly = written(tmp_path, "x.tsv", f"{'二' * LONGEST}\tb\n{'x' * (LONGEST + 1)}\tb\n")
    assert [len(pair.source) for pair in read_pairs(exactly).kept] == [LONGEST]
    with pytest.raises(ValueError, match=r"y.tsv:1: 0 tabs") as error:
        read_pairs(written(tmp_path, "y.tsv", MILLION))
    assert len(str(error.value)) < 300 + len(str(tmp_path))
    with pytest.raises(ValueError, match=r"z.jsonl:1: not a JSON object"):
        read_pairs(written(tmp_path, "z.jsonl", "[" * 1_000_000))


def test_a_cut_or_broken_gzip_file(tmp_path: Path) -> None:
    content = "".join(f"{random.Random(n).random()}\n" for n in range(300)).encode()
    packed = gzip.compress(content)
    for cut in [*range(1, 30), *range(30, len(packed), 97), len(packed) - 1]:
        path = written(tmp_path, "a.gz", packed[:cut])
        with pytest.raises(ValueError, match=r"a\.gz is a cut or broken gzip file"):
            read_documents(path)
    # One flipped bit changes nothing of the text (a date, a name), or it is seen.
    for place in random.Random(0).sample(range(len(packed) * 8), 300):
        broken = bytearray(packed)
        broken[place // 8] ^= 1 << place % 8
        path = written(tmp_path, "b.gz", bytes(broken))
        try:
            found = "".join(line + "\n" for line in read_lines(path)).encode()
        except ValueError as error:
            found = content if "b.gz" in str(error) and "gzip" in str(error) else str(error).encode()
        assert found == content, place


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("one\ncafé\n".encode("latin-1"), ("a:2: not UTF-8: byte 8 of the file, 0xe9 after 'caf'", "iconv -f latin-1")),
        (b"\xef\xbb\xbf\xff", ("a:1: not UTF-8: byte 4 of the file, 0xff;", "iconv -f latin-1")),
        ("one\ntwo\n".encode("utf-16"), ("a:1: not UTF-8: byte 1 of the file, 0xff", "iconv -f utf-16 -t utf-8")),
        ("ça\n".encode("utf-16-be"), ("a:1: not UTF-8: byte 2 of the file, 0xe7", "iconv -f utf-16 -t utf-8")),
        (b"ok\n\xed\xa0\xbd\n", ("a:2: not UTF-8: byte 4 of the file, 0xed",)),
        (b"ok\r\ncut \xe4\xba", ("a:2: not UTF-8: byte 9 of the file, 0xe4 after 'cut '",)),
        (bz2.compress(b"one\n"), ("a:1: not UTF-8",)),
    ],
)
def test_the_wrong_encoding(tmp_path: Path, content: bytes, said: tuple[str, ...]) -> None:
    a, b = written(tmp_path, "a", content), written(tmp_path, "b", "1\n2\n")
    for read in (lambda: read_pairs(a, b), lambda: read_pairs(b, a), lambda: list(read_lines(a))):
        with pytest.raises(ValueError, match=r".") as error:
            read()
        assert all(part in str(error.value) for part in said), error.value
        assert str(error.value).startswith(str(a))


def test_wide_encodings_that_happen_to_be_utf8_leave_nothing(tmp_path: Path) -> None:
    a = written(tmp_path, "a", "one\ntwo".encode("utf-16-le"))
    with pytest.raises(ValueError, match=r"0 pairs; 2 dropped: 2 with a NUL character; if it is utf-16, try iconv"):
        read_pairs(a, a)


def test_all_duplicates(tmp_path: Path) -> None:
    a, b = written(tmp_path, "a", "one\n" * 500), written(tmp_path, "b", "eins\n" * 500)
    corpus = read_pairs(a, b)
    assert str(corpus) == "500 pairs, 499 of them repeated"
    assert hold_out(corpus.kept, seed=0) == (corpus.kept, [])
    documents = read_documents(written(tmp_path, "c.jsonl", '{"text": "one\\ntwo"}\n' * 500))
    assert hold_out_end(documents.kept) == (documents.kept, [])


# What else is wrong with files.


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.tsv", "a\tb\n\nno tab\n", r"x\.tsv:3: 0 tabs; one must part the source from the target: 'no tab'"),
        ("x.tsv", "a\tb\tc\n", r"x\.tsv:1: 2 tabs"),
        ("x.jsonl", '{"source": "a"}', r"""x\.jsonl:1: no field 'target': .*\{"source": "...", "target": "..."\}"""),
        ("x.jsonl", '{"source": "a", "target": "b"}\n{"source": 1, "target": "b"}', r"x\.jsonl:2: 'source' is no text"),
        ("x.jsonl", '{"source": "a", "target": null}', r"x\.jsonl:1: 'target' is no text: 'None'"),
        ("x.jsonl", '["a", "b"]', r"x\.jsonl:1: not a JSON object"),
        ("x.jsonl", '{"source": "a", ', r"x\.jsonl:1: not a JSON object: '\{\"source"),
        ("x.jsonl", "1" * 5000, r"x\.jsonl:1: not a JSON object"),
        ("x.jsonl", '{"source": "\\ud83d", "target": "b"}', r"x\.jsonl:1: 'source' holds half a character"),
        ("x.txt", "a\n", r"x\.txt alone is no parallel text: .* one \.tsv or \.jsonl file"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, name: str, content: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_pairs(written(tmp_path, name, content))


def test_blank_lines_of_one_file_are_counted(tmp_path: Path) -> None:
    for name, content in (("x.tsv", "a\tb\n\n\t\nc\t \n"), ("x.jsonl", '{"source": "a", "target": "b"}\n\n\n \n')):
        corpus = read_pairs(written(tmp_path, name, content))
        assert corpus.kept == [("a", "b")]
        assert corpus.dropped == {"with nothing on one side": 3}


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for name in ("train.en", "train.de"):
        written(tmp_path, name, "a\n")
    with pytest.raises(ValueError, match=r"there is no file .*/trian.en; did you mean train.en or train.de\?"):
        read_pairs(tmp_path / "trian.en", tmp_path / "train.de")
    with pytest.raises(ValueError, match=r"there is no file .*/trian.en; did you mean"):
        read_pairs(tmp_path / "trian.en")
    with pytest.raises(ValueError, match=r"there is no file .*no folder .*/wher$"):
        read_documents(tmp_path / "wher" / "x")
    with pytest.raises(ValueError, match=r"there is no file .*: look into"):
        read_lines(tmp_path / "quite another name")  # at once, before the first line is asked for
    with pytest.raises(ValueError, match=r"is a folder, not a file; in it are: train.de, train.en"):
        read_documents(tmp_path)
    with pytest.raises(ValueError, match=r"train.en/x cannot be read: Not a directory"):
        read_documents(tmp_path / "train.en" / "x")


def test_a_pipe_is_read_line_by_line() -> None:
    ends = os.pipe()
    with os.fdopen(ends[0], "rb") as stream, os.fdopen(ends[1], "wb", buffering=0) as sink:
        lines = read_lines(stream)
        for text in ("one", "", "three"):
            sink.write(text.encode() + b"\n")
            assert next(lines) == text  # it would wait for ever if it read ahead


def test_a_packed_stream_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"input:1: not UTF-8.*zcat"):
        list(read_lines(io.BytesIO(gzip.compress(b"one\n"))))


# Documents.


def test_documents(tmp_path: Path) -> None:
    plain = written(tmp_path, "a.txt", "\ufeffOne.\r\n\r\nTwo\u2028.")
    assert read_documents(plain).kept == ["One.\n\nTwo\u2028.\n"]
    packed = written(tmp_path, "a.txt.gz", gzip.compress(plain.read_bytes()))
    assert read_documents(packed) == read_documents(plain)
    rows = written(
        tmp_path, "b.jsonl", '{"text": "a\\nb"}\n\n{"text": "c", "id": 1}\n{"text": "\\u0000"}\n{"text": ""}'
    )
    corpus = read_documents(rows)
    assert corpus.kept == ["a\nb", "c"]
    assert str(corpus) == "2 documents; 3 dropped: 2 with nothing in it, 1 with a NUL character"
    with pytest.raises(ValueError, match=r"""c\.jsonl:1: no field 'text': .*\{"text": "..."\}"""):
        read_documents(written(tmp_path, "c.jsonl", '{"txt": "a"}'))


# Holding out.


@pytest.mark.parametrize(("count", "held"), [(2, 1), (99, 1), (199, 1), (200, 2), (29_000, 290), (150_000, 1_000)])
def test_one_in_a_hundred_is_held_out(count: int, held: int) -> None:
    pairs = [Pair(str(n), str(-n)) for n in range(count)]
    training, validation = hold_out(pairs, seed=1)
    assert len(validation) == held <= HELD_OUT
    assert sorted(training + validation) == sorted(pairs)
    assert (training, validation) == hold_out(tuple(pairs), seed=1)


def test_the_seed_decides_what_is_held_out() -> None:
    pairs = [Pair(str(n), "") for n in range(1000)]
    drawn = [tuple(hold_out(pairs, seed)[1]) for seed in range(20)]
    assert len(set(drawn)) == 20
    # From all over: of 200 draws, each third gets its share, within six standard deviations.
    places = [int(pair.source) for validation in drawn for pair in validation]
    assert all(27 <= sum(low <= place < low + 333 for place in places) <= 107 for low in (0, 333, 666))


@settings(max_examples=200, deadline=None)
@given(pairs=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), max_size=30), seed=st.integers())
def test_nothing_that_is_held_out_is_learned(pairs, seed: int) -> None:
    training, validation = hold_out(pairs, seed)
    assert set(training) | set(validation) == set(pairs)
    assert not set(training) & set(validation)
    assert len(validation) == (1 if len(set(pairs)) > 1 else 0)
    # The training keeps its order and its repetitions.
    assert training == [pair for pair in pairs if pair in set(training)]


def test_the_end_of_a_text_is_held_out() -> None:
    text = "".join(f"line {n}\n" for n in range(1000))
    assert hold_out_end([text]) == (["".join(f"line {n}\n" for n in range(990))], [text[-90:]])
    assert text[-90:].startswith("line 990\n")
    assert hold_out_end(["a\n\u2028b\n\n"]) == (["a\n"], ["\u2028b\n\n"])
    assert hold_out_end(["a\n\n\n"]) == (["a\n\n\n"], [])
    assert hold_out_end(["a"]) == (["a"], [])
    assert hold_out_end([]) == ([], [])
    (training,), (validation,) = hold_out_end(["x\n" * 250_000])
    assert (training.count("\n"), validation.count("\n")) == (249_000, 1_000)


def test_the_last_documents_are_held_out() -> None:
    documents = [f"document {n}" for n in range(300)]
    assert hold_out_end(documents) == (documents[:297], documents[297:])
    assert hold_out_end(["b", "a", "b"]) == (["b", "b"], ["a"])


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.sampled_from("ab \n\r\u2028")))
def test_a_text_is_cut_at_a_line_end(text: str) -> None:
    training, validation = hold_out_end([text])
    assert "".join(training + validation) == text
    if validation:
        assert training[0].endswith("\n")
        assert training[0].strip()
        assert validation[0].strip()


# Real text.


def test_multi30k(multi30k: Path, tmp_path: Path) -> None:
    began = time.process_time()
    corpus = read_pairs(multi30k / "train.en", multi30k / "train.de")
    assert time.process_time() - began < 1.0
    assert len(corpus.kept) == 29_000
    assert corpus.dropped == {}
    assert corpus.kept[0].source == "Two young, White males are outside near many bushes."
    # The bytes of the file, but for how it is taken apart.
    whole = "".join(pair.target + "\n" for pair in corpus.kept).encode()
    assert zlib.crc32(whole) == zlib.crc32((multi30k / "train.de").read_bytes())
    training, validation = hold_out(corpus.kept, seed=0)
    assert len(validation) == len(set(corpus.kept)) // 100
    assert not set(training) & set(validation)
