"""Position codes that are added or stand beside, against float64 written out."""

import math

import numpy as np
import pytest
import torch

from heedful.position import Learned, Sinusoidal, add, concatenate, halved, interleaved


def by_hand(positions, width, base=10000.0):
    """sin in even columns, cos in odd ones, column by column."""
    table = np.zeros((len(positions), width))
    for row, p in enumerate(positions):
        for column in range(width):
            angle = p / base ** (2 * (column // 2) / width)
            table[row, column] = math.sin(angle) if column % 2 == 0 else math.cos(angle)
    return table


POSITIONS = [0, 1, 2, 3, 17, 4999, 100_000, -4]


@pytest.mark.parametrize("base", [10000.0, 100.0])
@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 33, 64])
def test_interleaved_codes_follow_the_formula(width, base):
    code = Sinusoidal(width, base=base)(torch.tensor(POSITIONS))
    assert code.dtype == torch.float64
    np.testing.assert_allclose(code.numpy(), by_hand(POSITIONS, width, base), atol=1e-10, rtol=0)
    near = [n for n, p in enumerate(POSITIONS) if abs(p) < 5000]
    np.testing.assert_allclose(code.numpy()[near], by_hand(POSITIONS, width, base)[near], atol=2e-12, rtol=0)


@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 64])
def test_halved_codes_are_all_sines_and_then_all_cosines(width):
    code = Sinusoidal(width, layout=halved)(torch.tensor([0, 1, 5])).numpy()
    sines = (width + 1) // 2
    whole = by_hand([0, 1, 5], 2 * sines, base=10000.0 ** (2 * sines / width))
    np.testing.assert_allclose(code[:, :sines], whole[:, 0::2], atol=1e-14, rtol=0)
    np.testing.assert_allclose(code[:, sines:], whole[:, 1::2][:, : width - sines], atol=1e-14, rtol=0)


def test_both_layouts_hold_the_same_columns():
    at = torch.arange(9)
    one, two = Sinusoidal(8)(at), Sinusoidal(8, layout=halved)(at)
    assert torch.equal(one[:, [0, 2, 4, 6, 1, 3, 5, 7]], two)


def test_layouts_by_hand():
    sin, cos = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])
    assert interleaved(sin, cos).tolist() == [[1, 3, 2, 4]]
    assert halved(sin, cos).tolist() == [[1, 2, 3, 4]]


def test_codes_have_the_shape_of_their_positions():
    for shape in [(5,), (1, 5), (3, 5), (0,), (3, 0)]:
        at = torch.zeros(shape, dtype=torch.int64)
        assert Sinusoidal(6)(at).shape == (*shape, 6)
        assert Learned(9, 6)(at).shape == (*shape, 6)


def test_the_product_of_two_codes_depends_on_their_distance_alone():
    code = Sinusoidal(32)(torch.arange(50))
    products = code @ code.T
    for distance in (0, 1, 7, 30):
        line = products.diagonal(distance)
        torch.testing.assert_close(line, line[:1].expand_as(line), atol=1e-12, rtol=0)


def test_a_shift_is_a_rotation_of_every_pair():
    code, shift = Sinusoidal(16), 5
    here, there = code(torch.arange(40)), code(torch.arange(40) + shift)
    angles = shift * code.angles.frequencies
    turned_sin = here[:, 0::2] * angles.cos() + here[:, 1::2] * angles.sin()
    turned_cos = here[:, 1::2] * angles.cos() - here[:, 0::2] * angles.sin()
    torch.testing.assert_close(interleaved(turned_sin, turned_cos), there, atol=1e-13, rtol=0)


@pytest.mark.parametrize("cast", [torch.nn.Module.bfloat16, torch.nn.Module.half, torch.nn.Module.float])
def test_codes_of_a_small_model_far_out_are_as_good_as_their_dtype(cast):
    """Only the last rounding is small: 4e-3 is one step of bfloat16 below 1."""
    code = cast(Sinusoidal(64))
    at = torch.tensor([100_000])
    assert np.abs(code(at).numpy() - by_hand([100_000], 64)).max() < 1e-10
    x = torch.zeros(1, 1, 64, dtype=torch.bfloat16)
    joined = add(x, code(at))
    assert joined.dtype == torch.bfloat16
    assert np.abs(joined[0].double().numpy() - by_hand([100_000], 64)).max() <= 4e-3


def test_learned_codes_are_rows_of_a_table():
    code = Learned(7, 4)
    at = torch.tensor([[6, 0, 3], [1, 1, 2]])
    assert torch.equal(code(at), code.table.weight[at])
    code(at).sum().backward()
    assert code.table.weight.grad[:, 0].tolist() == [1, 2, 1, 1, 0, 0, 1]


def test_gradients_of_learned_codes():
    code = Learned(4, 3).double()

    def read(table):
        return torch.func.functional_call(code, {"table.weight": table}, torch.tensor([[0, 3, 3], [1, 0, 2]]))

    assert torch.autograd.gradcheck(read, code.table.weight.detach().requires_grad_())


def test_beyond_the_table_there_is_no_code():
    code = Learned(5, 2)
    assert code(torch.tensor([[0, 4]])).shape == (1, 2, 2)
    advice = r"the table of learned positions is 0\.\.4: shorten the text, or use a longer table"
    # Packed texts: six slots, and no position beyond the third.
    assert code(torch.tensor([[0, 1, 2, 0, 1, 2]])).shape == (1, 6, 2)
    with pytest.raises(ValueError, match=f"position 5, but {advice}"):
        code(torch.tensor([[0, 5]]))
    with pytest.raises(ValueError, match=f"position -1, but {advice}"):
        code(torch.tensor([[0, -1]]))
    with pytest.raises(ValueError, match="position 9, but"):
        code(torch.tensor([[-1, 9]]))


def test_a_model_says_so_when_its_text_is_longer_than_its_table():
    from heedful.models import gpt

    model = gpt(vocab=11, width=8, depth=1, heads=2, context=6).eval()
    assert model(torch.zeros(1, 6, dtype=torch.int64)).shape == (1, 6, 11)
    with pytest.raises(ValueError, match=r"7 positions, but the table of learned positions is 0\.\.5"):
        model(torch.zeros(1, 7, dtype=torch.int64))


def test_added_adds():
    x, code = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)), Sinusoidal(4)(torch.arange(3))
    y = add(x, code)
    assert y.dtype == x.dtype
    assert torch.equal(y, x + code.float())
    assert torch.equal(add(x, code[None]), y)


def test_concatenated_stands_beside():
    x, code = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)), Sinusoidal(5)(torch.arange(3))
    for codes in (code, code[None], code.expand(2, 3, 5)):
        y = concatenate(x, codes)
        assert y.shape == (2, 3, 9)
        assert y.dtype == x.dtype
        assert torch.equal(y[..., :4], x)
        assert torch.equal(y[..., 4:], code.float().expand(2, 3, 5))
    rows = Sinusoidal(5)(torch.tensor([[0, 1, 2], [5, 6, 7]]))
    assert torch.equal(concatenate(x, rows)[1, :, 4:], rows[1].float())


@pytest.mark.parametrize("join", [add, concatenate])
def test_gradients_of_joining(join):
    x = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    code = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.autograd.gradcheck(join, (x, code))


def test_codes_survive_building_without_storage():
    with torch.device("meta"):
        code = Sinusoidal(8)
    code.to_empty(device="cpu")
    np.testing.assert_allclose(code(torch.arange(4)).numpy(), by_hand(range(4), 8), atol=1e-14, rtol=0)
    assert Sinusoidal(8).state_dict() == {}
