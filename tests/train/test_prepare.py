"""What stands before the first step: settings decided, folders, tokenizers, texts held out, and vectors."""

import contextlib
import json
import math
import os
import tempfile
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import heedful
from heedful.decode import generate, translate
from heedful.train import train
from heedful.train.checkpoint import Run
from heedful.train.config import from_toml
from heedful.train.evaluation import evaluate
from tests.train.tiny import WRITER, Quiet, config, metrics

ROOT = Path(__file__).parents[2]
PAIRS = [(f"the {a} {b}", f"die {b} {a}") for a in ("cat", "dog", "hen", "fox") for b in ("sat", "ran", "sang", "hid")]
TEXTS = [f"{a} {b}" for a in ("cat", "dog", "hen") for b in ("sat here", "ran", "sang loud")]


@pytest.fixture
def pairs(tmp_path):
    for name, side in {"a.en": 0, "a.de": 1}.items():
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in PAIRS))
    return {"data": str(tmp_path), "source": "a.en", "target": "a.de"}


@pytest.fixture
def documents(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return {"data": str(tmp_path), "text": "a.jsonl", "longest": 32}


def run_of(settings, at=None):
    report = Quiet(at)
    return train(settings, report), report


def interrupt():
    raise KeyboardInterrupt


# Settings.


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 0}, "steps=0: give 1 or more"),
        ({"keep": 0}, "keep=0: give 1 or more"),
        ({"seed": -1}, "seed=-1: give 0 or more"),
        ({"workers": -2}, "workers=-2: give 0 or more"),
        ({"clip": -1.0}, "clip=-1.0: give 0 or more"),
        ({"smoothing": 1.0}, "smoothing=1.0: a share from 0 to below 1"),
        ({"precision": "fp16"}, 'precision="fp16"; there are fp32, bf16 and auto'),
        ({"compile": "maybe"}, 'compile="maybe"; it is yes, no or auto'),
        ({"resume": "yes"}, 'resume="yes": give auto'),
        ({"recipe": "mariam"}, 'did you mean "marian"'),
        ({"recipe": "gpt", "model": {}}, "gpt does not learn from pairs; try --recipe marian"),
        ({"model": {"widht": 8}}, 'no argument "widht".*did you mean "width"'),
        ({"model": {"width": 15}}, "heads=4 does not divide width=15"),
        ({"model": {"width": {1}}}, "model.width=.*give a plain value"),
        ({"schedule": "cosin"}, 'did you mean "cosine"'),
        ({"optimizer": "adamm"}, 'did you mean "adam'),
        ({"warmup": 100}, "warmup=100 is longer than the run"),
        ({"fixed_vectors": True}, "fixed_vectors=true, but there are no vectors"),
        ({"device": "cuda:7"}, 'device="cuda:7", but PyTorch finds no GPU here'),
        ({"device": "tpu"}, 'device="tpu" is none'),
        ({"task": None}, "nothing to learn from"),
        ({"source": "x", "task": "copy"}, "source and task are given"),
        ({"task": "numbers-en-it"}, "did you mean numbers-en-"),
        ({"task": "copy", "examples": 0}, "there is no text to learn from"),
        ({"task": "copy", "longest": 2}, "24 of 24 texts have 2 tokens or more: raise longest"),
        ({"hold_out": 2.0, "task": None, "text": "pyproject.toml"}, "hold_out=2.0: a share between 0 and 1"),
        ({"tokenizer": "bp"}, "bp is not a file; a tokenizer is"),
        ({"tokenizer": "bpe", "vocabulary": 10}, "vocabulary=10: bpe has the 256 bytes"),
    ],
    ids=str,
)
def test_a_setting_that_cannot_be_is_named(settings, words, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    if settings.get("device") == "cuda:7" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match=words):
        train(config(tmp_path / "run", **settings), Quiet())
    if "vocabulary" not in settings and "model" not in settings and "recipe" not in settings:
        assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_tensorboard_that_is_not_there_says_how_to_get_it(tmp_path, monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'heedful\[tensorboard\]'"):
        train(config(tmp_path / "run", tensorboard=True), Quiet())
    assert not (tmp_path / "run").exists()


def test_a_run_keeps_what_was_decided(tmp_path):
    outcome, _ = run_of(config(tmp_path / "run", rate=None, evaluate_every=0, save_every=0, model={"width": "32"}))
    kept = from_toml(outcome.folder / "config.toml")
    assert (kept.recipe, kept.decay, kept.rate, kept.warmup) == ("marian", 0.01, 1e-3, 1)
    assert (kept.precision, kept.compile, kept.evaluate_every, kept.save_every) == ("fp32", "no", 1, 1)
    assert kept.model == {"width": 32, "depth": 3, "heads": 4, "inner": 1024}
    assert (kept.out, kept.resume, kept.device) == (None, None, None)
    env = json.loads((outcome.folder / "env.json").read_text())
    assert env["seed"] == kept.seed
    assert env["versions"]["torch"] == torch.__version__


# Going on.


def test_other_settings_are_refused_with_both_values(tmp_path):
    run_of(config(tmp_path / "run", steps=2))
    with pytest.raises(ValueError, match=r"batch was 128 and is 64.*rate was 0\.01 and is 0\.5") as error:
        train(config(tmp_path / "run", steps=2, batch=64, rate=0.5, resume="auto"), Quiet())
    assert "keep" not in str(error.value)
    with pytest.raises(ValueError, match=r"model was \{'width': 16, .*\} and is \{'width': 32, "):
        train(config(tmp_path / "run", steps=2, model={"width": 32}, resume="auto"), Quiet())


def test_what_a_run_decided_for_itself_stays_where_nothing_else_is_said(tmp_path):
    """With more steps a tenth of them would be another warm-up."""
    first, _ = run_of(config(tmp_path / "run", steps=20, warmup=None, rate=None))
    assert from_toml(first.folder / "config.toml").warmup == 2
    more, _ = run_of(config(tmp_path / "run", steps=40, warmup=None, rate=None, resume="auto"))
    assert more.state.step == 40
    assert from_toml(first.folder / "config.toml").warmup == 2
    with pytest.raises(ValueError, match="warmup was 2 and is 4"):
        train(config(tmp_path / "run", steps=40, warmup=4, rate=None, resume="auto"), Quiet())


@pytest.mark.parametrize(
    "model",
    [
        {"width": 16, "depth": 1, "heads": 2, "inner": 24, "kv_heads": None},
        {"width": 16, "depth": 1, "heads": 2, "inner": 24, "stretch": {"kind": "linear", "factor": 4.0}},
        {"width": 16, "depth": 1, "heads": 2, "inner": 24, "kv_heads": "null", "dropout_at": {"attention": 0.1}},
    ],
    ids=str,
)
def test_arguments_of_every_kind_are_the_same_when_a_run_goes_on(model, documents, tmp_path):
    settings = {**documents, "recipe": "llama", "model": model}
    run_of(config(tmp_path / "run", steps=2, **settings))
    outcome, _ = run_of(config(tmp_path / "run", steps=3, resume="auto", **settings))
    assert outcome.state.step == 3
    assert heedful.load(tmp_path / "run").recipe == outcome.model.recipe


def test_files_are_found_again_from_another_folder(pairs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_of(config(tmp_path / "run", steps=2, **(pairs | {"data": "."})))
    monkeypatch.chdir("/")
    kept = from_toml(tmp_path / "run" / "config.toml")
    assert kept.source == str(tmp_path / "a.en")
    outcome, _ = run_of(config(tmp_path / "run", steps=3, resume="auto", **(pairs | {"data": str(tmp_path)})))
    assert outcome.state.step == 3


# The folder.


def test_a_folder_that_holds_a_run_is_not_begun_in(tmp_path):
    run_of(config(tmp_path / "run", steps=1))
    with pytest.raises(ValueError, match="holds a run already: go on with --resume auto"):
        train(config(tmp_path / "run", steps=1), Quiet())


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match=r"is not empty \(letter\.txt\)"):
        train(config(tmp_path / "run"), Quiet())
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["letter.txt"]


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "run").write_text("a file")
    for out in ("run", "run/inside"):
        with pytest.raises(ValueError, match=r"run is a file.*choose another --out"):
            train(config(tmp_path / out), Quiet())


