"""Caches as objects: what they keep, where, and how they count. That they are right is in `tests/laws`."""

import pytest
import torch

from heedful import Fixed, Growing, models
from heedful.attention.cache import Cache

IDS = torch.arange(6)[None].expand(2, -1)


def llama() -> models.llama:  # type: ignore[valid-type]
    return models.llama(11, 8, 2, 2, 1, 16).eval()


def run(model: object, cache: Cache, n: int) -> None:
    with torch.no_grad():
        model(IDS[:, :n], cache=cache)  # type: ignore[operator]


def test_keys_are_kept_once_for_a_group_of_heads() -> None:
    cache = Growing()
    run(llama(), cache, 4)
    (k, v) = next(iter(cache.rooms[0,].own.values()))
    assert k.shape == v.shape == (2, 1, 4, 4)


def test_a_fixed_cache_never_moves() -> None:
    model, cache = llama(), Fixed(16)
    run(model, cache, 4)
    pointers = [t.data_ptr() for room in cache.rooms.values() for kv in room.own.values() for t in kv]
    run(model, cache, 3)
    cache.select(torch.tensor([1, 0]))
    cache.crop(5)
    run(model, cache, 1)
    assert pointers == [t.data_ptr() for room in cache.rooms.values() for kv in room.own.values() for t in kv]


def test_a_memory_is_projected_once() -> None:
    model = models.transformer(11, 8, 2, 2, 16).eval()
    for cache in (Growing(), Fixed(8)):
        with torch.no_grad():
            model(IDS, IDS[:, :1], cache=cache)
            first = {n: dict(room.memory) for n, room in cache.rooms.items()}
            calls: list[int] = []
            hook = model.encoder.register_forward_pre_hook(lambda *a, calls=calls: calls.append(1))
            model(None, IDS[:, 1:2], cache=cache)
            hook.remove()
        assert not calls
        for n, room in cache.rooms.items():
            for layer, (k, v) in room.memory.items():
                assert k is first[n][layer][0]
                assert v is first[n][layer][1]


def test_plain_calls_count_by_themselves_and_compiled_ones_by_reserve() -> None:
    model, cache = llama(), Fixed(6)
    run(model, cache, 4)
    assert cache.reserved == 4
    fast = torch.compile(model, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        cache.reserve(1)
        with torch.no_grad():
            fast(IDS[:, :1], cache=cache)
    assert int(cache.length) == cache.reserved == 6
    with pytest.raises(ValueError, match="6 are taken, 1 more"):
        cache.reserve(1)
    cache.crop(2)
    cache.reserve(4)


def test_nothing_trains_through_a_fixed_cache() -> None:
    with pytest.raises(ValueError, match="no_grad"):
        llama()(IDS, cache=Fixed(8))


def test_gradients_reach_back_through_a_growing_cache() -> None:
    model, cache = llama(), Growing()
    model(IDS[:, :3], cache=cache)
    model(IDS[:, 3:], cache=cache).sum().backward()
    whole = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    model(IDS)[:, 3:].sum().backward()
    for name, p in model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(whole[name], p.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("length", [-1, 5])
def test_crop_only_forgets_what_is_there(length: int) -> None:
    for cache in (Growing(), Fixed(8)):
        run(llama(), cache, 4)
        with pytest.raises(ValueError, match=rf"crop\({length}\): the cache holds 4"):
            cache.crop(length)


def test_a_cache_has_room_for_something() -> None:
    with pytest.raises(ValueError, match="capacity=0"):
        Fixed(0)


def test_an_empty_cache_can_be_cropped_and_selected() -> None:
    for cache in (Growing(), Fixed(8)):
        cache.crop(0)
        cache.select(torch.tensor([0]))
        run(llama(), cache, 2)
