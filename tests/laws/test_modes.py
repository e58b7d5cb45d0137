"""Bar 10: train, eval, no_grad, inference_mode and compiled agree with dropout 0; one graph where shapes stay.

Compiled here with "aot_eager": it traces and differentiates as the real compiler does, and skips code generation.
"""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heedful.attention import Fixed
from heedful.attention.kernel import KERNELS
from heedful.model import EncoderDecoder
from tests.laws import catalog
from tests.laws.test_caches import close, decoders, facts

Batch = dict[str, Tensor]


class Counting:
    """A backend that counts graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        from torch._dynamo.backends.debugging import aot_eager

        self.graphs += 1
        return aot_eager(graph, inputs)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._dynamo.reset()


def built(name: str) -> nn.Module:
    model = catalog.spread(catalog.RECIPES[name]())
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if hasattr(part, "dropout") and isinstance(part.dropout, float):
            part.dropout = 0.0
    return model


def batch(model: nn.Module, n: int = 12, rows: int = 3) -> Batch:
    """New ids, lengths and documents each time, of one shape."""

    def side(prefix: str) -> Batch:
        lengths = torch.randint(2, n, (rows, 1))
        documents = torch.randint(0, 2, (rows, n)).cumsum(-1).clamp(max=1)
        return {f"{prefix}valid": torch.arange(n)[None] < lengths, f"{prefix}document": documents}

    def ids() -> Tensor:
        return torch.randint(0, catalog.VOCAB, (rows, n))

    if isinstance(model, EncoderDecoder):
        return {"source": ids(), "target": ids(), **side("source_"), **side("target_")}
    return {"ids": ids(), **side("")}


@pytest.mark.parametrize("name", catalog.RECIPES)
def test_all_modes_agree(name: str) -> None:
    model = built(name)
    given = batch(model)
    want = model.train()(**given)
    close(model.eval()(**given), want)
    with torch.no_grad():
        close(model(**given), want)
    with torch.inference_mode():
        close(model(**given).clone(), want)


@pytest.mark.parametrize("name", catalog.RECIPES)
def test_compiled_forward_and_backward_are_one_graph_over_five_batches(name: str) -> None:
    model, backend = built(name).train(), Counting()
    fast = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(5):
        given = batch(model)
        outputs, grads = [], []
        for run in (fast, model):
            model.zero_grad()
            y = run(**given)
            y.square().mean().backward()
            outputs.append(y)
            grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        close(*outputs)
        assert len(grads[0]) == len(list(model.parameters()))
        for one, two in zip(*grads, strict=True):
            close(one, two)
    assert backend.graphs == 1


@pytest.mark.parametrize("name", catalog.RECIPES)
def test_five_lengths_and_batches_are_at_most_two_recompilations(name: str) -> None:
    model, backend = built(name).eval(), Counting()
    fast = torch.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        for n, rows in ((12, 3), (5, 3), (7, 4), (9, 2), (20, 5)):
            given = batch(model, n, rows)
            close(fast(**given), model(**given))
    assert backend.graphs <= 3


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_keeps_to_two_recompilations_over_five_lengths(kernel: str) -> None:
    model, backend = catalog.decoder("rotary", kernel=kernel), Counting()
    fast = torch.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        for n in (12, 5, 7, 9, 20):
            given = batch(model, n)
            close(fast(**given), model(**given))
    assert backend.graphs <= 3


@pytest.mark.parametrize(("position", "mask"), decoders()[:: len(catalog.MASKS) + 1] + decoders()[: len(catalog.MASKS)])
def test_every_position_and_mask_compiles_whole(position: str, mask: str) -> None:
    model, backend = catalog.decoder(position, catalog.MASKS[mask]), Counting()
    fast = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(2):
        given = batch(model)
        tables = facts(given["ids"])
        close(fast(**given, tables=tables), model(**given, tables=tables))
    assert backend.graphs == 1


@pytest.mark.parametrize("name", catalog.RECIPES)
def test_every_step_on_a_fixed_cache_is_one_graph(name: str) -> None:
    model, backend = built(name).eval(), Counting()
    fast = torch.compile(model, backend=backend, fullgraph=True)
    encoder = isinstance(model, EncoderDecoder)
    with torch.no_grad():
        for _ in range(2):
            given = batch(model)
            held, same = Fixed(40), Fixed(40)
            for cache in (held, same):
                first = {n: t for n, t in given.items() if "document" not in n}
                model(**first, cache=cache)
            for _ in range(5):
                word = torch.randint(0, catalog.VOCAB, (3, 1))
                step = {"source": None, "target": word} if encoder else {"ids": word}
                held.reserve(1)
                close(fast(**step, cache=held), model(**step, cache=same))
    assert backend.graphs == 1


def test_blocks_compile_one_by_one() -> None:
    """Twelve blocks of one shape share a graph: plans are made before the first of them runs."""
    model = catalog.decoder("rotary", depth=12)
    backend = Counting()
    given = batch(model)
    with torch.no_grad():
        want = model(**given)
        for block in model.layers:
            block.compile(backend=backend, fullgraph=True)
        close(model(**given), want)
    assert backend.graphs <= 2


def test_checkpointed_blocks_have_the_same_gradients() -> None:
    from torch.utils.checkpoint import checkpoint

    model = catalog.decoder("learned", catalog.MASKS["causal window"], depth=3)
    given = batch(model)
    model(**given).square().mean().backward()
    want = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for block in model.layers:
        run = block.forward
        block.forward = lambda x, context, run=run: checkpoint(run, x, context, use_reentrant=False)
    model(**given).square().mean().backward()
    for name, p in model.named_parameters():
        if name in want:
            assert p.grad is not None
            close(p.grad, want[name])
