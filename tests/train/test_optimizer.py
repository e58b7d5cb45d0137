"""Optimizers: what decays, PyTorch's own as the oracle, clipping by hand, and a state that comes back bit for bit."""

import copy
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import heedful
from heedful import models
from heedful.train.optimizer import OPTIMIZERS, clip, optimizer, optimizer_tensors, restore


def gpt():
    return models.gpt(vocab=23, width=16, depth=2, heads=2, context=12, dropout=0.0)


def transformer():
    return models.transformer(vocab=23, width=16, depth=1, heads=2, inner=32, dropout=0.0)


def loss_of(model, step):
    """Some loss that reaches every parameter, another one at each step."""
    ids = torch.randint(0, 23, (3, 8), generator=torch.Generator().manual_seed(step))
    logits = model(ids) if isinstance(model, heedful.Decoder) else model(ids, ids.flip(1))
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten())


def train(model, learner, steps):
    for step in steps:
        for group in learner.param_groups:
            group["lr"] = 1e-2 / step
        learner.zero_grad()
        loss_of(model, step).backward()
        learner.step()


def same(model, other):
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def names(learner):
    return {group["weight_decay"]: group["param_names"] for group in learner.param_groups}


# What decays.


def test_matrices_and_tables_decay_and_vectors_do_not():
    found = names(optimizer(gpt(), decay=0.1))
    block = [f"{part}.weight" for part in ("query", "key", "value", "out")]
    for layer in range(2):
        for name in block:
            assert f"layers.{layer}.attention.{name}" in found[0.1]
            assert f"layers.{layer}.attention.{name.replace('weight', 'bias')}" in found[0.0]
        assert f"layers.{layer}.attention_norm.weight" in found[0.0]
    assert {"embedding.tokens.weight", "norm.weight"} <= {*found[0.1], *found[0.0]}
    assert all(name.endswith(("bias", "norm.weight")) for name in found[0.0])
    assert not any(name.endswith("bias") or "norm" in name for name in found[0.1])


@pytest.mark.parametrize("build", [gpt, transformer])
def test_a_shared_parameter_is_there_once_under_the_name_of_its_file(build, tmp_path):
    model = build()
    learner = optimizer(model, decay=0.1)
    held = [p for group in learner.param_groups for p in group["params"]]
    assert len(held) == len({id(p) for p in held}) == len(list(model.parameters()))
    heedful.save(model, tmp_path / "model")
    on_disk = load_file(tmp_path / "model" / "model.safetensors")
    assert sorted(name for group in names(learner).values() for name in group) == sorted(on_disk)
    for group in learner.param_groups:
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            assert torch.equal(on_disk[name], parameter)


def test_the_order_is_always_the_same():
    assert names(optimizer(transformer(), decay=0.1)) == names(optimizer(transformer(), decay=0.1))


def test_what_is_frozen_is_left_out():
    model = gpt()
    heedful.select(model, "embedding").freeze()
    held = [name for group in names(optimizer(model, decay=0.1)).values() for name in group]
    assert held
    assert not any(name.startswith("embedding") for name in held)
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing in this model is trained"):
        optimizer(model, decay=0.1)


def test_without_a_rate_nothing_moves():
    """The loop sets it; an optimizer that nobody gave one must not train at some rate of its own."""
    model = gpt()
    before = copy.deepcopy(model)
    loss_of(model, 1).backward()
    optimizer(model, decay=0.1).step()
    assert same(model, before)


# What a step does.


class Numbers(nn.Module):
    def __init__(self, *values):
        super().__init__()
        self.numbers = nn.Parameter(torch.tensor(values, dtype=torch.float64))


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adams_first_step_is_the_rate_whatever_the_gradient(name):
    model = Numbers(0.0, 0.0, 0.0, 0.0)
    learner = optimizer(model, name, decay=0.0)
    learner.param_groups[0]["lr"] = 0.01
    model.numbers.grad = torch.tensor([1e-3, -1e-3, 1e3, -1e3], dtype=torch.float64)
    learner.step()
    expected = torch.tensor([-0.01, 0.01, -0.01, 0.01], dtype=torch.float64)
    torch.testing.assert_close(model.numbers.detach(), expected, rtol=2e-5, atol=0)


