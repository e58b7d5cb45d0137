"""The study notes' worked examples, recomputed in float64 by an independent program, through the public parts.

golden/notes.json holds the exact values, not what the notes print.
"""

import itertools
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import heedful
from heedful.block import ACTIVATIONS, LayerNorm
from heedful.context import Context
from heedful.mask import causal, everything, key
from heedful.position import Rotary, Sinusoidal, geometric, halves, pairs
from heedful.trace import listen

GOLDEN = json.loads((Path(__file__).parent / "golden" / "notes.json").read_text())
KERNELS = pytest.mark.parametrize("kernel", ["reference", "sdpa"])


def exact(values):
    return torch.tensor(values, dtype=torch.float64)


def check(found, golden):
    """To the last digits of float64."""
    torch.testing.assert_close(found.detach(), exact(golden), atol=1e-12, rtol=1e-12)


def layer(query, key, value, out=None, heads=1, **how):
    """A layer with these projections, given as x W."""
    made = heedful.Attention(
        len(query),
        heads,
        head_width=len(query[0]) // heads,
        biases=False,
        out=nn.Identity() if out is None else None,
        **how,
    ).double()
    for part, weight in ((made.query, query), (made.key, key), (made.value, value), (made.out, out)):
        if weight is not None:
            part.weight.data = exact(weight).T.contiguous()
    return made


# One head.

ONE = GOLDEN["single_head"]
VARIANTS = {
    "d_k": (ONE, {}),
    "length": (ONE["variant_sqrt(len_K)=sqrt2"], {"scale": 2**-0.5}),
    "none": (ONE["variant_none"], {"scale": 1.0}),
    "width": (ONE["variant_sqrt(d_model)=2"], {"scale": 4**-0.5}),
    "causal": (ONE["causal"], {"mask": causal}),
}


@KERNELS
@pytest.mark.parametrize("variant", VARIANTS)
def test_one_head_by_attend(variant, kernel):
    golden, how = VARIANTS[variant]
    q, k, v = (exact(ONE[name])[None, None] for name in "QKV")
    check(heedful.attend(q, k, v, kernel=kernel, **how)[0, 0], golden["output"])
    check(heedful.attend(q, k, torch.eye(2).double()[None, None], kernel=kernel, **how)[0, 0], golden["weights"])


@KERNELS
@pytest.mark.parametrize("variant", VARIANTS)
def test_one_head_by_a_layer(variant, kernel):
    golden, how = VARIANTS[variant]
    made = layer(ONE["WQ"], ONE["WK"], ONE["WV"], kernel=kernel, **how)
    with listen(made) as trace:
        y = made(exact(ONE["X"])[None])
    for name in "QKV":
        check(trace[name.lower()][0, 0], ONE[name])
    check(trace["weights"][0, 0], golden["weights"])
    check(y[0], golden["output"])
    if variant == "none":
        check(trace["scores"][0, 0], ONE["scores"])
    if variant == "d_k":
        check(trace["scores"][0, 0], ONE["scaled"])


def test_the_scalings_differ_in_the_second_digit_so_a_wrong_one_is_seen():
    printed = {name: round(VARIANTS[name][0]["weights"][0][0], 2) for name in ("d_k", "length", "none", "width")}
    assert printed == {"d_k": 0.03, "length": 0.01, "none": 0.0, "width": 0.05}
    q, k, v = (exact(ONE[name])[None, None] for name in "QKV")
    for one, other in itertools.permutations(VARIANTS, 2):
        y = heedful.attend(q, k, v, **VARIANTS[one][1])[0, 0]
        with pytest.raises(AssertionError):
            check(y, VARIANTS[other][0]["output"])


# Two heads.

TWO = GOLDEN["multi_head"]
HEADS = (TWO["head1"], TWO["head2"])


def side_by_side(name):
    return torch.cat([exact(head[name]) for head in HEADS], -1).tolist()


@KERNELS
def test_two_heads_by_a_layer(kernel):
    made = layer(side_by_side("WQ"), side_by_side("WK"), side_by_side("WV"), TWO["WO"], heads=2, kernel=kernel)
    with listen(made) as trace:
        y = made(exact(TWO["X"])[None])
    for h, head in enumerate(HEADS):
        for name in ("Q", "K", "V"):
            check(trace[name.lower()][0, h], head[name])
        check(trace["scores"][0, h], head["scaled"])
        check(trace["weights"][0, h], head["weights"])
        check(trace["heads"][0, h], head["out"])
    check(trace["heads"][0].transpose(0, 1).flatten(1), TWO["concat"])
    check(y[0], TWO["output"])


