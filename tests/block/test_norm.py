"""Norms, against their formulas in float64."""

import numpy as np
import pytest
import torch

from heedful.block import LayerNorm, RMSNorm


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def layer_norm(x, weight, bias, epsilon):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).sum(-1, keepdims=True) / x.shape[-1]
    return (x - mean) / np.sqrt(variance + epsilon) * weight + bias


def rms_norm(x, weight, epsilon):
    return x / np.sqrt((x**2).sum(-1, keepdims=True) / x.shape[-1] + epsilon) * weight


def learned(norm, seed):
    """With weights that are not all one, as after some training."""
    for n, parameter in enumerate(norm.parameters()):
        parameter.data = draw(*parameter.shape, seed=seed + n)
    return norm


@pytest.mark.parametrize("epsilon", [1e-5, 1e-12, 0.1])
@pytest.mark.parametrize("width", [1, 2, 5, 64])
def test_layer_norm(width, epsilon):
    norm, x = learned(LayerNorm(width, epsilon).double(), 7), draw(2, 3, width) * 3 + 2
    expected = layer_norm(x.numpy(), norm.weight.detach().numpy(), norm.bias.detach().numpy(), epsilon)
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("epsilon", [1e-5, 1e-12, 0.1])
@pytest.mark.parametrize("width", [1, 2, 5, 64])
def test_rms_norm(width, epsilon):
    norm, x = learned(RMSNorm(width, epsilon).double(), 7), draw(2, 3, width) * 3 + 2
    expected = rms_norm(x.numpy(), norm.weight.detach().numpy(), epsilon)
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, atol=1e-12, rtol=1e-12)


def test_the_variance_divides_by_the_width():
    """Dividing by the width less one would give 1.16 at the ends."""
    y = LayerNorm(4, 0.0).double()(torch.tensor([1.0, 2, 3, 4]).double())
    np.testing.assert_allclose(y.detach(), np.array([-1.5, -0.5, 0.5, 1.5]) / np.sqrt(1.25), atol=1e-12)


@pytest.mark.parametrize("norm", [LayerNorm(6, 1e-9).double(), RMSNorm(6, 1e-9).double()], ids=["layer", "rms"])
def test_a_norm_forgets_the_size_of_a_vector(norm):
    x = draw(4, 6)
    torch.testing.assert_close(norm(x * 1000), norm(x), atol=1e-6, rtol=0)


def test_layer_norm_forgets_the_mean_and_rms_norm_does_not():
    x = draw(4, 6)
    torch.testing.assert_close(LayerNorm(6).double()(x + 5), LayerNorm(6).double()(x), atol=1e-12, rtol=0)
    assert (RMSNorm(6).double()(x + 5) - RMSNorm(6).double()(x)).abs().max() > 0.1


def test_layer_norm_of_a_constant_is_its_bias():
    norm = learned(LayerNorm(3).double(), 3)
    torch.testing.assert_close(norm(torch.full((2, 3), 8.0).double()), norm.bias.expand(2, 3), atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_each_token_is_normed_alone(kind):
    norm, x = learned(kind(6).double(), 3), draw(3, 4, 6)
    other = x.clone()
    other[1, 2] += 100
    difference = (norm(other) - norm(x)).detach()
    assert difference[1, 2].abs().max() > 0
    difference[1, 2] = 0
    assert difference.abs().max() == 0.0


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_gradients(kind):
    norm = learned(kind(5).double(), 3)
    x = draw(2, 3, 5).requires_grad_()
    assert torch.autograd.gradcheck(norm, x)
    weights = dict(norm.named_parameters())
    assert torch.autograd.gradcheck(
        lambda *given: torch.func.functional_call(norm, dict(zip(weights, given, strict=True)), x.detach()),
        tuple(weights.values()),
    )
