"""A call that fails leaves its cache where it was, and a branch of a cache is a cache of its own."""

import copy

import pytest
import torch
from torch import Tensor, nn

from heedful import Fixed, Growing
from heedful.attention.cache import Cache
from heedful.model import EncoderDecoder
from tests.laws import catalog
from tests.laws.test_caches import close, texts


def built(name: str) -> nn.Module:
    return catalog.spread(catalog.RECIPES[name]()).eval()


def read(model: nn.Module, ids: Tensor, cache: Cache, *, first: bool) -> Tensor:
    with torch.no_grad():
        if isinstance(model, EncoderDecoder):
            return model(ids[:, :3] if first else None, ids, cache=cache)
        return model(ids, cache=cache)


@pytest.mark.parametrize("cache", catalog.CACHES)
@pytest.mark.parametrize("name", catalog.RECIPES)
@pytest.mark.parametrize("when", ["first", "later"])
def test_after_a_call_that_failed_the_next_is_right(name: str, cache: str, when: str) -> None:
    """It fails at its embedding, and in its last block."""
    model = built(name)
    prompt, more = torch.stack(texts((5, 5))), torch.stack(texts((3, 3), seed=1))
    good = catalog.CACHES[cache]()
    read(model, prompt, good, first=True)
    want = read(model, more, good, first=False)

    last = (model.decoder if isinstance(model, EncoderDecoder) else model).layers[-1]  # type: ignore[index, union-attr]
    held = catalog.CACHES[cache]()
    if when == "later":
        read(model, prompt, held, first=True)
    for _ in range(2):
        with pytest.raises(ValueError, match="vocabulary"):
            read(model, more + catalog.VOCAB, held, first=when == "first")
        hook = last.register_forward_hook(_fail)  # type: ignore[union-attr]
        with pytest.raises(RuntimeError, match="in the middle"):
            read(model, more, held, first=when == "first")
        hook.remove()
    if when == "first":
        read(model, prompt, held, first=True)
    close(read(model, more, held, first=False), want)


def _fail(*given: object) -> None:
    raise RuntimeError("in the middle")


@pytest.mark.parametrize("cache", catalog.CACHES)
@pytest.mark.parametrize("name", catalog.RECIPES)
def test_a_copied_cache_is_a_branch_that_goes_its_own_way(name: str, cache: str) -> None:
    model = built(name)
    prompt, one, two = (
        torch.stack(texts((5, 5))),
        torch.stack(texts((2, 2), seed=1)),
        torch.stack(texts((2, 2), seed=2)),
    )
    wants = []
    for more in (one, two):
        alone = catalog.CACHES[cache]()
        read(model, prompt, alone, first=True)
        wants.append(read(model, more, alone, first=False))
    trunk = catalog.CACHES[cache]()
    read(model, prompt, trunk, first=True)
    branch = copy.deepcopy(trunk)
    assert torch.equal(read(model, one, branch, first=False), wants[0])
    assert torch.equal(read(model, two, trunk, first=False), wants[1])


def test_a_cache_serves_one_model() -> None:
    for name in ("gpt", "llama"):
        for cache in (Growing(), Fixed(20)):
            model = built(name)
            ids = torch.stack(texts((4, 4)))
            read(model, ids, cache, first=True)
            with pytest.raises(ValueError, match="another model"):
                read(copy.deepcopy(model), ids, cache, first=False)


def test_a_context_serves_one_forward_of_a_cache() -> None:
    model, ids = built("llama"), torch.stack(texts((4, 4)))
    for cache in (Growing(), Fixed(20)):
        with torch.no_grad():
            context = model.plan(ids, cache=cache)  # type: ignore[operator]
            model(ids, context=context)
            with pytest.raises(ValueError, match="used before"):
                model(ids, context=context)
            old, new = (model.plan(ids, cache=cache) for _ in range(2))  # type: ignore[operator]
            with pytest.raises(ValueError, match="another was planned"):
                model(ids, context=old)
            model(ids, context=new)