def test_the_papers_adam_by_hand():
    """Algorithm 1 of Kingma and Ba 2015, with the settings of section 5.3 of Vaswani et al."""
    model = Numbers(1.0)
    learner = optimizer(model, "adam", decay=0.0)
    x, m, v = 1.0, 0.0, 0.0
    for step in range(1, 21):
        rate, gradient = 0.1 / step, math.sin(step) * x
        m, v = 0.9 * m + 0.1 * gradient, 0.98 * v + 0.02 * gradient**2
        x -= rate * (m / (1 - 0.9**step)) / (math.sqrt(v / (1 - 0.98**step)) + 1e-9)
        learner.param_groups[0]["lr"] = rate
        model.numbers.grad = math.sin(step) * model.numbers.detach().clone()
        learner.step()
    assert model.numbers.item() == pytest.approx(x, rel=1e-9)


ORACLES = {
    "adamw": lambda groups: torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-9, fused=False, foreach=False),
    "adam": lambda groups: torch.optim.Adam(groups, betas=(0.9, 0.98), eps=1e-9, fused=False, foreach=False),
    "sgd": lambda groups: torch.optim.SGD(groups, momentum=0.9, foreach=False),
}


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("build", [gpt, transformer])
def test_twenty_steps_as_pytorchs_plain_loop(build, name):
    """Fused kernels against none. In float64: in float32, Adam makes ±rate of a gradient that is only rounding."""
    model = build().double()
    other = copy.deepcopy(model)
    groups = [
        {"params": [p for p in other.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in other.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    begin = copy.deepcopy(model)
    learner = optimizer(model, name, decay=0.1)
    assert bool(learner.defaults["fused"]) == (name != "sgd")
    train(model, learner, range(1, 21))
    train(other, ORACLES[name](groups), range(1, 21))
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert not same(model, begin)


def test_settings_reach_the_optimizer():
    model = gpt()
    assert optimizer(model, "adamw", decay=0.1, betas=(0.8, 0.95), epsilon=1e-6).defaults["betas"] == (0.8, 0.95)
    assert optimizer(model, "adamw", decay=0.1, epsilon=1e-6).defaults["eps"] == 1e-6
    assert optimizer(model, "sgd", decay=0.1, momentum=0.5).defaults["momentum"] == 0.5
    assert optimizer(model, "adam", decay=0.0).defaults["betas"] == (0.9, 0.98)
    assert optimizer(model, "adam", decay=0.0).defaults["eps"] == 1e-9


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"name": "adamv"}, 'no optimizer "adamv"; there are adamw, adam, sgd; did you mean "adam'),
        ({"name": "lion"}, 'no optimizer "lion"; there are adamw, adam, sgd$'),
        ({"decay": -0.1}, "decay=-0.1: 0 for none"),
        ({"decay": math.nan}, "decay=nan"),
        ({"betas": (0.9, 1.0)}, r"betas=\(0.9, 1.0\): two numbers from 0 to below 1"),
        ({"epsilon": -1.0}, "epsilon=-1.0: a small number"),
        ({"name": "sgd", "momentum": 1.0}, "momentum=1.0: a number from 0 to below 1"),
        ({"name": "sgd", "epsilon": 1e-8}, "epsilon=1e-08: sgd has none; it has momentum"),
        ({"momentum": 0.9}, "momentum=0.9: adamw has none; it has betas, epsilon"),
    ],
)
def test_what_is_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        optimizer(gpt(), **{"decay": 0.1, **settings})


# Clipping.


def with_gradients():
    model = transformer()
    (1000 * loss_of(model, 1)).backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    return model, gradients, math.sqrt(sum(g.double().square().sum().item() for g in gradients))


def test_clipping_scales_all_gradients_to_the_limit():
    model, gradients, norm = with_gradients()
    assert norm > 2.5
    assert clip(model, 2.5).item() == pytest.approx(norm, rel=1e-5)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient * (2.5 / norm), rtol=1e-4, atol=1e-9)
    assert clip(model, None).item() == pytest.approx(2.5, rel=1e-4)


@pytest.mark.parametrize("limit", [None, 100.0])
def test_gradients_below_the_limit_stay_as_they_are(limit):
    model, gradients, norm = with_gradients()
    limit = None if limit is None else limit * norm
    assert clip(model, limit).item() == pytest.approx(norm, rel=1e-5)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))


def test_clipping_says_what_is_not_finite():
    model, _, _ = with_gradients()
    next(model.parameters()).grad[0] = math.nan
    assert math.isnan(clip(model, None))
    assert math.isnan(clip(model, 1.0))


def test_clipping_without_gradients_and_without_a_sensible_limit():
    assert clip(gpt(), None).item() == 0
    assert clip(gpt(), 1.0).item() == 0
    for limit in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"limit={limit}"):
            clip(gpt(), limit)