@KERNELS
def test_two_heads_by_attend(kernel):
    q, k, v = (exact([head[name] for head in HEADS])[None] for name in "QKV")
    y = heedful.attend(q, k, v, kernel=kernel)
    for h, head in enumerate(HEADS):
        check(y[0, h], head["out"])
    weights = heedful.attend(q, k, torch.eye(2).double().expand(1, 2, 2, 2), scale=2**-0.5, kernel=kernel)
    check(weights[0], [head["weights"] for head in HEADS])
    check(y[0].transpose(0, 1).flatten(1) @ exact(TWO["WO"]), TWO["output"])


def test_the_order_of_heads_matters_to_the_output():
    swapped = layer(
        *(torch.cat([exact(head[name]) for head in HEADS[::-1]], -1).tolist() for name in ("WQ", "WK", "WV")),
        TWO["WO"],
        heads=2,
    )
    with pytest.raises(AssertionError):
        check(swapped(exact(TWO["X"])[None])[0], TWO["output"])


# Positions.

PE = GOLDEN["pe"]


def test_codes_of_width_eight():
    check(Sinusoidal(8)(torch.arange(4)), PE["d8"])
    check(1 / exact(geometric(8)), PE["denoms"])


def test_codes_of_width_eight_are_told_from_a_wrong_table():
    """Columns 2 to 7 tell: with every later pair ten times too slow, the first two columns are still right."""
    wrong = Sinusoidal(8)
    wrong.angles.frequencies[1:] /= 10
    code = wrong(torch.arange(4))
    check(code[:, :2], exact(PE["d8"])[:, :2].tolist())
    with pytest.raises(AssertionError):
        check(code, PE["d8"])


def test_codes_of_width_four():
    golden = exact(PE["d4"])
    check(Sinusoidal(4)(torch.arange(len(golden))), PE["d4"])


@pytest.mark.parametrize("spot", PE["d512_spot"])
def test_codes_of_width_512(spot):
    at, column = (int(n) for n in spot.split(","))
    check(Sinusoidal(512)(torch.tensor([at]))[0, column], PE["d512_spot"][spot])


@pytest.mark.parametrize("row", PE["d32_cols6_9_rows"])
def test_codes_of_width_32(row):
    check(Sinusoidal(32)(torch.tensor([int(row)]))[0, 6:10], PE["d32_cols6_9_rows"][row])


def test_embedding_and_position():
    words = nn.Embedding.from_pretrained(exact(PE["embedding"]))
    embedding = heedful.Embedding(words, Sinusoidal(8))
    ids = torch.tensor([[0, 1, 2, 3]])
    check(embedding(ids, Context.of(words(ids)))[0], PE["embedding_plus_pe"])


@pytest.mark.parametrize("distance", GOLDEN["pe_kernel_d64"])
def test_products_of_codes(distance):
    golden = GOLDEN["pe_kernel_d64"][distance]
    for start in (0, 3, 41):
        here, there = Sinusoidal(64)(torch.tensor([start, start + int(distance)]))
        check(here @ there, golden)


# Rotary positions.

ROPE = GOLDEN["rope"]
ANGLES = {"base05": [0.5, 0.5], "std": geometric(4)}
LAYOUTS = {"interleaved": pairs, "half": halves}


@pytest.mark.parametrize(("at", "name"), [(1, "R05"), (2, "R10"), (3, "R15")])
def test_unit_vectors_turn_into_the_columns_of_a_rotation(at, name):
    turned = Rotary([0.5], layout=pairs)(torch.eye(2).double()[:, None, None], torch.tensor([at]))
    check(turned[:, 0, 0].T, ROPE[name])


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("angles", ANGLES)
def test_a_vector_turns(angles, layout, at):
    rotary = Rotary(ANGLES[angles], layout=LAYOUTS[layout])
    turned = rotary(exact([1, 2, 3, 4]).expand(1, 1, 1, 4), torch.tensor([at]))
    check(turned[0, 0, 0], ROPE[f"x1234_pos{at}"][f"{angles}_{layout}"])


def test_the_entries_of_one_position_differ_so_a_wrong_layout_is_seen():
    for at in (1, 2, 3):
        for one, other in itertools.combinations(ROPE[f"x1234_pos{at}"].values(), 2):
            assert (exact(one) - exact(other)).abs().max() > 0.01


def test_a_vector_of_ones_and_zeros_shows_cosines_and_sines():
    x = exact([1, 0, 1, 0]).expand(1, 1, 3, 4)
    check(Rotary([0.5, 0.5], layout=pairs)(x, torch.tensor([1, 2, 3]))[0, 0], ROPE["x1010"])


@pytest.mark.parametrize("angles", ANGLES)
def test_scores_of_turned_vectors(angles):
    rotary, at = Rotary(ANGLES[angles], layout=pairs), torch.tensor([1, 2, 3])
    q, k = (rotary(exact(x).expand(1, 1, 3, 4), at) for x in ([1, 2, 3, 4], [4, 3, 2, 1]))
    golden = ROPE[f"scores_q1234_k4321_{angles}"]
    check((q @ k.mT)[0, 0], golden)
    weights = heedful.attend(q, k, torch.eye(3).double().expand(1, 1, 3, 3), scale=1.0)
    check(weights[0, 0], exact(golden).softmax(-1).tolist())