def test_without_a_cache_a_context_serves_as_often_as_one_likes() -> None:
    model, ids = built("gpt"), torch.stack(texts((4, 4)))
    context = model.plan(ids)  # type: ignore[operator]
    assert torch.equal(model(ids, context=context), model(ids, context=context))
    with pytest.raises(ValueError, match="a context holds all facts"):
        model(ids, context=context, valid=torch.ones(2, 4, dtype=torch.bool))


def test_a_source_is_given_once() -> None:
    model, ids = built("transformer"), torch.stack(texts((4, 4)))
    for cache in (Growing(), Fixed(20)):
        with torch.no_grad():
            model(ids, ids, cache=cache)
            with pytest.raises(ValueError, match="holds a source already"):
                model(ids, ids, cache=cache)


@pytest.mark.parametrize("cache", catalog.CACHES)
def test_a_fact_keeps_its_kind(cache: str) -> None:
    """Labels as bytes first and as long integers later would be cut off."""
    model = catalog.decoder("none", catalog.MASKS["causal, same kind"])
    ids = torch.stack(texts((3, 3)))
    held = catalog.CACHES[cache]()
    with torch.no_grad():
        model(ids, tables={"kind": ids.to(torch.uint8)}, cache=held)
        with pytest.raises(ValueError, match=r'"kind" is torch\.int64'):
            model(ids, tables={"kind": ids + 256}, cache=held)


def test_rows_are_selected_by_a_mask_too() -> None:
    model, ids = built("llama"), torch.stack(texts((4, 4, 4)))
    for build in catalog.CACHES.values():
        outcomes = []
        for rows in (torch.tensor([0, 2]), torch.tensor([True, False, True])):
            cache = build()
            read(model, ids, cache, first=True)
            cache.select(rows)
            outcomes.append(read(model, ids[:2], cache, first=False))
        assert torch.equal(*outcomes)


def test_what_a_listener_heard_of_a_fixed_cache_stays() -> None:
    from heedful import listen

    model, ids = built("gpt"), torch.stack(texts((4, 4)))
    cache = Fixed(8)
    with torch.no_grad(), listen(model, only=["layers.0.attention.k"]) as trace:
        model(ids[:, :2], cache=cache)
        first = trace["layers.0.attention.k"].clone()
        model(ids[:, 2:], cache=cache)
    assert torch.equal(trace.all("layers.0.attention.k")[0], first)


@pytest.mark.parametrize("cache", catalog.CACHES)
def test_a_failed_first_call_may_be_followed_by_a_smaller_batch(cache: str) -> None:
    """What one does when memory runs out."""
    model, ids = built("llama"), torch.stack(texts((4, 4)))
    held = catalog.CACHES[cache]()
    hook = model.layers[-1].register_forward_hook(_fail)  # type: ignore[index, union-attr]
    with pytest.raises(RuntimeError, match="in the middle"):
        read(model, ids, held, first=True)
    hook.remove()
    held.select(torch.tensor([0, 1]))
    with torch.no_grad():
        close(read(model, ids[:1], held, first=True), model(ids[:1]))


@pytest.mark.parametrize("cache", catalog.CACHES)
def test_a_plan_is_stale_once_its_cache_was_changed(cache: str) -> None:
    model, ids = built("llama"), torch.stack(texts((8, 8)))
    for change in (lambda c: c.crop(3), lambda c: c.select(torch.tensor([1, 0]))):
        held = catalog.CACHES[cache]()
        read(model, ids[:, :5], held, first=True)
        context = model.plan(ids[:, 5:], cache=held)  # type: ignore[operator]
        change(held)
        with pytest.raises(ValueError, match="plan the call again"):
            model(ids[:, 5:], context=context)


def test_a_context_serves_the_batch_it_was_planned_for() -> None:
    model, ids = built("gpt"), torch.stack(texts((4, 4)))
    with pytest.raises(ValueError, match=r"ids have shape \(2, 4\), the context was planned for \(2, 1\)"):
        model(ids, context=model.plan(ids[:, :1]))  # type: ignore[operator]


@pytest.mark.parametrize("cache", catalog.CACHES)
def test_one_layer_twice_in_one_block_is_refused_with_a_cache(cache: str) -> None:
    """Its second keys would take the place of the first; in blocks of their own they have rooms of their own."""
    model, ids = catalog.decoder("rotary", depth=1), torch.stack(texts((4, 4)))
    block = model.layers[0]
    block.add_module("again", block.attention)
    with torch.no_grad():
        model(ids)
        with pytest.raises(ValueError, match="called twice in one block"):
            model(ids, cache=catalog.CACHES[cache]())