# What is remembered.


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("build", [gpt, transformer])
@pytest.mark.parametrize("before", [0, 1, 6])
def test_a_stopped_run_goes_on_bit_for_bit(build, name, before, tmp_path):
    whole = build()
    stopped = copy.deepcopy(whole)
    train(whole, optimizer(whole, name, decay=0.1), range(1, 11))

    learner = optimizer(stopped, name, decay=0.1)
    train(stopped, learner, range(1, before + 1))
    save_file(optimizer_tensors(stopped, learner), tmp_path / "optimizer.safetensors")
    resumed = build()
    resumed.load_state_dict(stopped.state_dict())
    fresh = optimizer(resumed, name, decay=0.1)
    restore(resumed, fresh, load_file(tmp_path / "optimizer.safetensors"))
    train(resumed, fresh, range(before + 1, 11))

    assert same(resumed, whole)
    assert not same(resumed, build())


def test_names_of_what_is_remembered():
    model = gpt()
    learner = optimizer(model, decay=0.1)
    train(model, learner, range(1, 4))
    found = optimizer_tensors(model, learner)
    weight = "layers.0.attention.query.weight"
    assert found[f"step/{weight}"].item() == 3
    assert found[f"exp_avg/{weight}"].shape == found[f"exp_avg_sq/{weight}"].shape == (16, 16)
    assert len(found) == 3 * len(list(model.parameters()))
    plain = optimizer(model, "sgd", decay=0.1, momentum=0.0)
    train(model, plain, range(1, 3))
    assert optimizer_tensors(model, plain) == {}
    restore(model, plain, {})


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_that_had_no_gradient_yet(name):
    """It is kept as what it begins with, and its first gradient may come after the run went on."""

    def build():
        return nn.ModuleDict({"early": nn.Linear(3, 2), "late": nn.Linear(3, 2)})

    def step(model, learner, parts):
        for group in learner.param_groups:
            group["lr"] = 0.1
        learner.zero_grad()
        sum(model[part](torch.ones(1, 3)).square().sum() for part in parts).backward()
        learner.step()

    model = build()
    resumed = copy.deepcopy(model)
    learner = optimizer(model, name, decay=0.1)
    step(model, learner, ["early"])
    kept = {key: tensor.clone() for key, tensor in optimizer_tensors(model, learner).items()}
    assert all(kept[key].eq(0).all() for key in kept if "late" in key)
    resumed.load_state_dict(model.state_dict())
    fresh = optimizer(resumed, name, decay=0.1)
    restore(resumed, fresh, kept)
    for parts in (["early"], ["early", "late"], ["late"]):
        step(model, learner, parts)
        step(resumed, fresh, parts)
    assert same(model, resumed)


def test_what_is_restored_is_a_copy():
    model = gpt()
    learner = optimizer(model, decay=0.1)
    given = optimizer_tensors(model, learner)
    restore(model, learner, given)
    train(model, learner, range(1, 3))
    assert all(tensor.eq(0).all() for tensor in given.values())


def test_a_state_that_does_not_fit_changes_nothing():
    model = gpt()
    learner = optimizer(model, decay=0.1)
    train(model, learner, range(1, 3))
    good = {key: tensor.clone() for key, tensor in optimizer_tensors(model, learner).items()}
    key = "exp_avg/layers.0.attention.query.weight"
    wrong = {
        rf"{key} is missing": {k: t for k, t in good.items() if k != key},
        r"exp_avg/other is of no parameter here": {**good, "exp_avg/other": torch.zeros(2)},
        rf"{key} is float32 \(16, 16\) here, float32 \(16, 8\) there": {**good, key: torch.zeros(16, 8)},
        rf"{key} is float32 \(16, 16\) here, bfloat16 \(16, 16\) there": {**good, key: good[key].bfloat16()},
        r"is missing\n[\s\S]*  and 98 more": {},
    }
    for says, tensors in wrong.items():
        with pytest.raises(ValueError, match=says):
            restore(model, learner, tensors)
    now = optimizer_tensors(model, learner)
    assert now.keys() == good.keys()
    assert all(torch.equal(now[key], good[key]) for key in good)


def test_an_optimizer_of_another_model():
    model = gpt()
    learner = optimizer(gpt(), decay=0.1)
    with pytest.raises(ValueError, match="and they are not the same, such as embedding"):
        optimizer_tensors(model, learner)
    with pytest.raises(ValueError, match="make the optimizer after the model is built, moved and frozen"):
        restore(model, learner, {})
    own = optimizer(model, decay=0.1)
    heedful.select(model, "embedding").freeze()
    with pytest.raises(ValueError, match="holds 36 parameters, the model trains 34"):
        optimizer_tensors(model, own)
