"""What training makes smaller, against a plain loop in float64 and Hugging Face's own smoothing."""

import math

import pytest
import torch

from heedful.data.batch import NOTHING, Padded, Shape, Special
from heedful.data.ragged import Ragged
from heedful.models import RECIPES
from heedful.train.objective import surprise


def plainly(logits, labels, smoothing):
    """Σ (1 - ε) · -log p(label) + ε · mean of -log p, in Python's own floats."""
    total = 0.0
    for said, label in zip(logits.double().flatten(0, 1).tolist(), labels.flatten().tolist(), strict=True):
        if label == NOTHING:
            continue
        top = max(said)
        norm = top + math.log(sum(math.exp(x - top) for x in said))
        surprises = [norm - x for x in said]
        total += (1 - smoothing) * surprises[label] + smoothing * sum(surprises) / len(surprises)
    return total


def example(rows=3, length=5, vocab=7, seed=0):
    chance = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, length, vocab, generator=chance)
    labels = torch.randint(0, vocab, (rows, length), generator=chance)
    labels[torch.rand(rows, length, generator=chance) < 0.3] = NOTHING
    return logits, labels


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_plain_sum(smoothing, seed):
    logits, labels = example(seed=seed)
    assert (labels == NOTHING).any()
    assert surprise(logits, labels, smoothing).item() == pytest.approx(plainly(logits, labels, smoothing), rel=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_gradient_is_that_of_the_plain_sum(smoothing):
    """∂/∂logit = p - (1 - ε) · [label] - ε / vocabulary, and nothing where nothing is to be said."""
    logits, labels = example()
    logits.requires_grad_()
    surprise(logits, labels, smoothing).backward()
    vocab = logits.shape[-1]
    wanted = logits.detach().double().softmax(-1) - smoothing / vocab
    wanted -= (1 - smoothing) * torch.nn.functional.one_hot(labels.clamp(min=0), vocab)
    wanted[labels == NOTHING] = 0
    torch.testing.assert_close(logits.grad.double(), wanted, rtol=0, atol=1e-6)
    assert (logits.grad[labels == NOTHING] == 0).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
def test_hugging_face_says_the_same(smoothing):
    from transformers.trainer_pt_utils import LabelSmoother

    logits, labels = example()
    theirs = LabelSmoother(epsilon=smoothing)({"logits": logits}, labels)  # a mean over real labels
    count = int((labels != NOTHING).sum())
    assert surprise(logits, labels, smoothing).item() == pytest.approx(theirs.item() * count, rel=1e-6)


@pytest.mark.parametrize("value", [0.0, 1e30, -1e30, math.inf, math.nan])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_what_a_model_says_at_padding_changes_nothing_bit_for_bit(value, smoothing):
    logits, labels = example()
    before = surprise(logits, labels, smoothing)
    changed = logits.clone()
    changed[labels == NOTHING] = value
    changed.requires_grad_()
    after = surprise(changed, labels, smoothing)
    assert torch.equal(before, after.detach())
    if math.isfinite(value):
        logits.requires_grad_()
        surprise(logits, labels, smoothing).backward()
        after.backward()
        assert torch.equal(logits.grad, changed.grad)


def test_a_batch_of_padding_alone_says_nothing():
    logits = torch.randn(2, 3, 5, requires_grad=True)
    said = surprise(logits, torch.full((2, 3), NOTHING), 0.1)
    said.backward()
    assert said.item() == 0
    assert (logits.grad == 0).all()


def test_half_precision_is_summed_in_float32():
    """A sum of 4,000 tokens would have steps of 32 in bfloat16."""
    logits, labels = torch.randn(4, 1000, 50).bfloat16(), torch.randint(0, 50, (4, 1000))
    said = surprise(logits, labels)
    assert said.dtype == torch.float32
    wanted = torch.nn.functional.nll_loss(
        logits.double().log_softmax(-1).flatten(0, 1), labels.flatten(), reduction="sum"
    )
    assert said.item() == pytest.approx(wanted.item(), rel=1e-6)


@pytest.mark.parametrize("recipe", ["marian", "gpt"])
def test_what_stands_in_padding_changes_neither_loss_nor_gradients_bit_for_bit(recipe):
    """Other ids than the padding's, in a whole model."""
    texts = Ragged([[5, 6, 7], [8], [9, 5, 6, 7, 8, 9], [6, 6]])
    corpus = Padded(texts if recipe == "marian" else None, texts, Special(0, 1, 2), Shape(100))
    (rows,) = corpus.order(0, 0)
    batch = corpus.collate(rows)
    model = RECIPES[recipe](vocab=10, width=16, depth=2, heads=2, dropout=0.0)

    def outcome(batch):
        model.zero_grad()
        loss = surprise(model(**batch.inputs), batch.labels, 0.1)
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters())]

    before = outcome(batch)
    padded = {"source": ~batch.inputs["source_valid"]} if recipe == "marian" else {}
    padded["target" if recipe == "marian" else "ids"] = batch.labels == NOTHING
    for name, where in padded.items():
        assert where.any()
        batch.inputs[name][where] = torch.randint(3, 10, (int(where.sum()),))
    assert all(torch.equal(a, b) for a, b in zip(before, outcome(batch), strict=True))
