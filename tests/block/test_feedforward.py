"""The feed-forward network: its formulas, and that each token goes through it alone."""

import math

import numpy as np
import pytest
import torch

from heedful.block import ACTIVATIONS, FeedForward, Gated
from heedful.block.feedforward import activation
from heedful.trace import listen


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


BY_HAND = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x / (1 + math.exp(-x)),
}


def linear(x, module):
    y = x @ module.weight.detach().numpy().T
    return y if module.bias is None else y + module.bias.detach().numpy()


def test_every_activation_is_tested():
    assert set(BY_HAND) == set(ACTIVATIONS)


@pytest.mark.parametrize("name", BY_HAND)
def test_activations(name):
    x = torch.linspace(-6, 6, 49, dtype=torch.float64)
    expected = [BY_HAND[name](v) for v in x.tolist()]
    np.testing.assert_allclose(activation(name)(x), expected, atol=1e-14, rtol=1e-13)


def test_both_forms_of_gelu_differ():
    x = torch.tensor([-1.0], dtype=torch.float64)
    assert (activation("gelu")(x) - activation("gelu_tanh")(x)).abs() > 1e-4


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("name", BY_HAND)
def test_feed_forward(name, biases):
    module, x = FeedForward(4, 7, name, biases=biases).double(), draw(2, 3, 4)
    inner = np.vectorize(BY_HAND[name])(linear(x.numpy(), module.up))
    np.testing.assert_allclose(module(x).detach(), linear(inner, module.down), atol=1e-13, rtol=0)
    assert sum(p.numel() for p in module.parameters()) == 2 * 4 * 7 + (4 + 7) * biases


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("name", BY_HAND)
def test_gated(name, biases):
    module, x = Gated(4, 7, name, biases=biases).double(), draw(2, 3, 4)
    inner = np.vectorize(BY_HAND[name])(linear(x.numpy(), module.gate)) * linear(x.numpy(), module.up)
    np.testing.assert_allclose(module(x).detach(), linear(inner, module.down), atol=1e-13, rtol=0)
    assert sum(p.numel() for p in module.parameters()) == 3 * 4 * 7 + (4 + 7 + 7) * biases


def test_what_they_are_without_being_asked():
    assert FeedForward(4, 7).activation is ACTIVATIONS["relu"]
    assert FeedForward(4, 7).up.bias is not None
    assert Gated(4, 7).activation is ACTIVATIONS["silu"]
    assert Gated(4, 7).up.bias is None


MODULES = pytest.mark.parametrize("kind", [FeedForward, Gated])


@MODULES
def test_each_position_goes_through_alone(kind):
    """Changing one token changes no other: by exactly 0.0, in values and in gradients."""
    module, x = kind(4, 7).double(), draw(2, 5, 4)
    other = x.clone()
    other[1, 2] += 3
    difference = (module(other) - module(x)).detach().abs().amax(-1)
    assert difference[1, 2] > 0
    difference[1, 2] = 0
    assert (difference == 0.0).all()
    slopes = torch.autograd.functional.jacobian(module, x[:1]).abs().sum((0, 2, 3, 5))
    assert (slopes.diagonal() > 0).all()
    assert (slopes - slopes.diagonal().diag() == 0.0).all()


@MODULES
def test_equal_tokens_give_equal_results_wherever_they_stand(kind):
    module, x = kind(4, 7).double(), draw(1, 1, 4).expand(2, 6, 4)
    y = module(x)
    torch.testing.assert_close(y, y[:1, :1].expand_as(y), atol=1e-15, rtol=0)


@MODULES
def test_gradients(kind):
    module = kind(3, 4, "silu", biases=True).double()
    x = draw(2, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(module, x)
    weights = dict(module.named_parameters())
    assert torch.autograd.gradcheck(
        lambda *given: torch.func.functional_call(module, dict(zip(weights, given, strict=True)), x.detach()),
        tuple(weights.values()),
    )


@MODULES
def test_a_listener_hears_what_stands_between(kind):
    module, x = kind(4, 7).double(), draw(2, 3, 4)
    with listen(module) as trace:
        y = module(x)
    assert list(trace) == ["inner", "out"]
    assert trace["inner"].shape == (2, 3, 7)
    assert torch.equal(trace["out"], y)
    assert torch.equal(module.down(trace["inner"]), y)


@MODULES
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (4,)])
def test_any_leading_axes(kind, shape):
    assert kind(4, 7)(torch.zeros(shape)).shape == shape


@MODULES
def test_an_unknown_activation_names_those_there_are(kind):
    with pytest.raises(ValueError, match='no activation "swish"; there are relu, gelu, gelu_tanh, silu'):
        kind(4, 7, "swish")