@pytest.mark.parametrize("cache", catalog.CACHES)
def test_stacks_inside_of_stacks_have_rooms_of_their_own(cache: str) -> None:
    from heedful.block import Layers

    model, ids = catalog.decoder("rotary", depth=2), torch.stack(texts((6, 6)))
    inner = Layers([*model.layers])
    model.layers = Layers([inner, inner])
    with torch.no_grad():
        held = catalog.CACHES[cache]()
        got = torch.cat([model(ids[:, :4], cache=held), model(ids[:, 4:], cache=held)], 1)
        close(got, model(ids))


def test_a_model_copied_together_with_its_cache_shares_nothing() -> None:
    model, ids = built("llama"), torch.stack(texts((4, 4)))
    cache = Growing()
    read(model, ids, cache, first=True)
    both = copy.deepcopy({"cache": cache, "model": model})
    mine = {id(p) for p in model.parameters()}
    assert not any(id(p) in mine for p in both["model"].parameters())


def test_a_branch_of_a_growing_cache_carries_gradients() -> None:
    model, ids = built("llama"), torch.stack(texts((4, 4)))
    cache = Growing()
    model(ids[:, :2], cache=cache)
    grads = []
    for held in (copy.deepcopy(cache), cache):
        model.zero_grad()
        model(ids[:, 2:], cache=held).square().sum().backward(retain_graph=True)
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for one, two in zip(*grads, strict=True):
        close(one, two)


def test_reserving_for_a_step_that_turns_out_plain_counts_once() -> None:
    model, ids = built("llama"), torch.stack(texts((6, 6)))
    cache = Fixed(6)
    read(model, ids[:, :3], cache, first=True)
    for i in range(3, 6):
        cache.reserve(1)
        read(model, ids[:, i : i + 1], cache, first=False)
    assert cache.reserved == 6
    with pytest.raises(ValueError, match="6 are taken"):
        cache.reserve(1)


def test_what_a_failed_call_wrote_stays_unseen_however_one_crops() -> None:
    model, ids = built("llama"), torch.stack(texts((6, 6)))
    cache = Fixed(12)
    read(model, ids[:, :3], cache, first=True)
    hook = model.layers[-1].register_forward_hook(_fail)  # type: ignore[index, union-attr]
    with pytest.raises(RuntimeError, match="in the middle"):
        read(model, ids[:, 3:], cache, first=False)
    hook.remove()
    cache.reserve(4)
    with pytest.raises(ValueError, match=r"crop\(5\): the cache holds 3"):
        cache.crop(5)


def test_selecting_rows_leaves_the_callers_tables_alone() -> None:
    model, ids = built("transformer"), torch.stack(texts((4, 4)))
    for build in catalog.CACHES.values():
        cache, valid = build(), torch.tensor([[True, True, True, False], [True, True, False, False]])
        with torch.no_grad():
            model(ids, ids, source_valid=valid, cache=cache)
        cache.select(torch.tensor([1, 0]))
        assert valid.sum(-1).tolist() == [3, 2]


def test_facts_of_a_source_that_is_held_are_refused() -> None:
    model, ids = built("marian"), torch.stack(texts((4, 4)))
    cache = Growing()
    with torch.no_grad():
        model(ids, ids, cache=cache)
        for name in ("source_valid", "source_document", "source_at"):
            with pytest.raises(ValueError, match="holds a source already"):
                model(None, ids, cache=cache, **{name: torch.ones(2, 4).bool()})
        context = model.plan(ids, ids)  # type: ignore[operator]
        with pytest.raises(ValueError, match="give both, or neither"):
            model(None, ids, context=context)


def test_padding_may_have_one_label_on_both_sides() -> None:
    model = catalog.decoder("rotary")
    ids = texts((8,))[0][None]
    document = torch.tensor([[0, 1, 1, 1, 2, 2, 2, 0]])
    y = model(ids, document=document, valid=document > 0)
    close(y[:, 1:4], model(ids[:, 1:4]))
