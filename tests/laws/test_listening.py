"""Law 5: listening changes nothing; answering with the same tensor changes nothing; what is shown is what was used."""

import pytest
import torch
from torch import Tensor, nn

from heedful import listen
from heedful.attention.kernel import per_head
from heedful.model import EncoderDecoder
from tests.laws import catalog
from tests.laws.test_caches import decoders, facts, laid_out, texts

Call = tuple[nn.Module, tuple[Tensor, ...], dict[str, object]]


def call(name: str) -> Call:
    """A model and what to call it with: a recipe, or "position; mask" of the catalog."""
    ids, valid = laid_out(texts(), "left")
    if name not in catalog.RECIPES:
        position, mask = name.split("; ")
        return catalog.decoder(position, catalog.MASKS[mask]), (ids,), {"valid": valid, "tables": facts(ids)}
    model = catalog.spread(catalog.RECIPES[name]()).eval()
    if isinstance(model, EncoderDecoder):
        return model, (ids, ids), {"source_valid": valid, "target_valid": valid}
    return model, (ids,), {"valid": valid}


NAMES = [f"{position}; {mask}" for position, mask in decoders()] + list(catalog.RECIPES)


@pytest.mark.parametrize("name", NAMES)
def test_listening_and_answering_the_same_leave_outputs_bit_equal(name: str) -> None:
    model, args, given = call(name)
    alone = model(*args, **given)
    with listen(model) as trace:
        heard = model(*args, **given)
    assert torch.equal(heard, alone)
    assert len(trace.values) > 20
    with listen(model, only=[], answer={"**": lambda x: x}):
        assert torch.equal(model(*args, **given), alone)
    assert torch.equal(model(*args, **given), alone)


@pytest.mark.parametrize("name", NAMES)
def test_shown_weights_are_the_weights_used(name: str) -> None:
    model, args, given = call(name)
    with torch.no_grad(), listen(model) as trace:
        model(*args, **given)
    for path in [path for path in trace if path.endswith(".weights")]:
        place = path.removesuffix("weights")
        weights, v, heads = (trace[place + what] for what in ("weights", "v", "heads"))
        sums = weights.sum(-1)
        assert (((sums - 1).abs() < 1e-5) | (sums == 0)).all()
        torch.testing.assert_close(weights @ per_head(v, heads), heads, atol=1e-5, rtol=1e-5)
        # Padding is looked at by nobody.
        valid = given.get("valid", given.get("source_valid"))
        assert isinstance(valid, Tensor)
        assert (weights.masked_select(~valid[:, None, None, :]) == 0).all()


@pytest.mark.parametrize("name", catalog.RECIPES)
def test_an_answer_carries_gradients_and_what_is_only_heard_does_not(name: str) -> None:
    model, args, given = call(name)
    path = next(p for p in _heard(model, args, given) if p.endswith(".weights"))
    with listen(model, only=[path]) as trace:
        model(*args, **given)
    assert not trace[path].requires_grad
    answered: list[Tensor] = []

    def answer(w: Tensor) -> Tensor:
        answered.append(w.clone())
        return answered[-1]

    alone = model(*args, **given)
    with listen(model, only=[], answer={path: answer}):
        y = model(*args, **given)
    torch.testing.assert_close(y, alone, atol=1e-4, rtol=1e-4)
    (grad,) = torch.autograd.grad(y.square().sum(), answered[0])
    assert grad.abs().max() > 0


def _heard(model: nn.Module, args: tuple[Tensor, ...], given: dict[str, object]) -> list[str]:
    with listen(model) as trace:
        model(*args, **given)
    return list(trace)


def test_silencing_a_head_by_answer_equals_silencing_its_output_matrix() -> None:
    model, args, given = call("gpt")
    keep = torch.tensor([0.0, 1.0]).view(1, 2, 1, 1)
    with torch.no_grad():
        with listen(model, only=[], answer={"layers.1.attention.weights": lambda w: w * keep}):
            answered = model(*args, **given)
        out = model.layers[1].attention.branch.out.weight  # type: ignore[index, union-attr]
        out[:, : catalog.HEAD] = 0  # type: ignore[index, operator]
        valid = given["valid"]
        assert isinstance(valid, Tensor)
        torch.testing.assert_close(answered[valid], model(*args, **given)[valid], atol=2e-5, rtol=1e-5)


def test_a_compiled_model_is_heard_too() -> None:
    model, args, given = call("llama")
    fast = torch.compile(model, backend="aot_eager", fullgraph=True)
    fast(*args, **given)
    with listen(model, only=["weights"]) as trace:
        heard = fast(*args, **given)
    assert list(trace) == ["layers.0.attention.weights", "layers.1.attention.weights"]
    assert torch.equal(heard, model(*args, **given))
    assert fast(*args, **given).shape == heard.shape
