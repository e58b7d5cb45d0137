"""`select`: find parts by path or class, then replace, wrap or freeze them."""

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from heedful import Attention, Embedding, Encoder, listen, load, models, recipe, save, select
from heedful.block import Block, FeedForward
from heedful.mask import causal, window
from heedful.trace import Around

IDS = torch.arange(6)[None]


def gpt() -> models.gpt:  # type: ignore[valid-type]
    return models.gpt(vocab=11, width=8, depth=3, heads=2, context=16).eval()


def test_parts_are_found_by_path_glob_and_class() -> None:
    model = gpt()
    assert [path for path, _ in select(model, "layers.*.attention")] == [f"layers.{n}.attention" for n in range(3)]
    assert len(select(model, Attention)) == 3
    assert [path for path, _ in select(model, "layers.1.attention.query")] == ["layers.1.attention.query"]
    # Through the wrapper: what stands at `attention` is the attention.
    assert all(isinstance(part, Attention) for _, part in select(model, "layers.*.attention"))


def test_nothing_found_is_an_error_that_lists_paths() -> None:
    with pytest.raises(ValueError, match=r'nothing in this model is "layer.\*.attn"; its paths begin: embedding'):
        select(gpt(), "layer.*.attn")


def test_replaced_parts_compute_from_then_on() -> None:
    model = gpt()

    class Silent(nn.Module):
        def forward(self, x: Tensor, context: object) -> Tensor:
            return torch.zeros_like(x)

    select(model, "layers.*.feedforward").replace(lambda old: Silent())
    with listen(model) as trace:
        model(IDS)
    for n in range(3):
        assert torch.equal(trace[f"layers.{n}.feedforward.sum"], trace[f"layers.{n}.attention.sum"])
    assert not any(isinstance(part, FeedForward) for part in model.modules())


def test_a_wrapped_part_is_still_there_and_paths_see_through() -> None:
    model = gpt()
    before = model(IDS)

    class Doubled(Around):
        def __init__(self, branch: nn.Module) -> None:
            super().__init__()
            self.branch = branch

        def forward(self, x: Tensor, context: object) -> Tensor:
            return 2 * self.branch(x, context)

    select(model, "layers.0.attention").wrap(Doubled)
    with listen(model) as trace:
        after = model(IDS)
    assert "layers.0.attention.weights" in trace
    assert torch.equal(trace["layers.0.attention.branch"], 2 * trace["layers.0.attention.out"])
    assert not torch.equal(before, after)


def test_a_shared_part_is_replaced_in_all_its_places_by_one() -> None:
    model = gpt()
    model.layers[1] = model.layers[0]
    select(model, "layers.0").replace(lambda old: Same())
    assert isinstance(model.layers[0], Same)
    assert model.layers[1] is model.layers[0]


class Same(nn.Module):
    def forward(self, x: Tensor, context: object) -> Tensor:
        return x


def test_frozen_parts_have_no_gradient() -> None:
    model = gpt()
    select(model, Attention).freeze()
    model(IDS).sum().backward()
    grads = {name: p.grad is not None for name, p in model.named_parameters()}
    assert not any(has for name, has in grads.items() if "attention.branch" in name)
    assert all(has for name, has in grads.items() if "feedforward" in name)


def test_a_kernel_is_swapped_on_a_built_model() -> None:
    model = gpt()
    before = model(IDS)
    for _, layer in select(model, Attention):
        layer.kernel = "reference"  # type: ignore[assignment]
    torch.testing.assert_close(model(IDS), before, atol=1e-6, rtol=0)


def test_a_changed_model_says_why_it_cannot_be_saved(tmp_path: object) -> None:
    model = gpt()
    select(model, "layers.*.feedforward").replace(lambda old: Same())
    with pytest.raises(
        ValueError,
        match=r'"layers.0.feedforward" is not what gpt builds: class is .tests.test_surgery.Same. here, .heedful',
    ):
        save(model, f"{tmp_path}/model")


def _shorter_sight(model: models.gpt) -> None:  # type: ignore[valid-type]
    for _, layer in select(model, Attention):
        layer.mask = causal & window(2)  # type: ignore[assignment]


