"""Packed weights multiply as plain ones do, are seen through by paths, and stay out of the way of training."""

import pytest
import torch
from torch import nn

import heedful
from heedful.decode import Stepper, collected, sample
from heedful.decode.pack import LARGE, Packed, pack
from tests.laws.catalog import RECIPES, VOCAB, spread

needed = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="PyTorch here is built without oneDNN, so nothing is packed"
)


@needed
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize(("dtype", "bar"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
def test_a_packed_linear_is_the_linear(rows, biases, dtype, bar):
    linear = nn.Linear(48, 80, bias=biases, dtype=dtype)
    x = torch.randn(rows, 1, 48, dtype=dtype)
    with torch.no_grad():
        want = nn.functional.linear(x.double(), linear.weight.double(), None if not biases else linear.bias.double())
        got = Packed(linear)(x)
    assert got.dtype == dtype
    assert got.shape == (rows, 1, 80)
    assert (got.double() - want).abs().max() <= bar * want.abs().max()


@needed
@pytest.mark.parametrize("name", RECIPES)
def test_a_packed_model_says_the_same_tokens(name):
    model = spread(RECIPES[name]()).eval()
    prompts = torch.randint(3, VOCAB, (3, 4)).tolist()
    sources = prompts if isinstance(model, heedful.EncoderDecoder) else None

    def written():
        return collected(sample(Stepper(model, prompts, sources=sources, room=12)))

    plain = written()
    assert pack(model) is model
    assert any(isinstance(part, Packed) for part in model.modules())
    assert written() == plain


@needed
def test_gradients_and_other_precisions_take_the_plain_layout():
    linear = nn.Linear(8, 8)
    packed = Packed(linear)
    x = torch.randn(2, 8)
    packed(x).sum().backward()
    assert linear.weight.grad is not None
    linear.weight.data.zero_()
    with torch.no_grad():
        assert packed(x.double().float()).abs().max() > 0  # as it was when it was packed
        with torch.autocast("cpu", torch.bfloat16):
            assert (packed(x.bfloat16()) - linear(x.bfloat16())).abs().max() == 0


@needed
def test_one_row_in_float32_is_packed_only_where_the_matrix_is_large(monkeypatch):
    linear = nn.Linear(64, 64)
    packed = Packed(linear)
    linear.weight.data.zero_()  # so that the two layouts say different things
    with torch.no_grad():
        assert (packed(torch.ones(1, 64)) == linear(torch.ones(1, 64))).all()
        assert not (packed(torch.ones(2, 64)) == linear(torch.ones(2, 64))).all()
    assert Packed(nn.Linear(1, LARGE)).always
    assert Packed(nn.Linear(8, 8, dtype=torch.bfloat16)).always


@needed
def test_paths_see_through():
    model = pack(RECIPES["gpt"]().eval())
    with heedful.listen(model, only=["weights"]) as trace, torch.no_grad():
        model(torch.randint(0, VOCAB, (1, 5)))
    assert list(trace) == ["layers.0.attention.weights", "layers.1.attention.weights"]


def test_what_cannot_be_packed_stays_as_it_is():
    model = pack(RECIPES["gpt"]().double())
    assert not any(isinstance(part, Packed) for part in model.modules())


@needed
def test_a_packed_model_is_not_saved(tmp_path):
    """What the folder would say is another model."""
    with pytest.raises(ValueError, match="is not what gpt builds"):
        heedful.save(pack(RECIPES["gpt"]()), tmp_path / "model")
