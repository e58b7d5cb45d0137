"""heedful translate, generate and evaluate, against what the library itself says."""

import gzip
import json
import math
from pathlib import Path

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

import heedful
from heedful.tasks import task
from tests.cli.commands import here, right

TEXTS = ["twenty-one", "five hundred three", "one million two"]
SHORT = "--beams 2 --length 6 --device cpu"


def translated(texts: list[str]) -> list[str]:
    return heedful.translate(heedful.load("RUN"), texts, beams=2, length=6)


def test_texts_are_translated_a_line_each(place: Path) -> None:
    quoted = " ".join(f'"{text}"' for text in TEXTS)
    assert right(f"translate RUN {quoted} {SHORT}").splitlines() == translated(TEXTS)


def test_the_command_has_the_beams_and_the_penalty_that_it_is_told(place: Path) -> None:
    model = heedful.load("RUN")
    for beams, penalty in ((1, 1.0), (5, 1.0), (3, -2.0)):
        said = right(f"translate RUN 'twenty-one' --beams {beams} --penalty {penalty} --length 6 --device cpu")
        assert said == heedful.translate(model, ["twenty-one"], beams=beams, penalty=penalty, length=6)[0] + "\n"
    assert right("translate RUN twenty-one --device cpu") == right("translate RUN twenty-one --beams 5 --device cpu")


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_is_translated_line_by_line(place: Path, tmp_path: Path, packed: bool) -> None:
    lines = [*TEXTS, "", "seven", "  "]
    content = "\r\n".join(lines).encode()
    file = tmp_path / "texts"
    file.write_bytes(gzip.compress(content) if packed else content)
    assert right(f"translate RUN --file {file} {SHORT}").splitlines() == translated(lines)
    # By the pipe, each line alone, the same.
    assert right(f"translate RUN {SHORT}", typed=content).splitlines() == translated(lines)