def test_a_missing_text_leaves_no_folder_behind(tmp_path):
    with pytest.raises(ValueError, match="there is no file"):
        train(config(tmp_path / "run", text=str(tmp_path / "a.txt")), Quiet())
    assert not (tmp_path / "run").exists()


def test_a_run_that_never_came_to_a_checkpoint_is_begun_again_with_a_tokenizer_of_its_own(pairs, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(config(tmp_path / "run", **pairs), Quiet({1: interrupt}))
    first = (tmp_path / "run" / "tokenizer.json").read_text()
    # And the kill that left it so came while files were written.
    (tmp_path / "run" / ".tokenizer.json.new").write_text("half")
    run_of(config(tmp_path / "run", steps=2, **(pairs | {"tokenizer": "words"})))
    assert (tmp_path / "run" / "tokenizer.json").read_text() != first
    assert "cat" in heedful.load(tmp_path / "run").tokenizer.get_vocab()
    assert [line["step"] for line in metrics(tmp_path / "run")] == [1, 2]
    assert not (tmp_path / "run" / ".tokenizer.json.new").exists()


@contextlib.contextmanager
def nobody():
    """Root may write anywhere, so what follows is done as nobody."""
    root = os.getuid() == 0
    if root:
        os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        if root:
            os.setresuid(0, 0, 0)


@pytest.mark.parametrize("inside", ["", "run"])
def test_a_folder_that_may_not_be_written_to_is_named_before_anything_is_read(inside):
    with tempfile.TemporaryDirectory() as folder:
        closed = Path(folder) / "closed"
        closed.mkdir(mode=0o555)
        os.chmod(folder, 0o755)
        with nobody(), pytest.raises(ValueError, match=f"you may not write to {closed}; choose another --out"):
            train(config(closed / inside, task="no task of this name"), Quiet())
        with nobody(), pytest.raises(ValueError, match="you may not write to"):
            train(config(closed / inside, resume="auto"), Quiet())
        assert list(closed.iterdir()) == []


# What is held out.


def test_what_is_held_out_is_said(pairs, documents, tmp_path):
    _, report = run_of(config(tmp_path / "a", steps=1, **pairs))
    assert any("16 pairs" in line for line in report.lines)
    assert "held out: 1 pairs" in report.lines
    _, report = run_of(config(tmp_path / "b", steps=1, hold_out=0.25, **pairs))
    assert "held out: 4 pairs" in report.lines
    (tmp_path / "v.en").write_text("the cat hid\n")
    (tmp_path / "v.de").write_text("die hid cat\n")
    _, report = run_of(config(tmp_path / "c", steps=1, valid_source="v.en", valid_target="v.de", **pairs))
    assert not any("held out:" in line and "pairs" in line for line in report.lines)
    assert any(line.endswith("v.en: 1 pair") for line in report.lines)
    _, report = run_of(config(tmp_path / "d", steps=1, **documents))
    assert any(line.startswith("held out from its end: ") for line in report.lines)
    _, report = run_of(config(tmp_path / "e", steps=1))
    assert "copy: 24 examples, 1 others held out by rule" in report.lines


def test_where_nothing_can_be_held_out_it_is_said_and_nothing_is_measured(tmp_path):
    (tmp_path / "a.tsv").write_text("cat\tKatze\n" * 20)
    outcome, report = run_of(config(tmp_path / "run", source=str(tmp_path / "a.tsv")))
    assert "nothing could be held out: all lines are alike" in report.lines
    assert not any("valid_loss" in line for line in metrics(outcome.folder))
    assert not (outcome.folder / "best").exists()
    assert (outcome.folder / "latest").resolve().name == "step-00000012"


def test_held_out_pairs_are_never_learned_from(pairs, tmp_path):
    """A run that learns its 12 pairs by heart knows nothing of the 4 others."""
    from heedful.train import material
    from heedful.train.prepare import resolved

    settings = resolved(config(tmp_path / "run", hold_out=0.25, **pairs), torch.device("cpu"))
    texts = material.read(settings)
    assert len(texts.training) == 12
    assert len(texts.validation) == 4
    assert not set(texts.training) & set(texts.validation)
    assert set(texts.training) | set(texts.validation) == set(PAIRS)


# What a model reads when it is used is what it read when it learned.


def seen(model, use):
    """The ids that the model is first called with when `use` is called."""
    calls = []

    def hook(module, args, kwargs):
        calls.append([t.tolist() for t in args if torch.is_tensor(t)])

    handle = model.register_forward_pre_hook(hook, with_kwargs=True)
    use()
    handle.remove()
    return calls[0]


@pytest.mark.parametrize("pack", [0, 48])
@pytest.mark.parametrize("tokenizer", ["characters", "bpe"])
def test_a_document_begins_in_generation_as_in_training(tokenizer, pack, documents, tmp_path):
    learned = []

    def note(module, args, kwargs):
        if not module.training:
            return
        ids, document = kwargs["ids"], kwargs.get("document", torch.zeros_like(kwargs["ids"]))
        for row, labels in zip(ids, document, strict=True):
            learned.extend(row[labels == label].tolist() for label in set(labels.tolist()) - {-1})

    report = Quiet()
    report.at[0] = lambda: report.model.register_forward_pre_hook(note, with_kwargs=True)
    settings = documents | {"longest": 64} if tokenizer == "bpe" else documents
    outcome = train(
        config(tmp_path / "run", steps=8, pack=pack, tokenizer=tokenizer, vocabulary=270, **settings), report
    )
    for model in (outcome.model, heedful.load(tmp_path / "run")):
        start = model.generation["start"]
        assert model.generation["begin"] == start
        ((prompt,),) = seen(model, lambda model=model: generate(model, [TEXTS[0]], length=1))
        assert prompt[0] == start
        assert any(ids[: len(prompt)] == prompt for ids in learned), prompt
        ((prompt,),) = seen(model, lambda model=model: generate(model, [""], length=1))
        assert prompt == [start]
    assert all(ids[0] == outcome.model.generation["start"] for ids in learned)


def test_a_running_text_has_no_beginning(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(TEXTS) + "\n")
    outcome, _ = run_of(config(tmp_path / "run", steps=2, text=str(tmp_path / "a.txt"), longest=16))
    assert "begin" not in outcome.model.generation
    start = outcome.model.generation["start"]
    ((prompt,),) = seen(outcome.model, lambda: generate(outcome.model, ["cat"], length=1))
    assert start not in prompt
    assert prompt == outcome.model.tokenizer.encode("cat", add_special_tokens=False).ids


def test_a_loaded_tokenizer_puts_nothing_around_a_text_that_training_did_not(pairs, tmp_path):
    """As BERT's would: [CLS] and [SEP]."""
    words = ["[UNK]", "[CLS]", "[SEP]", *sorted({word for pair in PAIRS for side in pair for word in side.split()})]
    theirs = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    theirs.pre_tokenizer = pre_tokenizers.Whitespace()
    theirs.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    theirs.enable_truncation(3)
    theirs.enable_padding(length=9)
    theirs.save(str(tmp_path / "theirs.json"))
    outcome, _ = run_of(config(tmp_path / "run", steps=2, **(pairs | {"tokenizer": str(tmp_path / "theirs.json")})))
    model = heedful.load(outcome.folder)
    text = PAIRS[0][0]
    ids = [words.index(word) for word in text.split()]
    source, target = seen(model, lambda: translate(model, [text], beams=1))
    assert source == [[*ids, model.generation["end"]]]
    assert target == [[model.generation["start"]]]


def test_a_lone_held_out_document_is_measured_as_a_document(documents, tmp_path):
    """From its beginning to its end, as the others were learned."""
    outcome, _ = run_of(config(tmp_path / "run", steps=3, model={**WRITER, "dropout": 0.0}, **documents))
    model, held_out = outcome.model, TEXTS[-1]
    special = model.generation
    ids = model.tokenizer.encode(held_out, add_special_tokens=False).ids
    with torch.no_grad():
        logs = model(torch.tensor([[special["start"], *ids]]))[0].double().log_softmax(-1)
    wanted = -sum(logs[n, label].item() for n, label in enumerate([*ids, special["end"]])) / (len(ids) + 1)
    assert metrics(outcome.folder)[-1]["valid_loss"] == pytest.approx(wanted, rel=1e-5)
    (tmp_path / "one.jsonl").write_text(json.dumps({"text": held_out}))
    assert evaluate(model, text=tmp_path / "one.jsonl")["loss"] == pytest.approx(wanted, rel=1e-5)


def test_a_running_text_is_measured_once_a_token(tmp_path):
    """In pieces that begin where the one before ends, each without what stood before it."""
    (tmp_path / "a.txt").write_text("".join(f"{text}\n" for text in TEXTS * 3))
    settings = {"text": str(tmp_path / "a.txt"), "longest": 7, "hold_out": 0.3, "model": {**WRITER, "dropout": 0.0}}
    outcome, _ = run_of(config(tmp_path / "run", steps=3, **settings))
    model = outcome.model
    held_out = "".join(f"{text}\n" for text in (TEXTS * 3)[-8:])
    ids = model.tokenizer.encode(held_out).ids
    total = 0.0
    for at in range(0, len(ids) - 1, 7):
        piece = ids[at : at + 8]
        with torch.no_grad():
            logs = model(torch.tensor([piece[:-1]]))[0].double().log_softmax(-1)
        total -= sum(logs[n, label].item() for n, label in enumerate(piece[1:]))
    assert metrics(outcome.folder)[-1]["valid_loss"] == pytest.approx(total / (len(ids) - 1), rel=1e-5)
    assert metrics(outcome.folder)[-1]["perplexity"] == pytest.approx(math.exp(total / (len(ids) - 1)), rel=1e-5)


# Word vectors.


def test_vectors_begin_the_embedding_and_stay_if_they_are_fixed(pairs, tmp_path):
    known = {"cat": [float(n) for n in range(16)], "hid": [1.0] * 16, "unheard": [2.0] * 16}
    lines = [f"{word} {' '.join(map(str, numbers))}" for word, numbers in known.items()]
    (tmp_path / "glove.txt").write_text("\n".join(lines) + "\n")
    settings = pairs | {"tokenizer": "words", "vectors": "glove.txt", "hold_out": 0.1}
    first = {}

    def look(report):
        table = report.model.encoder.embedding.tokens.weight
        first.update({word: table[id].tolist() for word, id in report.model.tokenizer.get_vocab().items()})

    for fixed in (False, True):
        report = Quiet()
        report.at[0] = lambda report=report: look(report)
        outcome = train(config(tmp_path / f"run-{fixed}", fixed_vectors=fixed, **settings), report)
        assert any(line.startswith("2 of ") and "words found" in line for line in report.lines)
        assert (first["cat"], first["hid"]) == (known["cat"], known["hid"])
        vocabulary, table = outcome.model.tokenizer.get_vocab(), outcome.model.encoder.embedding.tokens.weight
        assert (table[vocabulary["cat"]].tolist() == known["cat"]) is fixed
        assert all((table[id].tolist() == first[word]) is fixed for word, id in vocabulary.items() if word in "dog the")
        if fixed:
            again = train(
                config(tmp_path / "run-True", fixed_vectors=True, resume="auto", **settings, steps=14), Quiet()
            )
            assert again.model.encoder.embedding.tokens.weight[vocabulary["cat"]].tolist() == known["cat"]
    assert Run(tmp_path / "run-True").steps()[0] == 14
