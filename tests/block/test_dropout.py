"""The five places of dropout: what each changes, when, and by how much."""

import math

import pytest
import torch

import heedful
from heedful.block import Dropouts, FeedForward, Gated
from heedful.models import gpt, llama, transformer
from heedful.trace import listen

PLACES = ("attention", "inner", "branch", "sum", "embedding")
IDS = torch.randint(0, 11, (4, 8), generator=torch.Generator().manual_seed(1))
TARGET = torch.randint(0, 11, (4, 6), generator=torch.Generator().manual_seed(2))


def a_gpt(**dropout):
    torch.manual_seed(0)
    return gpt(vocab=11, width=16, depth=2, heads=2, context=8, dropout=0.0, **dropout)


def a_llama(**dropout):
    torch.manual_seed(0)
    return llama(vocab=11, width=16, depth=2, heads=2, inner=24, dropout=0.0, **dropout)


def a_transformer(**dropout):
    torch.manual_seed(0)
    return transformer(vocab=11, width=16, depth=2, heads=2, inner=24, dropout=0.0, **dropout)


MODELS = {"gpt": (a_gpt, (IDS,)), "llama": (a_llama, (IDS,)), "transformer": (a_transformer, (IDS, TARGET))}
EVERY_MODEL = pytest.mark.parametrize("name", MODELS)
EVERY_PLACE = pytest.mark.parametrize("place", PLACES)


def heard(model, inputs, seed=3):
    torch.manual_seed(seed)
    with torch.no_grad(), listen(model) as trace:
        model(*inputs)
    return trace


# The first value that a place changes, in the order of the computation.
FIRST = {
    "gpt": {
        "embedding": "embedding.sum",
        "attention": "layers.0.attention.heads",
        "branch": "layers.0.attention.branch",
        "sum": "layers.0.feedforward.inner",
        "inner": "layers.0.feedforward.out",
    },
    "llama": {
        "embedding": "embedding.sum",
        "attention": "layers.0.attention.heads",
        "branch": "layers.0.attention.branch",
        "sum": "layers.0.feedforward.inner",
        "inner": "layers.0.feedforward.out",
    },
    "transformer": {
        "embedding": "encoder.embedding.sum",
        "attention": "encoder.layers.0.attention.heads",
        "branch": "encoder.layers.0.attention.branch",
        "sum": "encoder.layers.0.feedforward.inner",
        "inner": "encoder.layers.0.feedforward.out",
    },
}


@EVERY_PLACE
@EVERY_MODEL
def test_a_place_changes_what_comes_after_it_and_nothing_before(name, place):
    build, inputs = MODELS[name]
    model = build(dropout_at={place: 0.5})
    whole, some = heard(model.eval(), inputs), heard(model.train(), inputs)
    assert list(whole) == list(some)
    order = list(whole)
    first = order.index(FIRST[name][place])
    for path in order[:first]:
        assert torch.equal(whole[path], some[path]), f"{path} comes before {place}"
    for path in order[first:]:
        # Half of a decoder reads no source; the next test looks at it.
        if not path.startswith("decoder.") or path == "decoder.logits":
            assert not torch.equal(whole[path], some[path]), f"{path} comes after {place}"


@EVERY_PLACE
def test_the_decoder_of_a_translator_drops_at_the_same_places(place):
    model = a_transformer(dropout_at={place: 0.5})
    model.encoder.eval()
    model.decoder.train()
    some = heard(model, (IDS, TARGET))
    whole = heard(model.eval(), (IDS, TARGET))
    order = [path for path in whole if path.startswith("decoder.")]
    changed = next(path for path in order if not torch.equal(whole[path], some[path]))
    expected = FIRST["transformer"][place].replace("encoder", "decoder")
    # Between self-attention and feed-forward a decoder looks at its memory.
    assert changed == ("decoder.layers.0.cross.q" if place == "sum" else expected)


@EVERY_PLACE
@EVERY_MODEL
def test_nothing_is_dropped_in_use(name, place):
    build, inputs = MODELS[name]
    plain, model = build().eval(), build(dropout_at={place: 0.5}).eval()
    with torch.no_grad():
        assert torch.equal(model(*inputs), plain(*inputs))
        one, two = model.train()(*inputs), model(*inputs)
    assert not torch.equal(one, two), "each call of a training model drops anew"


@EVERY_MODEL
def test_a_chance_of_zero_is_exactly_nothing(name):
    build, inputs = MODELS[name]
    model = build(dropout_at=dict.fromkeys(PLACES, 0.0))
    with torch.no_grad():
        assert torch.equal(model.train()(*inputs), model.eval()(*inputs))


