"""The commonest mistakes: what is wrong, where, and how to mend it, on stderr. 2 for a wrong command line, else 1.

A traceback would be an exception that is no SystemExit, which `here` does not take.
"""

import contextlib
import gzip
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import heedful
from tests.cli.commands import TINY, TRANSLATES, here


@pytest.fixture(scope="session")
def broken(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What people have lying about, beside a.en, a.de, RUN and LM."""
    place = tmp_path_factory.mktemp("mistakes")
    for name in ("a.en", "a.de", "RUN", "LM"):
        (place / name).symlink_to(folder / name)
    with contextlib.chdir(place):
        for name, content in {
            "empty": b"",
            "blank": b"\n\n\n",
            "one": b"a\n",
            "two": b"b\nc\n",
            "three": b"x\ny\nz\n",
            "latin": "Grüße\n".encode("latin-1") * 3,
            "wide": "hello\nyou\nthere\n".encode("utf-16"),
            "binary": bytes(range(256)),
            "cut.gz": gzip.compress(b"hello\n" * 1000, mtime=0)[:30],
            "bad.tsv": b"only one side\n",
            "bad.jsonl": b'{"source": "a"}\n',
            "broken.toml": b"steps = \n",
            "typo.toml": b"stepz = 3\n",
            "text.toml": b'steps = "many"\n',
            "table.toml": b"model = 3\n",
            "widht.toml": b"[model]\nwidht = 3\n",
            "tokenizer.json": b"{}",
        }.items():
            Path(name).write_bytes(content)
        Path("full").mkdir()
        Path("full/letter.txt").touch()
        Path("nothing").mkdir()
        shutil.copytree(Path("RUN/latest").resolve(), "damaged")
        weights = bytearray(Path("damaged/model.safetensors").read_bytes())
        weights[-5] ^= 1
        Path("damaged/model.safetensors").write_bytes(weights)
        mute = heedful.load("RUN")
        mute.tokenizer = None
        heedful.save(mute, "mute")
    return place


@pytest.fixture(autouse=True)
def _place(broken: Path) -> Iterator[None]:
    with contextlib.chdir(broken):
        yield


LEARN = f"train {TRANSLATES} --steps 2 --out NEW"
MISTAKES = [
    # What to do is not said, or not in words there are.
    ("trian", 2, 'Did you mean "train"?'),
    ("--nope", 2, 'Unknown command "--nope"'),
    ("train", 2, "give a folder for the run: --out RUN"),
    ("train --out NEW", 1, "nothing to learn from: give source and target"),
    ("train --source a.en --target a.de", 2, "--out RUN"),
    (f"{LEARN} --bacth 3", 2, "Did you mean --batch?"),
    (f"{LEARN} a.en", 2, "Unused Tokens: ['a.en']"),
    (f"{LEARN} --seed", 2, "--seed requires an argument"),
    (f"{LEARN} --seed 1 --seed 2", 2, "--seed specified multiple times"),
    (f"{LEARN} --rate abc", 2, 'Invalid value for --rate: unable to convert "abc"'),
    (f"{LEARN} --seed abc", 2, "--seed abc: give a whole number"),
    ("translate", 2, "MODEL requires an argument"),
    ("translate RUN five --beam 3", 2, "Did you mean --beams?"),
    ("translate RUN five --file a.en", 2, "texts and --file: give one of them"),
    ("evaluate RUN", 2, "measure on what?"),
    ("evaluate RUN --task copy --text a.en", 2, "measure on what?"),
    ("evaluate RUN --task copy --precision fp16", 2, 'Choose from: "fp32", "bf16"'),
    ("average RUN", 2, "OUT requires an argument"),
    ("average RUN NEW --last 0", 2, "--last 0: give 1 or more"),
    ("schedule cosin", 2, 'did you mean "cosine"?'),
    ("recipes gtp", 2, 'did you mean "gpt"?'),
    ("recipes number-word", 2, 'did you mean "number-words"?'),
    ("explain self-atention", 2, 'did you mean "self-attention"?'),
    ("demo --to es", 2, 'Choose from: "de", "fr", "zh"'),
    # Files.
    (f"train {TINY} --source a.ne --target a.de --out NEW", 1, "there is no file"),
    (f"train {TINY} --source a.ne --target a.de --out NEW", 1, "did you mean a.en"),
    (f"train {TINY} --source a.en --out NEW", 1, "give the file of its translations too"),
    (f"train {TINY} --source full --target a.de --out NEW", 1, "is a folder, not a file; in it are: letter.txt"),
    (f"train {TINY} --source one --target two --out NEW", 1, "has 1 line"),
    (f"train {TINY} --source empty --target empty --out NEW", 1, "nothing to learn from"),
    (f"train {TINY} --source blank --target three --out NEW", 1, "3 with nothing on one side"),
    (f"train {TINY} --source latin --target three --out NEW", 1, "try iconv -f latin-1 -t utf-8"),
    (f"train {TINY} --source wide --target three --out NEW", 1, "try iconv -f utf-16 -t utf-8"),
    (f"train {TINY} --source cut.gz --target a.de --out NEW", 1, "cut or broken gzip file"),
    (f"train {TINY} --source bad.tsv --out NEW", 1, "bad.tsv:1: 0 tabs"),
    (f"train {TINY} --source bad.jsonl --out NEW", 1, "bad.jsonl:1: no field 'target'"),
    (f"train {TINY} --text empty --out NEW", 1, "nothing to learn from"),
    (f"train {TINY} --text binary --out NEW", 1, "a NUL character"),
    (f"{LEARN} --data nowhere", 1, "there is no folder"),
    (f"{LEARN} --text a.en", 1, "source and text are given"),
    (f"{LEARN} --valid-source nowhere", 1, "there is no file"),
    (f"{LEARN} --vectors nowhere", 1, "there is no file"),
    # Settings.
    (f"{LEARN} -c nowhere.toml", 2, 'no file of settings, or training, "nowhere.toml"'),
    (f"{LEARN} -c multi3k", 2, 'did you mean "multi30k"?'),
    (f"{LEARN} -c full", 2, 'no file of settings, or training, "full"'),
    (f"{LEARN} -c broken.toml", 1, "broken.toml is not TOML"),
    (f"{LEARN} -c binary", 1, "binary is not TOML"),
    (f"{LEARN} -c typo.toml", 1, 'typo.toml: there is no setting "stepz"; did you mean "steps"?'),
    ("train -c text.toml --out NEW", 2, "--steps many in text.toml: give a whole number"),
    (f"{LEARN} -c table.toml", 1, "table.toml: model is 3"),
    (f"{LEARN} -c widht.toml", 1, 'marian has no argument "widht"'),
    (f"{LEARN} --model.widht 3", 1, 'did you mean "width"?'),
    (f"train {TINY} --task numbers-en-dd --out NEW", 1, "did you mean numbers-en-de"),
    (f"{LEARN} --recipe gtp", 1, 'did you mean "gpt"?'),
    (f"{LEARN} --recipe gpt", 1, "gpt"),
    (f"train {TINY} --text a.en --recipe marian --out NEW", 1, "marian does not learn from a text; try --recipe gpt"),
    (f"{LEARN} --optimizer adma", 1, 'did you mean "adam"?'),
    (f"{LEARN} --schedule cosin", 1, 'did you mean "cosine"?'),
    (f"{LEARN} --schedule cycles", 1, "cycles needs every"),
    (f"{LEARN} --schedule noam --every 3", 1, "these do: cycles, restarts, steps"),
    (f"{LEARN} --tokenizer bpee", 1, "one of bpe, unigram, bytes, characters, words"),
    (f"{LEARN} --tokenizer tokenizer.json", 1, "tokenizer.json is not a tokenizer"),
    (f"{LEARN.replace('--vocabulary 300', '--vocabulary 10')}", 1, "give 259 or more"),
    (f"{LEARN.replace('--steps 2', '--steps 0')}", 1, "steps=0: give 1 or more"),
    (f"{LEARN.replace('--batch 256', '--batch -1')}", 1, "batch=-1: give 1 or more"),
    (f"{LEARN} --rate -1", 1, "the highest rate is above 0"),
    (f"{LEARN} --warmup 50", 1, "warmup=50 is longer than the run"),
    (f"{LEARN} --smoothing 2", 1, "smoothing=2.0"),
    (f"{LEARN} --decay -1", 1, "decay=-1.0"),
    (f"{LEARN} --clip -1", 1, "clip=-1.0"),
    (f"{LEARN} --seed -1", 1, "seed=-1"),
    (f"{LEARN} --workers -1", 1, "workers=-1"),
    (f"{LEARN} --hold-out 2", 1, "a share between 0 and 1"),
    (f"{LEARN} --longest 2", 1, "raise longest"),
    (f"{LEARN} --fixed-vectors", 1, "there are no vectors"),
    (f"{LEARN.replace('--precision fp32', '--precision fp16')}", 1, "there are fp32, bf16 and auto"),
    (f"{LEARN} --compile maybe", 1, "it is yes, no or auto"),
    (f"{LEARN} --resume yes", 1, "give auto, or leave it out"),
    (f"{LEARN} --tokenize foo", 1, "char"),
    (f"{LEARN.replace('--model.heads 2', '--model.heads 3')}", 1, "heads=3 does not divide width=16; try 2"),
    (f"{LEARN.replace('--model.width 16', '--model.width wide')}", 1, "width"),
    (f"{LEARN.replace('--model.depth 1', '--model.depth -1')}", 1, "depth"),
    (f"{LEARN} --model.tied maybe", 1, "tied"),
    (f"{LEARN} --model.dropout 2", 1, "a chance is from 0 to below 1"),
    (f"{LEARN} --model.activation gleu", 1, "there are relu, gelu, gelu_tanh, silu"),
    # Devices.
    (f"{LEARN.replace('--device cpu', '--device gpu')}", 1, 'device="gpu" is none; try cpu, or cuda'),
    (f"{LEARN.replace('--device cpu', '--device meta')}", 1, 'device="meta"'),
    ("translate RUN five --device meta", 1, 'device="meta"'),
    ("translate RUN five --device cpu:x", 1, 'device="cpu:x" is none'),
    # The run's folder.
    (f"{LEARN.replace('NEW', 'full')}", 1, "full is not empty (letter.txt): choose another --out"),
    (f"{LEARN.replace('NEW', 'RUN')}", 1, "RUN holds a run already: go on with --resume auto"),
    (f"{LEARN.replace('NEW', 'a.en')}", 1, "choose another --out"),
    (f"{LEARN.replace('NEW', 'a.en/run')}", 1, "choose another --out"),
    ("train --out full --resume auto", 1, "full is not empty"),
    ("demo --steps 1 --out full", 1, "full is not empty"),
    # A model's folder.
    ("translate nowhere five", 1, "nowhere is not a folder"),
    ("translate a.en five", 1, "a.en is not a folder; a model is a folder"),
    ("translate nothing five", 1, "nothing has no config.json"),
    ("translate damaged five", 1, "model.safetensors is damaged"),
    ("translate mute five", 1, "the model has no tokenizer"),
    ("evaluate mute --task copy", 1, "the model has no tokenizer"),
    ("translate LM five", 1, "use generate"),
    ("generate RUN five", 1, "use translate"),
    ("generate RUN five six", 1, "use translate"),
    ("evaluate LM --task copy", 1, "measure it on text"),
    ("evaluate RUN --text a.en", 1, "measure it on source and target, or task"),
    ("average nowhere NEW", 1, "nowhere is not a run's folder"),
    ("average RUN/latest NEW", 1, "is not a run's folder"),
    ("average RUN NEW --last 99", 1, "train with --keep 99"),
    ("average RUN full", 1, "full exists and is not a model's folder"),
    # Numbers that cannot be.
    ("translate RUN five --beams 0", 1, "beams=0"),
    ("translate RUN five --beams -2", 1, "beams=-2"),
    ("translate RUN five --length 0", 1, "length=0"),
    ("translate RUN five --penalty nan", 1, "penalty=nan"),
    ("generate LM five --temperature -1", 1, "temperature=-1.0"),
    ("generate LM five --top-p 2", 1, "top_p=2.0"),
    ("generate LM five --top-k 0", 1, "top_k=0"),
    ("generate LM five --length 0", 1, "length=0"),
    ("generate LM five --stop ''", 1, '"" is in every text'),
    ("generate LM ''", 1, "the text is empty"),
    ("evaluate RUN --task copy --examples 0", 1, "examples"),
    ("evaluate RUN --task copy --examples -1", 1, "examples"),
    ("evaluate RUN --task copi", 1, "did you mean copy"),
    ("evaluate RUN --task copy --examples 3 --beams 0", 1, "beams=0"),
    ("evaluate RUN --task copy --examples 3 --length 3", 2, "Unknown option: --length"),
    ("evaluate RUN --task copy --examples 3 --beams 1 --tokenize foo", 1, "char"),
    ("evaluate RUN --source empty --target empty", 1, "0 pairs"),
    ("evaluate RUN --source one --target two", 1, "has 1 line"),
    ("schedule cosine --steps 0", 1, "steps=0"),
    ("schedule cosine --rate -1", 1, "above 0"),
    ("schedule cosine --every 3", 1, "these do: cycles, restarts, steps"),
    ("schedule cycles --every 0", 1, "every=0"),
    ("schedule cosine linear --factor 3", 1, "these do: restarts, steps, exponential"),
    # Texts.
    ("translate RUN --file nowhere", 1, "there is no file nowhere"),
    ("translate RUN --file full", 1, "full is a folder"),
    ("translate RUN --file latin", 1, "latin:1: not UTF-8"),
    ("translate RUN --file cut.gz", 1, "cut or broken gzip file"),
    ("generate LM " + "five" * 40, 1, "learned positions end after 32"),
]


@pytest.mark.parametrize(("line", "code", "says"), MISTAKES, ids=[f"{code} {says}" for _, code, says in MISTAKES])
def test_a_mistake_is_explained(line: str, code: int, says: str, tmp_path: Path) -> None:
    if line.split()[0] in ("translate", "generate", "evaluate") and "--device" not in line:
        line += " --device cpu" * (code == 1)
    done = here(line.replace("NEW", str(tmp_path / "new")))
    assert says in done.err
    assert (done.code, done.out) == (code, "")
    assert "Traceback" not in done.err
    # The last line is the message; what stands before it is the report of a training that had begun.
    assert done.err.splitlines()[-1].startswith("heedful: ") or done.err.startswith("heedful: ")
    assert done.err.endswith("\n")


def test_there_are_fifty_and_more() -> None:
    assert len({line for line, _, _ in MISTAKES}) > 100


@pytest.mark.parametrize("verb", ["translate", "generate"])
@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (b"\xff\xfe\n", "input:1: not UTF-8"),
        (bytes(range(128, 256)), "input:1: not UTF-8"),
        (gzip.compress(b"five\n", mtime=0), "try zcat"),
    ],
)
def test_what_comes_by_the_pipe_is_text(verb: str, typed: bytes, says: str) -> None:
    done = here(f"{verb} {'RUN' if verb == 'translate' else 'LM'} --device cpu", typed=typed)
    assert (done.code, done.out) == (1, "")
    assert says in done.err


def test_lines_before_a_broken_one_are_answered() -> None:
    done = here("translate RUN --beams 1 --length 3 --device cpu", typed=b"five\n\xff\n")
    assert done.code == 1
    assert done.out.count("\n") == 1
    assert "input:2: not UTF-8" in done.err


@pytest.mark.parametrize("line", ["translate RUN", "generate LM", "generate LM five"])
def test_what_stands_on_the_command_line_is_text(line: str) -> None:
    # What Python makes of a byte that is no UTF-8.
    done = here(f"{line} a\udcffb --device cpu")
    assert (done.code, done.out) == (2, "")
    assert r"'a\udcffb' is not UTF-8" in done.err


def test_no_gpu_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    line = LEARN.replace("--device cpu", "--device cuda").replace("NEW", str(tmp_path / "new"))
    for said in (line, "translate RUN five --device cuda", "generate LM five --device cuda:1", "demo --device cuda"):
        done = here(said)
        assert (done.code, done.out) == (1, "")
        assert 'device="cuda' in done.err
        assert "PyTorch finds no GPU here: try cpu" in done.err