def _untied(model: models.gpt) -> None:  # type: ignore[valid-type]
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())


def _one_layer_less(model: models.gpt) -> None:  # type: ignore[valid-type]
    del model.layers[-1]


def _another_scale(model: models.gpt) -> None:  # type: ignore[valid-type]
    model.embedding.scale = 3.0


@pytest.mark.parametrize("change", [_shorter_sight, _untied, _one_layer_less, _another_scale])
def test_a_model_changed_by_hand_is_not_saved_as_what_it_is_no_more(change: object, tmp_path: object) -> None:
    model = gpt()
    change(model)  # type: ignore[operator]
    with pytest.raises(ValueError, match="is not what gpt builds"):
        save(model, f"{tmp_path}/model")


def test_parts_of_a_part_are_seen_too(tmp_path: object) -> None:
    model = models.transformer(11, 8, 1, 2, 16)
    select(model.encoder, "layers.*.feedforward").replace(lambda old: Same())
    with pytest.raises(ValueError, match=r"encoder.layers.0.feedforward"):
        save(model, f"{tmp_path}/model")


def test_what_passes_does_not_stand_in_the_way_of_saving(tmp_path: object) -> None:
    """Dropout switched off, a kernel swapped, parts frozen: the folder is the same model's."""
    model = gpt()
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    for _, layer in select(model, Attention):
        layer.kernel, layer.dropout = "reference", 0.0  # type: ignore[assignment]
    select(model, "layers.*.feedforward").freeze()
    save(model, f"{tmp_path}/model")
    torch.testing.assert_close(load(f"{tmp_path}/model")(IDS), model(IDS), atol=1e-6, rtol=0)


def test_a_class_of_the_same_name_is_another_class(tmp_path: object) -> None:
    model = models.llama(11, 8, 1, 2, 2, 16)

    class RMSNorm(nn.Identity):
        pass

    RMSNorm.__qualname__ = "RMSNorm"
    select(model, nn.RMSNorm).replace(lambda old: RMSNorm())
    with pytest.raises(ValueError, match="is not what llama builds: class is"):
        save(model, f"{tmp_path}/model")


def test_the_order_of_branches_counts(tmp_path: object) -> None:
    model = gpt()
    branches = model.layers[0]._modules
    branches["attention"] = branches.pop("attention")
    with pytest.raises(ValueError, match="is not what gpt builds"):
        save(model, f"{tmp_path}/model")


@recipe
def scaled(width: int = 8, sizes: object = (1, 2)) -> Encoder:
    """A recipe of one's own: a wrapper with a parameter, a table that no file holds, a lambda inside."""

    class Scaled(Around):
        def __init__(self, branch: nn.Module) -> None:
            super().__init__()
            self.branch, self.gain = branch, nn.Parameter(torch.full((width,), float(len(str(sizes)))))
            self.register_buffer("slope", torch.arange(width) / 10, persistent=False)

        def forward(self, x: Tensor, context: object) -> Tensor:
            return self.branch(x, context) * self.gain + self.slope

    words = Embedding(nn.Embedding(11, width), join=lambda x, code: x)
    return Encoder(words, [Block(attention=Scaled(Attention(width, 2)))])


def test_a_recipe_of_ones_own_comes_back_whole(tmp_path: object) -> None:
    model = scaled(sizes=[1, 2]).eval()
    with torch.no_grad():
        model.layers[0].attention.gain.add_(1)  # type: ignore[union-attr, operator]
    save(model, f"{tmp_path}/model")
    again = load(f"{tmp_path}/model", recipe=scaled)
    assert torch.equal(again(IDS), model(IDS))
    with safe_open(f"{tmp_path}/model/model.safetensors", "pt") as file:
        assert "layers.0.attention_gain" in file.keys()  # noqa: SIM118


def test_a_compiled_model_is_not_taken_for_another(tmp_path: object) -> None:
    with pytest.raises(ValueError, match="_orig_mod"):
        save(torch.compile(gpt(), backend="aot_eager"), f"{tmp_path}/model")  # type: ignore[arg-type]
