"""What every recipe keeps: it names itself, says its settings, turns all dropout off, and has stable names."""

import inspect
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import heedful
from heedful.models import RECIPES
from tests.models.parity import named

# The smallest of each; a new recipe needs a line here and one in state_dict_names.json.
TINY = {
    "gpt": {"vocab": 11, "width": 6, "depth": 2, "heads": 2, "context": 8},
    "llama": {"vocab": 11, "width": 8, "depth": 2, "heads": 2, "inner": 5},
    "transformer": {"vocab": 11, "width": 6, "depth": 1, "heads": 2, "inner": 5, "decoder_depth": 2},
    "marian": {"vocab": 11, "width": 6, "depth": 1, "heads": 2, "inner": 5, "decoder_depth": 2},
}
EVERY = pytest.mark.parametrize("name", RECIPES)
NAMES = Path(__file__).with_name("state_dict_names.json")


def tiny(name, **more):
    torch.manual_seed(0)
    return RECIPES[name](**TINY[name], **more)


def logits(model):
    ids, others = torch.arange(10).view(2, 5), torch.arange(8).view(2, 4)
    return model(ids, others) if isinstance(model, heedful.EncoderDecoder) else model(ids)


def test_every_recipe_is_tested_here():
    assert sorted(TINY) == sorted(RECIPES)


@EVERY
def test_the_model_carries_its_recipe_with_every_default_resolved(name):
    model = tiny(name, dropout=0.25)
    built, arguments = model.recipe
    assert built == name
    signature = inspect.signature(RECIPES[name]).parameters
    assert list(arguments) == list(signature)
    expected = {key: p.default for key, p in signature.items()} | TINY[name] | {"dropout": 0.25}
    assert arguments == expected


def test_arguments_given_by_place_are_carried_by_name():
    by_place = heedful.models.gpt(11, 6, 2, 2, context=8)
    assert by_place.recipe == tiny("gpt").recipe


@EVERY
def test_arguments_are_plain_json(name):
    arguments = tiny(name, dropout_at={"inner": 0.5}).recipe[1]
    assert json.loads(json.dumps(arguments)) == arguments


@EVERY
def test_the_recipe_builds_the_same_model_again(name):
    model = tiny(name)
    again = RECIPES[name](**json.loads(json.dumps(model.recipe[1])))
    again.load_state_dict(model.state_dict())
    assert torch.equal(logits(model.eval()), logits(again.eval()))


@EVERY
def test_every_recipe_takes_dropout(name):
    assert "dropout" in inspect.signature(RECIPES[name]).parameters
    model = tiny(name, dropout=0.5).train()
    with torch.no_grad():
        assert not torch.equal(logits(model), logits(model))
        assert torch.equal(logits(model.eval()), logits(model))


@EVERY
def test_dropout_of_zero_alone_turns_every_dropout_off(name):
    model = tiny(name, dropout=0)
    with torch.no_grad():
        assert torch.equal(logits(model.train()), logits(model.eval()))
    for path, part in heedful.trace.paths(model):
        assert getattr(part, "p", 0) == 0, path
        assert not isinstance(part, heedful.Attention) or part.dropout == 0, path


@EVERY
@pytest.mark.parametrize("place", ["attention", "inner", "branch", "sum", "embedding"])
def test_each_place_of_dropout_is_settable_alone(name, place):
    model = tiny(name, dropout=0, dropout_at={place: 0.5}).train()
    with torch.no_grad():
        assert not torch.equal(logits(model), logits(model))


@EVERY
def test_a_dropout_that_is_none_is_refused_by_name(name):
    with pytest.raises(ValueError, match=r'no dropout place "heads"; there are attention, inner'):
        tiny(name, dropout_at={"heads": 0.1})
    with pytest.raises(ValueError, match=r"=1\.5: a chance is from 0 to below 1"):
        tiny(name, dropout=1.5)


@EVERY
def test_names_in_a_state_dict_are_those_that_were_pinned(name):
    """Other names would not read what was saved before. If they must change, say so where folders are versioned."""
    pinned = json.loads(NAMES.read_text())[name]
    model = tiny(name)
    assert list(model.state_dict()) == pinned["state_dict"]
    assert list(named(model)) == pinned["folder"]


@EVERY
def test_no_tensor_of_a_model_is_on_the_meta_device_or_without_gradient(name):
    model = tiny(name)
    assert all(p.device.type == "cpu" and p.requires_grad for p in model.parameters())
    logits(model.train()).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@heedful.recipe
def shared(vocab=11, width=6, depth=3, *, note=None):
    """A recipe of one's own: one block, used in every layer."""
    words = nn.Embedding(vocab, width)
    attention = heedful.block.pre(heedful.Attention(width, 2, mask=heedful.mask.causal), nn.LayerNorm(width))
    block = heedful.block.Block(attention=attention)
    return heedful.Decoder(heedful.Embedding(words), [block] * depth, head=heedful.head.vocabulary(words))


def test_a_recipe_of_ones_own_is_not_among_heedfuls():
    assert "shared" not in RECIPES
    assert shared().recipe == ("shared", {"vocab": 11, "width": 6, "depth": 3, "note": None})
    assert shared.__doc__.startswith("A recipe of one's own")


def test_a_recipe_of_ones_own_comes_back_from_its_folder(tmp_path):
    torch.manual_seed(0)
    model = shared(depth=4, note=["any", {"plain": 1.5}])
    heedful.save(model, tmp_path / "mine")
    again = heedful.load(tmp_path / "mine", recipe=shared)
    assert again.recipe == model.recipe
    assert len({id(block) for block in again.layers}) == 1
    assert torch.equal(logits(model.eval()), logits(again))


def test_a_folder_of_ones_own_recipe_says_what_it_needs(tmp_path):
    heedful.save(shared(), tmp_path / "mine")
    with pytest.raises(ValueError, match=r'no recipe "shared" here; there are gpt.*load\(folder, recipe=\.\.\.\)'):
        heedful.load(tmp_path / "mine")


def test_a_folder_and_a_recipe_that_do_not_belong_together_are_refused(tmp_path):
    heedful.save(shared(), tmp_path / "mine")
    with pytest.raises(ValueError, match=r"mine: config.json does not fit its recipe"):
        heedful.load(tmp_path / "mine", recipe=heedful.models.llama)
    with pytest.raises(ValueError, match=r"the weights do not fit the model:\n  missing "):
        heedful.load(tmp_path / "mine", recipe=lambda vocab, width, depth, note: tiny("gpt"))


def test_arguments_that_are_not_plain_are_refused_when_saved(tmp_path):
    with pytest.raises(ValueError, match=r"the arguments of shared must be plain values .*function"):
        heedful.save(shared(note=print), tmp_path / "mine")
    assert not list(tmp_path.iterdir())