@EVERY_MODEL
def test_a_seed_repeats_what_is_dropped(name):
    build, inputs = MODELS[name]
    model = build(dropout_at=dict.fromkeys(PLACES, 0.3)).train()
    one, two, other = heard(model, inputs, 5), heard(model, inputs, 5), heard(model, inputs, 6)
    assert all(torch.equal(one[path], two[path]) for path in one)
    assert any(not torch.equal(one[path], other[path]) for path in one)


# How much, and of what.


def check_share(whole, part, chance):
    """Entries are 0 with this chance, else larger by 1 / (1 - chance): five standard deviations at most away."""
    gone = part == 0
    torch.testing.assert_close(part[~gone], whole[~gone] / (1 - chance), rtol=1e-5, atol=1e-6)
    count = whole.numel()
    assert abs(gone.double().mean() - chance) < 5 * math.sqrt(chance * (1 - chance) / count)


CHANCES = pytest.mark.parametrize("chance", [0.1, 0.5])


@CHANCES
@pytest.mark.parametrize("kernel", ["reference", "sdpa"])
def test_attention_drops_weights(kernel, chance):
    """With values that are a unit matrix, what comes out is the weights."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(4, 4, 32, 8, generator=generator) for _ in range(2))
    v = torch.eye(32).expand(4, 4, 32, 32)
    torch.manual_seed(1)
    whole = heedful.attend(q, k, v, kernel=kernel)
    check_share(whole, heedful.attend(q, k, v, dropout=chance, kernel=kernel), chance)


@CHANCES
@pytest.mark.parametrize("kind", [FeedForward, Gated])
def test_feed_forward_drops_inner_units(kind, chance):
    torch.manual_seed(0)
    module = kind(16, 64, "silu", dropout=chance).train()
    read = []
    module.down.register_forward_pre_hook(lambda _, args: read.append(args[0]))
    with torch.no_grad(), listen(module) as trace:
        module(torch.randn(8, 32, 16))
    check_share(trace["inner"], read[0], chance)


@CHANCES
@EVERY_MODEL
def test_the_branch_drops_what_it_adds(name, chance):
    build, inputs = MODELS[name]
    trace = heard(build(dropout_at={"branch": chance}).train(), inputs)
    for path in [path for path in trace if path.endswith(".branch")]:
        check_share(trace[path.removesuffix("branch") + "out"], trace[path], chance)


@CHANCES
def test_the_embedding_drops_the_sum_of_token_and_position(chance):
    trace = heard(a_gpt(dropout_at={"embedding": chance}).train(), (IDS,))
    check_share(trace["embedding.tokens"] + trace["embedding.position"], trace["embedding.sum"], chance)


@CHANCES
def test_the_mean_over_many_draws_is_the_whole(chance):
    """To five standard errors: dropping is unbiased."""
    model = a_gpt(dropout_at={"embedding": chance}).train()
    whole = heard(model.eval(), (IDS,))["embedding.sum"]
    model.train()
    draws = torch.stack([heard(model, (IDS,), seed)["embedding.sum"] for seed in range(100)])
    error = (draws.double().mean(0) - whole).abs() / (whole.abs() * math.sqrt(chance / (1 - chance) / 100))
    assert error.max() < 5


# The places by name.


def test_chances_by_place():
    assert Dropouts.at(("branch", "embedding"), 0.1) == Dropouts(0.0, 0.0, 0.1, 0.0, 0.1)
    assert Dropouts.at(("branch",), 0.1, {"inner": 0.3}) == Dropouts(branch=0.1, inner=0.3)
    assert Dropouts.at(("branch",), 0.1, {"branch": 0.0}) == Dropouts()
    assert Dropouts._fields == PLACES


def test_an_unknown_place_names_those_there_are():
    with pytest.raises(
        ValueError, match='no dropout place "residual"; there are attention, inner, branch, sum, embedding'
    ):
        Dropouts.at((), 0.1, {"residual": 0.1})


@pytest.mark.parametrize("chance", [-0.1, 1.0, 2.0, math.nan])
def test_a_chance_is_from_zero_to_below_one(chance):
    with pytest.raises(ValueError, match="a chance is from 0 to below 1"):
        Dropouts.at((), 0.0, {"inner": chance})
    with pytest.raises(ValueError, match="a chance is from 0 to below 1"):
        gpt(vocab=3, width=4, depth=1, heads=1, context=2, dropout=chance)