# Batched attention, by rule instead of by chance.


def grid(*steps, shape, start=0.0):
    """start + Σ step · index, over the axes of a shape."""
    total = torch.full(shape, start, dtype=torch.float64)
    for axis, step in enumerate(steps):
        index = torch.arange(shape[axis], dtype=torch.float64)
        total = total + step * index.view(-1, *[1] * (len(shape) - axis - 1))
    return total


X = grid(1, 2, 3, shape=(2, 3, 4)).sin()
MEMORY = grid(0.3, 1.1, 0.9, shape=(2, 5, 4)).sin()
WEIGHTS = [(grid(p, 0.5, shape=(4, 4)).cos() / 2).tolist() for p in (1.0, 1.3, 0.8, 0.6)]
CASES = {
    "mha_deterministic_self": {"mask": everything},
    "mha_deterministic_causal": {"mask": causal},
    "mha_deterministic_cross_valid_lens_3_2": {"mask": key(lengths=[3, 2]), "reads": "memory"},
}


@KERNELS
@pytest.mark.parametrize("case", CASES)
def test_a_batch_through_a_layer(case, kernel):
    made = layer(*WEIGHTS, heads=2, kernel=kernel, **CASES[case])
    with listen(made) as trace:
        y = made(X, Context.of(X, memory=MEMORY))
    check(trace["weights"], GOLDEN[case]["weights"])
    check(y, GOLDEN[case]["output"])


@KERNELS
@pytest.mark.parametrize("case", CASES)
def test_a_batch_through_attend(case, kernel):
    q, k, v, out = (exact(weight) for weight in WEIGHTS)
    source = MEMORY if "reads" in CASES[case] else X
    q, k, v = ((x @ weight).unflatten(-1, (2, 2)).transpose(1, 2) for x, weight in ((X, q), (source, k), (source, v)))
    y = heedful.attend(q, k, v, mask=CASES[case]["mask"], kernel=kernel)
    check(y.transpose(1, 2).flatten(2) @ out, GOLDEN[case]["output"])


# Small ones.


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("layernorm")])
def test_layer_norm(name):
    check(LayerNorm(4, 1e-5).double()(exact([1, 2, 3, 4])), GOLDEN[name])


@pytest.mark.parametrize(("golden", "activation"), [("gelu_exact", "gelu"), ("gelu_tanh", "gelu_tanh")])
def test_gelu(golden, activation):
    check(ACTIVATIONS[activation](exact([-2, -1, -0.5, 0, 0.5, 1, 2])), GOLDEN[golden])


@KERNELS
def test_softmax(kernel):
    """One query of width 1 scores its keys 1, 2 and 3."""
    q, k, v = exact([[1]]), exact([[1], [2], [3]]), torch.eye(3).double()
    y = heedful.attend(q[None, None], k[None, None], v[None, None], scale=1.0, kernel=kernel)
    check(y[0, 0, 0], GOLDEN["softmax_1_2_3"])


@KERNELS
def test_equal_keys_are_looked_at_equally_up_to_each_length(kernel):
    ones, values = torch.ones(2, 5, 4, 8).double(), torch.eye(4).double().expand(2, 5, 4, 4)
    y = heedful.attend(ones, ones, values, mask=key(lengths=[3, 2]), kernel=kernel)
    golden = exact(GOLDEN["d2l_valid_lens_3_2_uniform"])
    check(y, golden[:, None, None].expand(2, 5, 4, 4).tolist())


@KERNELS
def test_equal_keys_are_looked_at_equally_through_a_layer(kernel):
    made = heedful.Attention(10, 5, mask=key(lengths=[3, 2]), biases=False, kernel=kernel).double()
    with listen(made, only=["weights"]) as trace:
        made(torch.ones(2, 4, 10).double())
    golden = exact(GOLDEN["d2l_valid_lens_3_2_uniform"])
    check(trace["weights"], golden[:, None, None].expand(2, 5, 4, 4).tolist())


# How many parameters the base model's layers have.


def test_parameters_of_the_base_model():
    with torch.device("meta"):
        model = heedful.models.transformer(vocab=10)

    def count(module):
        return sum(parameter.numel() for parameter in module.parameters())

    assert {count(block) for block in model.encoder.layers} == {3_152_384}
    assert count(model.encoder.layers) == 18_914_304
    assert {count(block) for block in model.decoder.layers} == {4_204_032}
    assert len(model.encoder.layers) == len(model.decoder.layers) == 6