def test_a_long_file_is_worked_on_in_portions(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.cli.load.TOGETHER", 2)
    lines = [*TEXTS, "four", "eighty"]
    (tmp_path / "texts").write_text("\n".join(lines), encoding="utf-8")
    assert right(f"translate RUN --file {tmp_path}/texts {SHORT}").splitlines() == translated(lines)


def test_translations_as_json(place: Path) -> None:
    said = right(f"translate RUN 'zwölf \"apostles\"' five {SHORT} --json")
    sources = ['zwölf "apostles"', "five"]
    made = [json.loads(line) for line in said.splitlines()]
    expected = zip(sources, translated(sources), strict=True)
    assert made == [{"source": source, "translation": translation} for source, translation in expected]
    assert "zwölf" in said


def test_a_text_with_a_dash_in_front_stands_behind_two(place: Path) -> None:
    assert right(f"translate RUN {SHORT} -- --beams").splitlines() == translated(["--beams"])


def test_a_translation_stays_on_its_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.decode.translate", lambda model, texts, **rest: ["a\nb"] * len(texts))
    assert right("translate RUN x y --device cpu") == "a b\na b\n"
    assert json.loads(right("translate RUN x --json --device cpu"))["translation"] == "a\nb"


@pytest.mark.parametrize("typed", [b"", b"\n"])
def test_nothing_in_nothing_out(place: Path, typed: bytes) -> None:
    assert right("translate RUN --device cpu", typed=typed) == typed.decode()


DRAWN = "--length 12 --temperature 0.8 --top-k 40 --top-p 0.9 --seed 5 --device cpu"


def generated(texts: list[str], **other: object) -> list[str]:
    settings = {"length": 12, "temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": 5, **other}
    return heedful.generate(heedful.load("LM"), texts, **settings)


def test_one_text_is_streamed_and_is_what_generate_says(place: Path) -> None:
    assert right(f"generate LM 'one ' {DRAWN}") == "one " + generated(["one "])[0] + "\n"


def test_each_piece_is_shown_when_it_comes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = []

    def stream(model: object, text: str, **rest: object):  # type: ignore[no-untyped-def]
        for piece in ("a", "b", "c"):
            yield piece
            flushed.append(sys_stdout())

    import sys

    def sys_stdout() -> str:
        return sys.stdout.getvalue()  # type: ignore[attr-defined]

    monkeypatch.setattr("heedful.decode.stream", stream)
    assert right("generate LM one --device cpu") == "oneabc\n"
    # The first piece waits for nothing but itself; each later one is out before the next is asked for.
    assert flushed == ["onea", "oneab", "oneabc"]


def test_several_texts_and_a_pipe(place: Path) -> None:
    texts = ["one ", "two"]
    continued = [text + said for text, said in zip(texts, generated(texts), strict=True)]
    assert right(f"generate LM 'one ' two {DRAWN}") == "".join(f"{text}\n" for text in continued)
    alone = [text + generated([text])[0] for text in texts]
    assert right(f"generate LM {DRAWN}", typed=b"one \ntwo\n") == "".join(f"{text}\n" for text in alone)


def test_continuations_as_json(place: Path) -> None:
    made = json.loads(right(f"generate LM 'one ' {DRAWN} --json"))
    assert made == {"text": "one ", "continuation": generated(["one "])[0]}


def test_a_stop_string_ends_it(place: Path) -> None:
    whole = generated(["one "], length=40, temperature=0)[0]
    stops = [whole[5:7], whole[9:11]]
    flags = " ".join(f"--stop '{stop}'" for stop in stops)
    cut = min(whole.index(stop) for stop in stops)
    said = right(f"generate LM 'one ' --length 40 --temperature 0 {flags} --device cpu")
    assert said == "one " + whole[:cut] + "\n"


def test_nothing_is_shown_of_a_text_that_cannot_be_continued(place: Path) -> None:
    done = here(f"generate LM '{'one ' * 40}' --device cpu")
    assert (done.code, done.out) == (1, "")
    assert "learned positions end after 32" in done.err


def evaluated(line: str) -> dict[str, float | str]:
    said = right(f"evaluate {line} --device cpu --json")
    assert said.count("\n") == 1
    return json.loads(said)


def test_a_translator_is_measured_on_two_files(place: Path, tmp_path: Path) -> None:
    pairs = task("numbers-en-de").held_out(12, 0)
    (tmp_path / "b.en").write_text("".join(f"{pair.source}\n" for pair in pairs), encoding="utf-8")
    (tmp_path / "b.de").write_text("".join(f"{pair.target}\n" for pair in pairs), encoding="utf-8")
    made = evaluated(f"RUN --source {tmp_path}/b.en --target {tmp_path}/b.de --beams 1 --tokenize char")
    said = heedful.translate(heedful.load("RUN"), [pair.source for pair in pairs], beams=1)
    references = [[pair.target for pair in pairs]]
    bleu, chrf = BLEU(tokenize="char"), CHRF()
    assert made["bleu"] == bleu.corpus_score(said, references).score
    assert made["chrf"] == chrf.corpus_score(said, references).score
    assert made["bleu_signature"] == str(bleu.get_signature())
    assert made["chrf_signature"] == str(chrf.get_signature())
    assert made["exact_match"] == sum(a == b.target for a, b in zip(said, pairs, strict=True)) / 12
    assert made["texts"] == 12
    assert made["perplexity"] == pytest.approx(math.exp(float(made["loss"])))
    # One file of pairs says the same.
    lines = "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs)
    (tmp_path / "b.tsv").write_text(lines, encoding="utf-8")
    assert evaluated(f"RUN --source {tmp_path}/b.tsv --beams 1 --tokenize char") == made


def test_a_translator_is_measured_on_a_task(place: Path) -> None:
    made = evaluated("RUN --task numbers-en-de --examples 5 --beams 1 --seed 7 --tokenize char")
    pairs = task("numbers-en-de").held_out(5, 7)
    said = heedful.translate(heedful.load("RUN"), [pair.source for pair in pairs], beams=1)
    assert made["chrf"] == CHRF().corpus_score(said, [[pair.target for pair in pairs]]).score
    assert made["texts"] == 5


def test_a_writer_is_measured_on_text(place: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one two three\nfour five\n", encoding="utf-8")
    made = evaluated(f"LM --text {tmp_path}/text")
    assert set(made) >= {"loss", "perplexity", "tokens"}
    assert not set(made) & {"bleu", "chrf"}


def test_a_measurement_for_people_is_a_line_a_figure(place: Path) -> None:
    line = "RUN --task copy --examples 3 --beams 1"
    made = evaluated(line)
    shown = dict(one.split(maxsplit=1) for one in right(f"evaluate {line} --device cpu").splitlines())
    assert shown.keys() == made.keys()
    assert shown["loss"] == f"{made['loss']:.4f}"
    assert shown["bleu_signature"] == made["bleu_signature"]
