"""The real compiler: one recipe through inductor, trained and decoding; `make test` compiles without code."""

import warnings

import pytest
import torch
import torch.nn.functional as F

from heedful import Fixed, models
from tests.laws.catalog import spread

# Code generation itself warns, by versions and machines.
pytestmark = pytest.mark.filterwarnings("ignore")


def test_training_through_inductor_equals_eager() -> None:
    model = spread(models.gpt(97, 48, 2, 4, 64, dropout=0.0)).train()
    fast = torch.compile(model, fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        ids = torch.randint(0, 97, (3, 33))
        valid = torch.arange(32) < torch.tensor([[32], [20], [7]])
        losses, grads = [], []
        for run in (fast, model):
            model.zero_grad()
            loss = F.cross_entropy(run(ids[:, :-1], valid=valid)[valid], ids[:, 1:][valid])
            loss.backward()
            losses.append(loss.item())
            grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        assert abs(losses[0] - losses[1]) < 1e-5 * losses[1]
        for one, two in zip(*grads, strict=True):
            torch.testing.assert_close(one, two, atol=1e-5 * max(1.0, two.abs().max().item()), rtol=0)


def test_a_step_on_a_fixed_cache_through_inductor_equals_eager() -> None:
    model = spread(models.llama(97, 48, 2, 4, 2, 96)).eval()
    fast = torch.compile(model, fullgraph=True)
    ids = torch.randint(0, 97, (2, 20))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cache = Fixed(32)
        model(ids[:, :6], cache=cache)
        ys = []
        for i in range(6, 20):
            cache.reserve(1)
            ys.append(fast(ids[:, i : i + 1].clone(), cache=cache).clone())
        want = model(ids)[:, 6:]
    torch.testing.assert_close(torch.cat(ys, 1), want, atol=1e-5 * want.abs().max().item(), rtol=0)
