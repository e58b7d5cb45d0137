"""Rotary positions: the formula, what it keeps, and what it makes of a score."""

import math

import numpy as np
import pytest
import torch

from heedful.attention import Attention
from heedful.position import Rotary, geometric, halves, linear, llama3, pairs
from heedful.side import Side


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def by_hand(x, positions, frequencies, layout):
    """One vector at a time, one pair at a time."""
    turned = np.array(x, dtype=np.float64)
    pairs_count = len(frequencies)
    for n, p in enumerate(positions):
        for i, f in enumerate(frequencies):
            one, two = (2 * i, 2 * i + 1) if layout is pairs else (i, i + pairs_count)
            c, s = math.cos(p * f), math.sin(p * f)
            a, b = x[..., n, one], x[..., n, two]
            turned[..., n, one], turned[..., n, two] = a * c - b * s, a * s + b * c
    return turned


@pytest.mark.parametrize("layout", [pairs, halves])
@pytest.mark.parametrize("columns", [2, 4, 6, 8])
def test_every_pair_turns_by_position_times_its_frequency(columns, layout):
    """Of a head of 8; the columns that no frequency turns pass untouched."""
    x, positions = draw(2, 3, 5, 8), [0, 1, 2, 77, -3]
    turned = Rotary(geometric(columns), layout=layout)(x, torch.tensor(positions))
    expected = by_hand(x.numpy(), positions, geometric(columns), layout)
    np.testing.assert_allclose(turned.numpy(), expected, atol=1e-12, rtol=0)
    assert torch.equal(turned[..., columns:], x[..., columns:])


@pytest.mark.parametrize("layout", [pairs, halves])
def test_an_odd_head_leaves_its_last_column(layout):
    x = draw(1, 1, 3, 7)
    turned = Rotary(geometric(6), layout=layout)(x, torch.arange(3))
    np.testing.assert_allclose(turned.numpy(), by_hand(x.numpy(), range(3), geometric(6), layout), atol=1e-12, rtol=0)
    assert torch.equal(turned[..., 6:], x[..., 6:])


@pytest.mark.parametrize("layout", [pairs, halves])
def test_each_row_has_its_own_positions(layout):
    x, at = draw(2, 3, 4, 6), torch.tensor([[0, 1, 2, 3], [9, 4, 4, 0]])
    rotary = Rotary(geometric(6), layout=layout)
    for b in range(2):
        assert torch.equal(rotary(x, at)[b], rotary(x[b : b + 1], at[b])[0])
    assert torch.equal(rotary(x, at[:1]), rotary(x, at[0]))


@pytest.mark.parametrize("layout", [pairs, halves])
@pytest.mark.parametrize("frequencies", [geometric(8), geometric(4), [0.5, 0.5, 0.3]])
def test_a_score_depends_on_the_distance_alone(frequencies, layout):
    q, k = draw(1, 2, 1, 8, seed=1), draw(1, 2, 1, 8, seed=2)
    rotary = Rotary(frequencies, layout=layout)

    def score(m, n):
        return (rotary(q, torch.tensor([m])) * rotary(k, torch.tensor([n]))).sum(-1)

    for distance in (-9, 0, 1, 40):
        here = score(distance, 0)
        for shift in (1, 5, 100):
            torch.testing.assert_close(score(distance + shift, shift), here, atol=1e-12, rtol=0)
    assert (score(1, 0) - score(2, 0)).abs().min() > 1e-3


@pytest.mark.parametrize("layout", [pairs, halves])
def test_turning_keeps_lengths(layout):
    x, at = draw(2, 3, 6, 8), torch.tensor([0, 3, 100, 9999, 100_000, 5])
    turned = Rotary(geometric(8), layout=layout)(x, at)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), atol=1e-12, rtol=0)
    assert torch.equal(turned[:, :, 0], x[:, :, 0])


def test_layouts_differ_by_the_order_of_columns_alone():
    x, at = draw(2, 3, 5, 8), torch.arange(5) * 3
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    by_pairs = Rotary(geometric(8), layout=pairs)(x, at)
    by_halves = Rotary(geometric(8), layout=halves)(x[..., order], at)
    torch.testing.assert_close(by_pairs[..., order], by_halves, atol=1e-15, rtol=0)
    assert not torch.allclose(by_pairs, Rotary(geometric(8), layout=halves)(x, at))


def test_frequencies_are_free():
    assert torch.equal(Rotary([0.0, 0.0])(draw(1, 1, 4, 4), torch.arange(4)), draw(1, 1, 4, 4))
    x = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64).expand(1, 1, 1, 4)
    turned = Rotary([math.pi / 2, math.pi], layout=pairs)(x, torch.tensor([1]))
    torch.testing.assert_close(turned.flatten(), torch.tensor([0.0, 1, -1, 0]).double(), atol=1e-15, rtol=0)


def test_more_columns_than_a_head_has_are_refused():
    message = "rotary turns 8 columns, a head has 6: give 3 frequencies or fewer"
    with pytest.raises(ValueError, match=message):
        Rotary(geometric(8))(draw(1, 1, 2, 6), torch.arange(2))


@pytest.mark.parametrize("layout", [pairs, halves])
def test_gradients(layout):
    x = draw(2, 2, 3, 5).requires_grad_()
    rotary = Rotary(geometric(4), layout=layout)
    assert torch.autograd.gradcheck(lambda x: rotary(x, torch.tensor([[0, 1, 9], [4, 4, 2]])), x)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 2, 0, 4)])
def test_nothing_turns_into_nothing(shape):
    assert Rotary(geometric(4))(torch.zeros(shape), torch.arange(shape[2])).shape == shape


