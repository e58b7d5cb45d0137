"""Rules on logits: by hand, and those of `transformers`."""

import math

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from heedful.decode import never, temperature, top_k, top_p


def stay(logits):
    return [row.isfinite().nonzero()[:, 0].tolist() for row in logits]


LOGITS = torch.tensor([[0.5, 0.1, 0.3, 0.1], [0.0, 0.2, 0.2, 0.6]]).clamp(min=1e-9).log()


def test_by_hand():
    assert torch.equal(temperature(0.5)(LOGITS), LOGITS * 2)
    assert stay(top_k(2)(LOGITS)) == [[0, 2], [1, 2, 3]], "whoever is level with the last stays"
    assert stay(top_k(1)(LOGITS)) == [[0], [3]]
    assert stay(top_k(9)(LOGITS)) == [[0, 1, 2, 3]] * 2
    assert stay(top_p(0.5)(LOGITS)) == [[0], [3]]
    assert stay(top_p(0.51)(LOGITS)) == [[0, 2], [3]]
    assert stay(top_p(0.7)(LOGITS)) == [[0, 2], [1, 3]], "of two that are level the smaller id goes first"
    assert stay(top_p(0.85)(LOGITS)) == [[0, 1, 2], [1, 2, 3]]
    assert stay(top_p(1e-9)(LOGITS)) == [[0], [3]], "one always stays"
    assert stay(top_p(1)(LOGITS)) == [[0, 1, 2, 3]] * 2
    assert stay(never([0, 3])(LOGITS)) == [[1, 2]] * 2
    assert never([])(LOGITS) is LOGITS
    assert stay(never([-1, 7])(LOGITS)) == [[0, 1, 2, 3]] * 2, "an id that is not in the vocabulary never comes anyway"


def test_of_many_that_are_level_the_smaller_ids_stay():
    assert stay(top_p(0.5)(torch.zeros(1, 512))) == [list(range(256))]


def test_what_stays_is_as_it_was():
    for rule in (top_k(2), top_p(0.6), never([0])):
        ruled = rule(LOGITS)
        assert torch.equal(ruled[ruled.isfinite()], LOGITS[ruled.isfinite()])
        assert (ruled[~ruled.isfinite()] == -math.inf).all()


def test_rules_leave_their_argument_alone():
    before = LOGITS.clone()
    for rule in (temperature(2.0), top_k(2), top_p(0.6), never([0])):
        rule(LOGITS)
    assert torch.equal(LOGITS, before)


@pytest.mark.parametrize("seed", range(50))
def test_they_are_those_of_transformers(seed):
    logits = 4 * torch.randn(7, 61, generator=torch.Generator().manual_seed(seed))
    t, k, p = 0.2 + 0.05 * seed, 1 + seed, 0.01 + 0.019 * seed
    for rule, warper in (
        (temperature(t), TemperatureLogitsWarper(t)),
        (top_k(k), TopKLogitsWarper(k)),
        (top_p(p), TopPLogitsWarper(p)),
    ):
        torch.testing.assert_close(rule(logits), warper(None, logits), rtol=1e-6, atol=0)
    ours = top_p(p)(top_k(k)(temperature(t)(logits)))
    theirs = TopPLogitsWarper(p)(None, TopKLogitsWarper(k)(None, TemperatureLogitsWarper(t)(None, logits)))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


@pytest.mark.parametrize("t", [0, -1.0, math.inf, math.nan])
def test_temperature_is_above_0(t):
    with pytest.raises(ValueError, match=f"temperature={t}"):
        temperature(t)


@pytest.mark.parametrize("k", [0, -3])
def test_top_k_leaves_one(k):
    with pytest.raises(ValueError, match=f"top_k={k}"):
        top_k(k)


@pytest.mark.parametrize("p", [0, -0.1, 1.01, math.nan])
def test_top_p_is_a_share(p):
    with pytest.raises(ValueError, match=f"top_p={p}"):
        top_p(p)
