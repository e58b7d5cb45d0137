"""Frequencies and angles, against float64 written out."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from heedful.position import geometric
from heedful.position.frequency import Angles


@pytest.mark.parametrize("base", [10000.0, 500000.0, 2.0, 0.5])
@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 64, 129])
def test_frequencies_are_powers_of_the_base(width, base):
    """One for each pair of columns; an odd width has half a pair at its end."""
    found = geometric(width, base)
    expected = np.power(base, -np.arange(0, width, 2, dtype=np.float64) / width)
    assert len(found) == math.ceil(width / 2)
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=0)


def test_the_first_pair_turns_by_one_radian_a_position():
    assert geometric(8) == pytest.approx([1, 1e-1, 1e-2, 1e-3], rel=1e-14)
    assert geometric(512)[0] == 1


@pytest.mark.parametrize("width", [0, -2])
def test_no_columns_have_no_frequency(width):
    with pytest.raises(ValueError, match=f"width={width}"):
        geometric(width)


@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 5), (2, 3, 5), (0,), (3, 0)])
def test_an_angle_is_position_times_frequency(shape):
    at = torch.arange(math.prod(shape)).reshape(shape) * 1000 - 3
    found = Angles([1.0, 0.25, 3e-7])(at)
    assert found.dtype == torch.float64
    np.testing.assert_array_equal(found.numpy(), at.numpy()[..., None] * np.array([1.0, 0.25, 3e-7]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16])
def test_any_integers_are_positions(dtype):
    assert Angles([0.5])(torch.tensor([0, 1, 300], dtype=dtype)).flatten().tolist() == [0, 0.5, 150]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.angles, self.linear = Angles(geometric(6)), nn.Linear(2, 2)


CASTS = {
    "bfloat16": lambda model: model.to(torch.bfloat16),
    "half": lambda model: model.half(),
    "float": lambda model: model.float(),
    "there and back": lambda model: model.half().double(),
    "cpu": lambda model: model.to("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)
def test_frequencies_do_not_follow_the_dtype_of_their_model(cast):
    model = cast(Model())
    assert model.angles.frequencies.dtype == torch.float64
    assert model.angles.frequencies.tolist() == geometric(6)


def test_frequencies_have_their_values_even_where_a_model_is_built_without_storage():
    with torch.device("meta"):
        model = Model()
    assert model.linear.weight.is_meta
    assert model.to_empty(device="cpu").angles.frequencies.tolist() == geometric(6)
    later = Model().to("meta").to_empty(device="cpu")
    assert later.angles.frequencies.tolist() == geometric(6)


def test_frequencies_are_no_weights():
    model = Model()
    assert set(model.state_dict()) == {"linear.weight", "linear.bias"}
    assert list(model.angles.parameters()) == []
    assert "angles.frequencies" in dict(model.named_buffers())
