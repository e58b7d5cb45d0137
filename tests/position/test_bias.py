"""Biases: terms by distance, functions of scores, and the order in which they come."""

import math

import pytest
import torch
from torch import nn

import heedful
from heedful.mask import causal, key
from heedful.position import Added, Mapped


class Slope(Added):
    """-slope · |distance|, a slope for each head."""

    def __init__(self, *slopes: float) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.tensor(slopes, dtype=torch.float64))

    def values(self, distance):
        return -self.slopes.view(-1, *[1] * distance.dim()) * distance.abs()


class Signed(Added):
    def values(self, distance):
        return distance.double()[None]


class Cap(Mapped):
    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = cap

    def forward(self, scores):
        return self.cap * torch.tanh(scores / self.cap)


def draw(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


Q, K, V = draw(2, 2, 3, 4, seed=1), draw(2, 2, 5, 4, seed=2), draw(2, 2, 5, 3, seed=3)
Q_AT, K_AT = torch.tensor([4, 9, 2]), torch.tensor([[0, 1, 2, 3, 4], [7, 3, 3, 9, 0]])


def softmax(scores):
    """By hand, so that it shares nothing with the kernel."""
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def distance(b, i, j):
    return int(Q_AT[i] - K_AT[b, j])


def by_hand(term):
    """Scores with term(score, h, distance) in place of each, one after another."""
    scores = (Q @ K.mT) / math.sqrt(4)
    for b in range(2):
        for h in range(2):
            for i in range(3):
                for j in range(5):
                    scores[b, h, i, j] = term(float(scores[b, h, i, j]), h, distance(b, i, j))
    return softmax(scores) @ V


def attend(*bias, **how):
    return heedful.attend(Q, K, V, bias=bias, q_at=Q_AT, k_at=K_AT, **how)


KERNELS = pytest.mark.parametrize("kernel", ["reference", "sdpa", "auto"])


@KERNELS
def test_a_term_for_each_head_and_distance_is_added_to_the_scores(kernel):
    y = attend(Slope(0.5, 0.125), kernel=kernel)
    slopes = (0.5, 0.125)
    torch.testing.assert_close(y, by_hand(lambda s, h, d: s - slopes[h] * abs(d)), atol=1e-12, rtol=0)


@KERNELS
def test_a_distance_is_the_query_less_the_key(kernel):
    torch.testing.assert_close(attend(Signed(), kernel=kernel), by_hand(lambda s, h, d: s + d), atol=1e-12, rtol=0)


@KERNELS
def test_terms_add_up(kernel):
    y = attend(Slope(0.5, 0.125), Signed(), kernel=kernel)
    slopes = (0.5, 0.125)
    torch.testing.assert_close(y, by_hand(lambda s, h, d: s - slopes[h] * abs(d) + d), atol=1e-12, rtol=0)


@pytest.mark.parametrize("kernel", ["reference", "auto"])
def test_scores_are_mapped(kernel):
    expected = by_hand(lambda s, h, d: 0.7 * math.tanh(s / 0.7))
    torch.testing.assert_close(attend(Cap(0.7), kernel=kernel), expected, atol=1e-12, rtol=0)


def test_biases_apply_in_the_order_in_which_they_are_given():
    slopes = (0.5, 0.125)
    capped_last = by_hand(lambda s, h, d: 0.7 * math.tanh((s - slopes[h] * abs(d)) / 0.7))
    capped_first = by_hand(lambda s, h, d: 0.7 * math.tanh(s / 0.7) - slopes[h] * abs(d))
    torch.testing.assert_close(attend(Slope(*slopes), Cap(0.7)), capped_last, atol=1e-12, rtol=0)
    torch.testing.assert_close(attend(Cap(0.7), Slope(*slopes)), capped_first, atol=1e-12, rtol=0)
    assert (capped_last - capped_first).abs().max() > 1e-2


@KERNELS
def test_the_mask_comes_last(kernel):
    """Whatever a bias makes of it, a key that is ruled out has no weight."""
    lengths = (4, 2)
    keep = torch.tensor(
        [[distance(b, i, j) >= 0 and j < lengths[b] for j in range(5)] for b in range(2) for i in range(3)]
    )
    keep = keep.reshape(2, 1, 3, 5)
    scores = (Q @ K.mT) / 2 + torch.tensor(
        [[[distance(b, i, j) for j in range(5)] for i in range(3)] for b in range(2)]
    )[:, None]
    shares = torch.where(keep, (scores - scores.amax(-1, keepdim=True)).exp(), 0)
    expected = shares / shares.sum(-1, keepdim=True).clamp(min=1e-300) @ V
    valid = torch.arange(5) < torch.tensor(lengths)[:, None]
    y = attend(Signed(), mask=causal & key("valid"), tables={"valid": (None, valid)}, kernel=kernel)
    torch.testing.assert_close(y, expected, atol=1e-12, rtol=0)


def test_a_capped_score_that_is_ruled_out_stays_so():
    y = attend(Cap(0.1), mask=key(torch.tensor([True, False, False, False, False])))
    torch.testing.assert_close(y, V[:, :, :1].expand_as(y), atol=1e-12, rtol=0)


@KERNELS
def test_gradients_reach_what_a_bias_learns(kernel):
    term = Slope(0.5, 0.125)
    attend(term, kernel=kernel).square().sum().backward()
    found = term.slopes.grad.clone()
    for h in range(2):
        step = torch.zeros(2, dtype=torch.float64)
        step[h] = 1e-6
        ends = [attend(Slope(*(term.slopes.detach() + sign * step))).square().sum() for sign in (1, -1)]
        torch.testing.assert_close(found[h], (ends[0] - ends[1]).detach() / 2e-6, atol=1e-7, rtol=1e-7)


def test_gradients_of_a_layer_with_a_bias():
    layer = heedful.Attention(4, 2, mask=causal, bias=(Slope(0.5, 0.125),), kernel="reference").double()
    assert "bias.0.slopes" in dict(layer.named_parameters())
    x = draw(2, 3, 4, seed=5).requires_grad_()
    assert torch.autograd.gradcheck(layer, x)
    assert torch.autograd.gradcheck(
        lambda slopes: torch.func.functional_call(layer, {"bias.0.slopes": slopes}, x.detach()), layer.bias[0].slopes
    )


def test_an_added_bias_must_say_what_it_adds():
    class Silent(Added):
        pass

    with pytest.raises(NotImplementedError, match=r"Silent must say what it adds: values\(distance\)"):
        Silent().values(torch.zeros(2))


def test_a_mapped_bias_is_not_for_the_fused_kernel():
    with pytest.raises(ValueError, match=r'Cap maps scores, which "sdpa" cannot do'):
        attend(Cap(1.0), kernel="sdpa")


def test_distances_need_positions_where_lengths_differ():
    with pytest.raises(ValueError, match="3 queries meet 5 keys: where do they stand"):
        heedful.attend(Q, K, V, bias=(Signed(),))
