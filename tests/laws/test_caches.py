"""Law 3: stepping through a cache equals one full forward; padded, packed and alone give the same outputs."""

import random

import pytest
import torch
from torch import Tensor

from heedful.attention import Fixed, Growing
from heedful.attention.cache import Cache
from heedful.mask import Mask
from heedful.model import Decoder, EncoderDecoder
from tests.laws import catalog

# Weights are spread wide, so logits are around 10: this is 1e-5 and less of the largest.
CLOSE = 1e-5

LENGTHS = (7, 4, 1)
SOURCES = (5, 8, 2)


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, atol=CLOSE * max(1.0, want.abs().max().item()), rtol=0)


def texts(lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> list[Tensor]:
    made = torch.Generator("cpu").manual_seed(seed)
    ids = [torch.randint(0, catalog.VOCAB, (n,), generator=made, device="cpu") for n in lengths]
    return [part.to(torch.get_default_device()) for part in ids]


def facts(ids: Tensor) -> dict[str, Tensor]:
    """The tables that the catalog's masks read: functions of the token, so that any layout can say them."""
    return {"kind": ids % 2, "seen": ids % 5 != 0}


def laid_out(parts: list[Tensor], how: str) -> tuple[Tensor, Tensor]:
    """Texts side by side in one batch, with `valid`; padding is some token, for nothing may depend on it."""
    length = max(len(part) for part in parts) + 3
    ids = torch.full((len(parts), length), 3)
    valid = torch.zeros(len(parts), length, dtype=torch.bool)
    for row, part in enumerate(parts):
        spare = length - len(part)
        start = {"left": spare, "right": 0, "both": spare // 2}[how]
        ids[row, start : start + len(part)] = part
        valid[row, start : start + len(part)] = True
    return ids, valid


def packed(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    ids = torch.cat(parts)[None]
    document = torch.cat([torch.full((len(part),), 10 - n) for n, part in enumerate(parts)])[None]
    return ids, document


def decoders() -> list[tuple[str, str]]:
    return [(position, mask) for position in catalog.POSITIONS for mask in catalog.MASKS]


def cacheable() -> list[tuple[str, str]]:
    return [(position, mask) for position, mask in decoders() if not catalog.MASKS[mask].looks_ahead]


# --- padding and packing


@pytest.mark.parametrize(("position", "mask"), decoders())
def test_padded_and_packed_equal_alone(position: str, mask: str) -> None:
    model = catalog.decoder(position, catalog.MASKS[mask])
    parts = texts()
    with torch.no_grad():
        alone = [model(part[None], tables=facts(part[None]))[0] for part in parts]
        for how in ("left", "right", "both"):
            ids, valid = laid_out(parts, how)
            close(model(ids, valid=valid, tables=facts(ids))[valid], torch.cat(alone))
        ids, document = packed(parts)
        close(model(ids, document=document, tables=facts(ids))[0], torch.cat(alone))
        valid = torch.ones_like(ids, dtype=torch.bool)
        valid[:, -1:] = False
        close(model(ids, document=document, valid=valid, tables=facts(ids))[0, :-1], torch.cat(alone)[:-1])


@pytest.mark.parametrize("name", catalog.RECIPES)
def test_recipes_padded_and_packed_equal_alone(name: str) -> None:
    model = catalog.spread(catalog.RECIPES[name]()).eval()
    targets, sources = texts(), texts(SOURCES, seed=1)
    with torch.no_grad():
        if isinstance(model, EncoderDecoder):
            alone = [model(s[None], t[None])[0] for s, t in zip(sources, targets, strict=True)]
        else:
            alone = [model(t[None])[0] for t in targets]
        for how in ("left", "right", "both"):
            ids, valid = laid_out(targets, how)
            if isinstance(model, EncoderDecoder):
                source, source_valid = laid_out(sources, how)
                y = model(source, ids, source_valid=source_valid, target_valid=valid)
            else:
                y = model(ids, valid=valid)
            close(y[valid], torch.cat(alone))
        ids, document = packed(targets)
        if isinstance(model, EncoderDecoder):
            source, source_document = packed(sources)
            y = model(source, ids, source_document=source_document, target_document=document)
        else:
            y = model(ids, document=document)
        close(y[0], torch.cat(alone))


def test_a_hole_keeps_its_place() -> None:
    """A hole inside a text is looked at by nobody, and the words after it stand where they stood."""
    model = catalog.decoder("rotary")
    ids = texts((6,))[0][None]
    valid = torch.tensor([[True, True, False, True, True, True]])
    without = torch.tensor([[0, 1, 3, 4, 5]])
    with torch.no_grad():
        close(model(ids, valid=valid)[valid], model(ids[valid][None], at=without)[0])


def test_nothing_at_padding_reaches_a_real_token_not_even_nan() -> None:
    for name in catalog.RECIPES:
        model = catalog.spread(catalog.RECIPES[name]()).eval()
        ids, valid = laid_out(texts(), "both")
        tables = [m for m in model.modules() if isinstance(m, torch.nn.Embedding) and m.num_embeddings == catalog.VOCAB]

        def run(model: torch.nn.Module = model, ids: Tensor = ids, valid: Tensor = valid) -> Tensor:
            if isinstance(model, EncoderDecoder):
                return model(ids, ids, source_valid=valid, target_valid=valid)
            return model(ids, valid=valid)

        with torch.no_grad():
            quiet = run()
            for value in (float("nan"), float("inf"), 1e30):
                hooks = [
                    table.register_forward_hook(lambda m, a, y, v=valid, x=value: y.masked_fill(~v[..., None], x))
                    for table in tables
                ]
                assert torch.equal(run()[valid], quiet[valid])
                for hook in hooks:
                    hook.remove()


@pytest.mark.parametrize("name", catalog.RECIPES)
def test_gradients_do_not_depend_on_padding(name: str) -> None:
    model = catalog.spread(catalog.RECIPES[name]()).eval()
    grads = []
    for pad in (3, 8):
        ids, valid = laid_out(texts(), "left")
        ids = ids.masked_fill(~valid, pad)
        model.zero_grad()
        y = (
            model(ids, ids, source_valid=valid, target_valid=valid)
            if isinstance(model, EncoderDecoder)
            else model(ids, valid=valid)
        )
        y[valid].square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for one, two in zip(*grads, strict=True):
        close(one, two)


# --- caches


def stepped(model: Decoder, ids: Tensor, cache: Cache, cuts: list[int], **given: Tensor) -> Tensor:
    """Logits of all slots, read in chunks that end at `cuts`."""
    ys, tables = [], facts(ids)
    for begin, end in zip([0, *cuts], [*cuts, ids.shape[1]], strict=True):
        here = {name: table[:, begin:end] for name, table in given.items()}
        there = {name: table[:, begin:end] for name, table in tables.items()}
        ys.append(model(ids[:, begin:end], cache=cache, tables=there, **here))
    return torch.cat(ys, 1)


@pytest.mark.parametrize("cache", catalog.CACHES)
@pytest.mark.parametrize(("position", "mask"), cacheable())
def test_stepping_equals_one_full_forward(position: str, mask: str, cache: str) -> None:
    model = catalog.decoder(position, catalog.MASKS[mask])
    rng = random.Random(0)
    with torch.no_grad():
        ids = torch.stack(texts((9, 9)))
        full = model(ids, tables=facts(ids))
        for cuts in ([], list(range(1, 9)), [4], sorted(rng.sample(range(1, 9), 3))):
            close(stepped(model, ids, catalog.CACHES[cache](), cuts), full)
        for how in ("left", "right"):
            prompt, valid = laid_out(texts(), how)
            more = torch.stack(texts((4, 4, 4), seed=2))
            ids = torch.cat([prompt, more], 1)
            valid = torch.cat([valid, torch.ones_like(more, dtype=torch.bool)], 1)
            n = prompt.shape[1]
            want = [model(row[v][None], tables=facts(row[v][None]))[0] for row, v in zip(ids, valid, strict=True)]
            for cuts in ([n], [n, n + 1, n + 2, n + 3]):
                held = catalog.CACHES[cache]()
                got = torch.cat(
                    [
                        model(prompt, valid=valid[:, :n], cache=held, tables=facts(prompt)),
                        # The words that follow are all real, and say nothing of `valid`.
                        stepped(model, more, held, [c - n for c in cuts[1:]]),
                    ],
                    1,
                )
                close(got[valid], torch.cat(want))


@pytest.mark.parametrize("cache", catalog.CACHES)
@pytest.mark.parametrize("mask", [m for m in catalog.MASKS if catalog.MASKS[m].looks_ahead])
def test_a_mask_that_looks_ahead_is_refused_with_a_cache(mask: str, cache: str) -> None:
    model = catalog.decoder("none", catalog.MASKS[mask])
    ids = texts((4,))[0][None]
    with pytest.raises(ValueError, match="later"):
        model(ids, cache=catalog.CACHES[cache](), tables=facts(ids))


@pytest.mark.parametrize("cache", catalog.CACHES)
@pytest.mark.parametrize("name", catalog.RECIPES)
def test_recipes_step_as_they_run_whole(name: str, cache: str) -> None:
    model = catalog.spread(catalog.RECIPES[name]()).eval()
    target = torch.stack(texts((9, 9, 9)))
    source, source_valid = laid_out(texts(SOURCES, seed=1), "left")
    with torch.no_grad():
        held = catalog.CACHES[cache]()
        if isinstance(model, EncoderDecoder):
            full = model(source, target, source_valid=source_valid)
            ys = [model(source, target[:, :2], source_valid=source_valid, cache=held)]
            ys += [model(None, target[:, i : i + 1], cache=held) for i in range(2, 9)]
            close(torch.cat(ys, 1), full)
        else:
            close(stepped(model, target, held, [2, 3, 7, 8]), model(target))


@pytest.mark.parametrize("cache", catalog.CACHES)
@pytest.mark.parametrize("name", catalog.RECIPES)
def test_selected_rows_go_on_as_if_they_had_been_alone(name: str, cache: str) -> None:
    """What beams do: rows are dropped, repeated and put in another order, in the middle."""
    model = catalog.spread(catalog.RECIPES[name]()).eval()
    prompt, valid = laid_out(texts(), "left")
    source, source_valid = laid_out(texts(SOURCES, seed=1), "right")
    more = torch.stack(texts((3, 3, 3), seed=2))
    for rows in ([2, 0, 0], [1, 1, 2], [0, 1, 2]):
        with torch.no_grad():
            held = catalog.CACHES[cache]()
            pick = torch.tensor(rows)
            ids = torch.cat([prompt[pick], more], 1)
            real = torch.cat([valid[pick], torch.ones_like(more, dtype=torch.bool)], 1)
            if isinstance(model, EncoderDecoder):
                model(source, prompt, source_valid=source_valid, target_valid=valid, cache=held)
                held.select(pick)
                got = model(None, more, cache=held)
                want = model(source[pick], ids, source_valid=source_valid[pick], target_valid=real)
            else:
                model(prompt, valid=valid, cache=held)
                held.select(pick)
                got = model(more, cache=held)
                want = model(ids, valid=real)
            close(got, want[:, -3:])


@pytest.mark.parametrize("cache", catalog.CACHES)
def test_a_cache_selects_more_rows_than_it_had(cache: str) -> None:
    model = catalog.decoder("learned")
    ids, more = torch.stack(texts((5, 5))), torch.stack(texts((2, 2, 2, 2), seed=2))
    rows = torch.tensor([0, 0, 1, 1])
    with torch.no_grad():
        held = catalog.CACHES[cache]()
        model(ids, cache=held, tables=facts(ids))
        held.select(rows)
        close(model(more, cache=held, tables=facts(more)), model(torch.cat([ids[rows], more], 1))[:, -2:])


@pytest.mark.parametrize("cache", catalog.CACHES)
def test_a_cropped_cache_goes_on_from_there(cache: str) -> None:
    """What checking drafts does: read some words, forget the last of them, read others."""
    model = catalog.decoder("rotary")
    prompt, valid = laid_out(texts((5, 3)), "left")
    wrong, right = torch.stack(texts((4, 4), seed=3)), torch.stack(texts((3, 3), seed=4))
    with torch.no_grad():
        held = catalog.CACHES[cache]()
        model(prompt, valid=valid, cache=held)
        model(wrong, cache=held)
        held.crop(prompt.shape[1] + 1)
        got = model(right, cache=held)
        ids = torch.cat([prompt, wrong[:, :1], right], 1)
        real = torch.cat([valid, torch.ones(2, 4, dtype=torch.bool)], 1)
        close(got, model(ids, valid=real)[:, -3:])


@pytest.mark.parametrize("cache", catalog.CACHES)
def test_packed_documents_step_through_a_cache_when_positions_are_given(cache: str) -> None:
    model = catalog.decoder("rotary")
    ids, document = packed(texts((4, 5)))
    at = torch.cat([torch.arange(4), torch.arange(5)])[None]
    with torch.no_grad():
        got = stepped(model, ids, catalog.CACHES[cache](), [3, 6, 7], document=document, at=at)
        close(got, model(ids, document=document))
        with pytest.raises(ValueError, match="give at"):
            model(ids, document=document, cache=catalog.CACHES[cache]())


@pytest.mark.parametrize("cache", catalog.CACHES)
def test_a_fact_given_once_must_be_given_always(cache: str) -> None:
    model = catalog.decoder("none", catalog.MASKS["causal, same kind"])
    ids = texts((4,))[0][None]
    with torch.no_grad():
        held = catalog.CACHES[cache]()
        model(ids, cache=held, tables=facts(ids))
        with pytest.raises(ValueError, match="kind"):
            model(ids, cache=held)


def test_a_full_cache_says_so_before_it_writes() -> None:
    model = catalog.decoder("rotary")
    ids = torch.stack(texts((9, 9)))
    with torch.no_grad():
        held = Fixed(8)
        model(ids[:, :6], cache=held)
        before = [k.clone() for room in held.rooms.values() for k, _ in room.own.values()]
        with pytest.raises(ValueError, match="room for 8 slots, 6 are taken, 3 more"):
            model(ids[:, 6:], cache=held)
        after = [k for room in held.rooms.values() for k, _ in room.own.values()]
        assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))
        assert int(held.length) == 6
        close(model(ids[:, 6:8], cache=held), model(ids[:, :8])[:, 6:])


def test_a_batch_of_another_size_is_refused() -> None:
    model = catalog.decoder("rotary")
    for held in (Growing(), Fixed(20)):
        with torch.no_grad():
            model(torch.stack(texts((3, 3))), cache=held)
            with pytest.raises(ValueError, match="rows"):
                model(texts((3,))[0][None], cache=held)


def test_shared_blocks_have_a_room_for_each_place() -> None:
    """One block standing three times has three sets of keys and values."""
    model = catalog.decoder("rotary", depth=1)
    model.layers.extend([model.layers[0], model.layers[0]])
    ids = torch.stack(texts((8, 8)))
    with torch.no_grad():
        for build in catalog.CACHES.values():
            close(stepped(model, ids, build(), [3, 4]), model(ids))


# --- causality


@pytest.mark.parametrize(("position", "mask"), cacheable())
def test_the_future_changes_nothing_before_it(position: str, mask: str) -> None:
    model = catalog.decoder(position, catalog.MASKS[mask])
    _check_causal(model, catalog.MASKS[mask])


@pytest.mark.parametrize("name", catalog.RECIPES)
def test_the_future_changes_nothing_before_it_in_recipes(name: str) -> None:
    model = catalog.spread(catalog.RECIPES[name]()).eval()
    if isinstance(model, EncoderDecoder):
        source = texts(SOURCES, seed=1)[0][None]
        model = _Target(model, source)
    _check_causal(model, catalog.MASKS["causal"])


class _Target(torch.nn.Module):
    """A translator with its source held fast: a decoder of the target."""

    def __init__(self, model: EncoderDecoder, source: Tensor) -> None:
        super().__init__()
        self.model, self.source, self.embedding = model, source, model.decoder.embedding

    def forward(self, ids: Tensor, tables: dict[str, Tensor]) -> Tensor:
        return self.model(self.source, ids)


def _check_causal(model: torch.nn.Module, mask: Mask) -> None:
    ids = texts((8,))[0][None]
    tables = facts(ids)
    for j in (1, 4, 7):
        other = ids.clone()
        other[0, j:] = (other[0, j:] + 5) % catalog.VOCAB
        changed = {name: torch.cat([t[:, :j], facts(other)[name][:, j:]], 1) for name, t in tables.items()}
        with torch.no_grad():
            assert torch.equal(model(ids, tables=tables)[:, :j], model(other, tables=changed)[:, :j]), mask
    heard: list[Tensor] = []
    hook = model.embedding.register_forward_hook(lambda m, a, y: heard.append(y.requires_grad_()) or y)  # type: ignore[union-attr]
    y = model(ids, tables=tables)
    hook.remove()
    (grad,) = torch.autograd.grad(y[:, :4].square().sum(), heard[-1])
    assert (grad[:, 4:] == 0).all()
