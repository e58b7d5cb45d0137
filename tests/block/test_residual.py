"""The skip around a branch: three formulas, and what they do with dropout."""

import pytest
import torch
from torch import nn

from heedful.block import FeedForward, LayerNorm, bare, post, pre
from heedful.trace import listen


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Branch(nn.Module):
    """3 x² + 1, keeping what it was given."""

    def forward(self, x, context):
        self.context = context
        return 3 * x**2 + 1


class Half(nn.Module):
    """A norm that can be followed by eye."""

    def forward(self, x):
        return x / 2


def test_pre_norms_what_the_branch_reads_and_adds_to_what_came():
    x = torch.tensor([2.0, 4.0])
    assert pre(Branch(), Half())(x, None).tolist() == [2 + 3 * 1 + 1, 4 + 3 * 4 + 1]


def test_post_norms_the_sum():
    x = torch.tensor([2.0, 4.0])
    assert post(Branch(), Half())(x, None).tolist() == [(2 + 3 * 4 + 1) / 2, (4 + 3 * 16 + 1) / 2]


def test_bare_has_no_skip():
    x = torch.tensor([2.0, 4.0])
    assert bare(Branch())(x, None).tolist() == [3 * 4 + 1, 3 * 16 + 1]


@pytest.mark.parametrize("wrap", [lambda b: pre(b, Half()), lambda b: post(b, Half()), bare])
def test_the_branch_is_given_the_context(wrap):
    branch, context = Branch(), object()
    wrap(branch)(torch.zeros(2), context)
    assert branch.context is context


WRAPPERS = pytest.mark.parametrize(
    "wrap",
    [lambda b, n: pre(b, n), lambda b, n: post(b, n), lambda b, n: bare(b)],
    ids=["pre", "post", "bare"],
)


@WRAPPERS
def test_gradients(wrap):
    module = wrap(FeedForward(4, 6, "silu"), LayerNorm(4)).double()
    assert torch.autograd.gradcheck(lambda x: module(x, None), draw(2, 3, 4).requires_grad_())


def test_the_skip_of_pre_carries_gradients_past_a_branch_that_is_dead():
    class Dead(nn.Module):
        def forward(self, x, context):
            return 0 * x

    x = draw(2, 3).requires_grad_()
    pre(Dead(), LayerNorm(3).double())(x, None).sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    x.grad = None
    bare(Dead())(x, None).sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


@pytest.mark.parametrize("kind", [pre, post])
def test_a_listener_hears_branch_and_sum(kind):
    module, x = kind(FeedForward(4, 6), LayerNorm(4)).double(), draw(2, 3, 4)
    with listen(module) as trace:
        y = module(x, None)
    assert torch.equal(trace["branch"], trace["out"])
    assert torch.equal(trace["sum"], x + trace["branch"])
    assert torch.equal(y, trace["sum"] if kind is pre else module.norm(trace["sum"]))


def test_a_listener_hears_the_branch_of_a_bare_one():
    module, x = bare(FeedForward(4, 6)).double(), draw(2, 3, 4)
    with listen(module) as trace:
        y = module(x, None)
    assert torch.equal(trace["branch"], y)
    assert "sum" not in trace


def dropped(whole, part):
    """Whether `part` is `whole` with some entries 0 and the others doubled."""
    return bool(((part == 0) | torch.isclose(part, 2 * whole, rtol=1e-12, atol=0)).all()) and (part == 0).sum() > 0


@pytest.mark.parametrize("kind", [pre, post])
def test_the_branch_is_dropped_before_the_sum(kind):
    torch.manual_seed(0)
    module, x = kind(FeedForward(4, 6), LayerNorm(4), dropout=0.5).double(), draw(4, 6, 4)
    with listen(module) as trace:
        module(x, None)
    assert dropped(trace["out"], trace["branch"])
    assert torch.equal(trace["sum"], x + trace["branch"]), "the skip itself is whole"


@pytest.mark.parametrize("kind", [pre, post])
def test_the_result_is_dropped_after_sum_and_norm(kind):
    torch.manual_seed(0)
    module, x = kind(FeedForward(4, 6), LayerNorm(4), after=0.5).double(), draw(4, 6, 4)
    with listen(module) as trace:
        y = module(x, None)
    assert torch.equal(trace["branch"], trace["out"])
    assert dropped(trace["sum"] if kind is pre else module.norm(trace["sum"]), y)


@pytest.mark.parametrize("kind", [pre, post])
def test_nothing_is_dropped_in_use(kind):
    module, x = kind(FeedForward(4, 6), LayerNorm(4), dropout=0.5, after=0.5).double(), draw(4, 6, 4)
    whole = kind(module.branch, module.norm)
    assert torch.equal(module.eval()(x, None), whole.eval()(x, None))
