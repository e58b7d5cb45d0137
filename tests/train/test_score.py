"""Scores are sacreBLEU's, exactness is a count, and losses do not depend on how texts meet in batches."""

import json
import math
import subprocess
import sys

import pytest
import sacrebleu
import torch

from heedful.data.files import read_pairs
from heedful.train import train
from heedful.train.config import Config
from heedful.train.evaluation import evaluate
from heedful.train.material import batched, special_of
from heedful.train.measure import Measured, surprise_of
from heedful.train.parallel import Group
from heedful.train.score import score
from tests.train.tiny import Quiet, config

SAID = ["The cat sat on the mat.", "A dog barks loudly, again.", "", "Ein Hund; drei Katzen!", "他在家。"]
REFERENCES = ["The cat sat on a mat.", "A dog barks loudly, again.", "nothing", "Ein Hund, drei Katzen!", "她在家里。"]


@pytest.mark.parametrize("tokenize", ["13a", "char", "intl", "zh", "none"])
def test_scores_are_sacrebleus(tokenize):
    found = score(SAID, REFERENCES, tokenize)
    assert found.bleu == sacrebleu.corpus_bleu(SAID, [REFERENCES], tokenize=tokenize).score
    assert found.chrf == sacrebleu.corpus_chrf(SAID, [REFERENCES]).score
    assert found.exact == 1 / 5
    assert f"tok:{tokenize}" in found.signatures[0]
    assert sacrebleu.__version__ in found.signatures[0]
    assert found.signatures[1].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0")


def test_the_command_of_sacrebleu_says_the_same(tmp_path):
    for name, lines in {"said": SAID, "references": REFERENCES}.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    asked = [sys.executable, "-m", "sacrebleu", "references", "-i", "said", "-m", "bleu", "chrf", "-w", "6"]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=True)
    bleu, chrf = json.loads(done.stdout)
    found = score(SAID, REFERENCES)
    assert (bleu["score"], chrf["score"]) == (pytest.approx(found.bleu, abs=1e-6), pytest.approx(found.chrf, abs=1e-6))
    assert (bleu["signature"], chrf["signature"]) == found.signatures


def test_what_equals_its_reference_is_perfect():
    found = score(REFERENCES, REFERENCES)
    assert (found.bleu, found.chrf, found.exact) == (pytest.approx(100), pytest.approx(100), 1.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((["a"], ["a", "b"]), "1 translations and 2 references"),
        (([], []), "nothing to score"),
        ((["a"], ["a"], "13b"), 'no way to cut words is called "13b".*did you mean "13a"'),
    ],
)
def test_what_cannot_be_scored_is_said(given, words):
    with pytest.raises(ValueError, match=words):
        score(*given)


# Measuring a model.


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(config(tmp_path_factory.mktemp("trained") / "run", steps=4), Quiet()).model


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "a.tsv"
    sides = ["a b c", "d", "e f g h i j", "k l", "m n o p", "q r s t u v w x y z"]
    path.write_text("".join(f"{side}\t{side[::-1]}\n" for side in sides))
    return path


def alone(model, pairs):
    """The total surprise, text by text, in float64, and how many tokens that is."""
    total, count, special = 0.0, 0, model.generation
    for pair in pairs:
        source, target = (model.tokenizer.encode(text).ids for text in pair)
        with torch.no_grad():
            logits = model(torch.tensor([[*source, special["end"]]]), torch.tensor([[special["start"], *target]]))
        logs = logits[0].double().log_softmax(-1)
        labels = [*target, special["end"]]
        total -= sum(logs[n, label].item() for n, label in enumerate(labels))
        count += len(labels)
    return total, count


@pytest.mark.parametrize("size", [1, 7, 30, 10_000])
def test_the_loss_does_not_depend_on_the_size_of_batches(size, trained, pairs):
    texts, special = read_pairs(pairs).kept, special_of(trained.generation)
    settings = Config(batch=size, longest=100)
    corpus = batched(settings, texts, trained.tokenizer, special, running=False, grid=1, measured=True)
    total, tokens = surprise_of(trained, corpus, Group(0, 1, torch.device("cpu")))
    wanted, count = alone(trained, texts)
    assert tokens == count
    assert total == pytest.approx(wanted, rel=1e-6)


def test_evaluating_counts_every_token_once(trained, pairs):
    found = evaluate(trained, source=pairs, beams=1)
    total, count = alone(trained, read_pairs(pairs).kept)
    assert found["tokens"] == count
    assert found["loss"] == pytest.approx(total / count, rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-6)
    assert found["texts"] == 6


def test_translations_are_scored_as_they_are_said(trained, pairs, monkeypatch):
    texts = read_pairs(pairs).kept
    said = [texts[0].target, "wrong", *[text.target for text in texts[2:]]]
    monkeypatch.setattr(sys.modules["heedful.train.evaluation"], "translate", lambda model, given, **more: said)
    found = evaluate(trained, source=pairs, tokenize="char")
    assert found["exact_match"] == pytest.approx(5 / 6)
    assert found["bleu"] == sacrebleu.corpus_bleu(said, [[t.target for t in texts]], tokenize="char").score
    assert "tok:char" in found["bleu_signature"]


def test_a_model_that_is_being_trained_is_not_measured(trained, pairs):
    trained.train()
    with pytest.raises(ValueError, match=r"call model\.eval\(\) first"):
        evaluate(trained, source=pairs)
    trained.eval()


def test_a_translator_is_not_measured_on_a_text(trained, tmp_path):
    (tmp_path / "a.txt").write_text("a b c\n")
    with pytest.raises(ValueError, match="this model translates: measure it on source and target, or task"):
        evaluate(trained, text=tmp_path / "a.txt")


def test_which_of_two_measurements_is_better():
    """chrF of a translator; else the likelihood."""
    assert Measured(2.0, 1.0, 50.0, 0.0).figure > Measured(1.0, 1.0, 40.0, 0.0).figure
    assert Measured(1.0).figure > Measured(2.0).figure
    assert Measured(2.0).line() == {"valid_loss": 2.0, "perplexity": pytest.approx(math.exp(2))}
    assert set(Measured(2.0, 1.0, 50.0, 0.5).line()) == {"valid_loss", "perplexity", "bleu", "chrf", "exact_match"}
    assert math.isfinite(Measured(1e5).perplexity)