# Small dtypes.


@pytest.mark.parametrize("layout", [pairs, halves])
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.bfloat16, 4e-3), (torch.float16, 4e-3), (torch.float32, 1e-6), (torch.float64, 1e-10)]
)
def test_phases_far_out_are_right_whatever_the_dtype_of_the_model(dtype, bound, layout):
    """At position 100,000 an angle in bfloat16 would be off by whole turns."""
    width = 64
    rotary = Rotary(geometric(width), layout=layout).to(dtype)
    ones = np.zeros((1, 1, 1, width))
    ones[..., 0 :: 2 if layout is pairs else 1] = 1
    if layout is halves:
        ones[..., width // 2 :] = 0
    turned = rotary(torch.from_numpy(ones).to(dtype), torch.tensor([100_000]))
    assert turned.dtype == dtype
    error = np.abs(turned.double().numpy() - by_hand(ones, [100_000], geometric(width), layout)).max()
    assert error <= bound


@pytest.mark.parametrize("layout", [pairs, halves])
@pytest.mark.parametrize(("dtype", "half_a_step"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
def test_a_turned_vector_is_rounded_once(dtype, half_a_step, layout):
    """Products and sums are wider; only what comes out is small."""
    x, positions = draw(2, 3, 40, 16, dtype=dtype), list(range(40))
    turned = Rotary(geometric(16), layout=layout)(x, torch.tensor(positions))
    expected = by_hand(x.double().numpy(), positions, geometric(16), layout)
    np.testing.assert_allclose(turned.double().numpy(), expected, rtol=half_a_step, atol=1e-6)


def test_a_layer_cast_to_bfloat16_turns_its_keys_by_the_right_angle():
    """The layer's own rotary, in the line where it is used."""
    layer = Attention(16, 2, rotary=Rotary(geometric(8))).to(torch.bfloat16)
    x, at = draw(1, 1, 16, dtype=torch.bfloat16), torch.tensor([100_000])
    plain = layer.split(layer.key(x), 2) / 4
    assert plain.abs().max() <= 1
    expected = by_hand(plain.detach().double().numpy(), [100_000], geometric(8), halves)
    assert np.abs(layer.turned(plain, Side(1, at[None])).detach().double().numpy() - expected).max() <= 4e-3


CASTS = {
    "bfloat16": lambda module: module.to(torch.bfloat16),
    "half": lambda module: module.half(),
    "meta and back": lambda module: module.to("meta").to_empty(device="cpu"),
}


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)
def test_a_cast_rotary_turns_as_before(cast):
    x, at = draw(1, 2, 3, 8), torch.tensor([1, 50, 5000])
    before = Rotary(geometric(8))
    assert torch.equal(cast(Rotary(geometric(8)))(x, at), before(x, at))


def test_a_rotary_built_without_storage_turns_as_any_other():
    with torch.device("meta"):
        layer = Attention(16, 2, rotary=Rotary(geometric(8)))
    layer.to_empty(device="cpu")
    x, at = draw(1, 2, 3, 8), torch.tensor([1, 50, 5000])
    assert torch.equal(layer.rotary(x, at), Rotary(geometric(8))(x, at))
    assert Rotary(geometric(8)).state_dict() == {}


# Stretching.


def theirs(kind, width, base, **how):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=width * 2,
        num_attention_heads=2,
        max_position_embeddings=131072,
        rope_parameters={"rope_type": kind, "rope_theta": base, **how},
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    assert factor == 1
    return frequencies.double().numpy()


@pytest.mark.parametrize("factor", [1.0, 4.0, 2.5])
@pytest.mark.parametrize("width", [8, 64, 128])
def test_linear_stretching_equals_transformers(width, factor):
    """Theirs are made in float32."""
    found = linear(geometric(width, 10000.0), factor)
    np.testing.assert_allclose(found, theirs("linear", width, 10000.0, factor=factor), rtol=5e-6, atol=0)


@pytest.mark.parametrize("width", [8, 64, 128])
@pytest.mark.parametrize(
    ("base", "factor", "low", "high", "original"),
    [(500000.0, 8.0, 1.0, 4.0, 8192), (500000.0, 32.0, 1.0, 4.0, 8192), (10000.0, 4.0, 2.0, 10.0, 2048)],
)
def test_llama3_stretching_equals_transformers(width, base, factor, low, high, original):
    found = llama3(geometric(width, base), factor, low, high, original)
    expected = theirs(
        "llama3",
        width,
        base,
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=original,
    )
    np.testing.assert_allclose(found, expected, rtol=5e-6, atol=0)


def test_llama3_keeps_fast_pairs_and_divides_slow_ones():
    frequencies = geometric(128, 500000.0)
    ratio = np.array(llama3(frequencies)) / np.array(frequencies)
    turns = 8192 * np.array(frequencies) / (2 * math.pi)
    np.testing.assert_allclose(ratio[turns > 4], 1, rtol=1e-14)
    np.testing.assert_allclose(ratio[turns < 1], 1 / 8, rtol=1e-14)
    between = ratio[(turns > 1) & (turns < 4)]
    assert len(between) > 2
    assert ((between > 1 / 8) & (between < 1)).all()
    assert (np.diff(ratio) <= 1e-15).all()


def test_linear_stretching_is_squeezing_positions():
    x = draw(1, 1, 3, 8)
    squeezed = Rotary(linear(geometric(8), 4))(x, torch.tensor([0, 4, 400]))
    torch.testing.assert_close(squeezed, Rotary(geometric(8))(x, torch.tensor([0, 1, 100])), atol=1e-12, rtol=0)
