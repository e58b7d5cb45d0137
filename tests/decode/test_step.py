"""The stepper: cached, batched and padded equals each text alone, read anew for every token."""

import random

import pytest
import torch

from heedful import models
from heedful.decode import Stepper, collected, sample
from heedful.model import Decoder, Encoder, EncoderDecoder
from tests.decode.oracles import KINDS, greedy_alone, published, texts, their_beams
from tests.laws import catalog
from tests.models.parity import through_folder

# Of the largest logit, as in the laws.
CLOSE = 1e-5
MARGIN = 1e-4


def random_model(seed):
    """A recipe, or a decoder with any of the positions; every fourth is a translator of each kind."""
    torch.manual_seed(seed)
    names = [*catalog.RECIPES, *(f"decoder {name}" for name in catalog.POSITIONS)]
    name = names[seed % len(names)]
    if name.startswith("decoder "):
        return catalog.decoder(name.removeprefix("decoder "))
    return catalog.spread(catalog.RECIPES[name]()).eval()


def compare_with_no_cache(seed):
    """Greedy by the stepper, all rows at once, and each row alone without a cache: tokens, and logits of each step."""
    model, rng = random_model(seed), random.Random(seed)
    rows = rng.randint(1, 4)
    prompts = texts(rng, rows, 8, catalog.VOCAB)
    sources = texts(rng, rows, 9, catalog.VOCAB) if isinstance(model, EncoderDecoder) else None
    room, ends = [rng.randint(1, 12) for _ in range(rows)], [rng.randrange(catalog.VOCAB) for _ in range(3)]
    stepper = Stepper(model, prompts, sources=sources, room=room)
    heard, tokens = [[] for _ in range(rows)], [[] for _ in range(rows)]
    ended, margin = [False] * rows, 1.0
    rows_left = list(range(rows))
    for _ in range(max(room)):
        best = stepper.logits.argmax(-1)
        two = stepper.logits.topk(2).values
        for place, row in enumerate(rows_left):
            heard[row].append(stepper.logits[place])
            tokens[row].append(int(best[place]))
            margin = min(margin, float((two[place, 0] - two[place, 1]) / stepper.logits[place].abs().max()))
            ended[row] = int(best[place]) in ends or len(tokens[row]) == room[row]
        kept = torch.tensor([place for place, row in enumerate(rows_left) if not ended[row]])
        if len(kept) == 0:
            break
        rows_left = [rows_left[place] for place in kept]
        stepper.select(kept)
        stepper.step(best[kept])
    for row in range(rows):
        source = None if sources is None else sources[row]
        said, logits = greedy_alone(model, prompts[row], source, room[row], ends)
        assert tokens[row] == said
        worst = (torch.stack(heard[row]) - logits).abs().max() / logits.abs().max().clamp(min=1)
        assert worst <= CLOSE
    again = Stepper(model, prompts, sources=sources, room=room)
    assert collected(sample(again, end=ends)) == tokens
    return margin


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_with_a_cache_is_each_text_alone_without_one(seed):
    assert compare_with_no_cache(seed) > 0


@pytest.mark.parametrize("seed", range(12, 18))
def test_greedy_is_that_of_transformers(seed, tmp_path):
    kind, rng = KINDS[seed % 3], random.Random(seed)
    theirs = published(kind, seed)
    ours = through_folder(theirs, tmp_path)
    read = texts(rng, 4, 9)
    prompts, sources = (read, None) if kind != "marian" else ([[1]] * 4, read)
    expected = their_beams(theirs, prompts, sources, beams=1, penalty=1.0, room=20, end=[5])
    said = collected(sample(Stepper(ours, prompts, sources=sources, room=20), end=[5]))
    assert said == [ids for ((ids, _),) in expected]


def gpt(context=10):
    return catalog.spread(models.gpt(catalog.VOCAB, 16, 1, 2, context)).eval()


def translator():
    return catalog.spread(models.transformer(catalog.VOCAB, 16, 1, 2, 24)).eval()


def test_learned_positions_end_the_text():
    """A prompt of 7 in a table of 10 has room for 4: the last token is said and not read."""
    model = gpt()
    stepper = Stepper(model, [[3] * 7, [4] * 10, [5]], room=100)
    assert stepper.room == [4, 1, 10]
    assert [len(said) for said in collected(sample(stepper))] == [4, 1, 10]
    with pytest.raises(ValueError, match="a prompt has 11 tokens, the model's learned positions end after 10"):
        Stepper(model, [[1], [1] * 11], room=1)


def test_the_cache_has_the_room_that_is_needed_and_no_more():
    stepper = Stepper(translator(), [[1], [1, 2, 3]], sources=[[4, 5], [6]], room=[9, 2])
    assert stepper.cache.capacity == 3 + 9 - 1


def test_a_prompt_is_read_once_and_its_last_slot_alone_meets_the_head():
    model, seen = gpt(), []
    model.head.register_forward_hook(lambda head, given, y: seen.append(tuple(y.shape)))
    stepper = Stepper(model, [[1, 2, 3, 4], [5, 6]], room=3)
    stepper.step(torch.tensor([7, 8]))
    assert seen == [(2, 1, catalog.VOCAB), (2, 1, catalog.VOCAB)]
    assert model(torch.tensor([[1, 2, 3]])).shape == (1, 3, catalog.VOCAB), "and the model is as it was"


def test_nothing_is_padded_where_lengths_are_equal():
    """A mask costs; padding that is not there needs none."""
    model, seen = translator(), []
    model.register_forward_pre_hook(lambda m, given, named: seen.append(named), with_kwargs=True)
    for sources, prompts in (([[3, 4], [5, 6]], [[1], [1]]), ([[3, 4], [5]], [[1], [1, 2]])):
        Stepper(model, prompts, sources=sources, room=3)
    assert [named["source_valid"] is None for named in seen] == [True, False]
    assert [named["target_valid"] is None for named in seen] == [True, False]


def test_logits_are_float32_and_need_no_gradient():
    stepper = Stepper(gpt().bfloat16(), [[1, 2]], room=3)
    assert stepper.logits.dtype == torch.float32
    assert not stepper.step(torch.tensor([3])).requires_grad


@pytest.mark.parametrize("rows", [[0, 1, 2], [2, 0, 1], [1, 1, 0], [2], [0, 0, 1, 1, 2, 2]])
def test_selected_rows_go_on_as_each_alone(rows):
    """Also within one source, where the memory is not moved: [4, 5, 5, 2, ...] after rows were doubled."""
    for model, sources in ((gpt(), None), (translator(), [[4, 5, 6], [7], [8, 9]])):
        prompts = [[1, 2, 3], [4], [5, 6]]
        stepper = Stepper(model, prompts, sources=sources, room=5)
        stepper.select(torch.tensor(rows))
        first = torch.tensor([7 + n for n in range(len(rows))])
        stepper.step(first)
        # Each changes places with its likes only, then all are turned around.
        turned = sorted(range(len(rows)), key=lambda n: (rows[n], -n))
        stepper.select(torch.tensor(turned))
        logits = stepper.step(torch.full((len(rows),), 3))
        for place, n in enumerate(turned):
            told = torch.tensor([[*prompts[rows[n]], 7 + n, 3]])
            with torch.no_grad():
                want = model(told) if sources is None else model(torch.tensor([sources[rows[n]]]), told)
            torch.testing.assert_close(logits[place], want[0, -1], atol=CLOSE * float(want.abs().max()), rtol=0)


def test_beams_that_change_places_leave_the_memory_where_it_is():
    model = translator()
    stepper = Stepper(model, [[1], [1]], sources=[[4, 5], [6]], room=5)
    stepper.select(torch.tensor([0, 0, 1, 1]))
    memories = [k for room in stepper.cache.rooms.values() for k, _ in room.memory.values()]
    before = [(k.data_ptr(), k._version) for k in memories]
    stepper.step(torch.tensor([3, 4, 5, 6]))
    stepper.select(torch.tensor([1, 0, 3, 3]))
    after = [k for room in stepper.cache.rooms.values() for k, _ in room.memory.values()]
    assert [(k.data_ptr(), k._version) for k in after] == before
    assert stepper.rows == 4


# --- what it refuses


def test_a_model_in_training_is_refused():
    with pytest.raises(ValueError, match=r"in training mode, where dropout is on: call model.eval\(\)"):
        Stepper(gpt().train(), [[1]], room=1)


def test_who_does_not_write_is_refused():
    encoder = Encoder(gpt().embedding, []).eval()
    with pytest.raises(ValueError, match="a Encoder does not write"):
        Stepper(encoder, [[1]], room=1)
    headless = Decoder(gpt().embedding, []).eval()
    with pytest.raises(ValueError, match="no head"):
        Stepper(headless, [[1]], room=1)


@pytest.mark.parametrize(
    ("prompts", "room", "message"),
    [
        ([], 1, "no prompts"),
        ([[1], []], 1, "prompt 1 is empty"),
        ([[1], [2]], [1], "room is 1 numbers for 2 prompts"),
        ([[1], [2]], 0, "room=0: at least one token"),
        ([[1], [2, 99]], 1, r"id 99 is outside of the vocabulary, 0\.\.22"),
        ([[1], [-2]], 1, "id -2 is outside"),
    ],
)
def test_prompts_that_make_no_sense_are_refused(prompts, room, message):
    with pytest.raises(ValueError, match=message):
        Stepper(gpt(), prompts, room=room)


def test_sources_belong_to_translators():
    with pytest.raises(ValueError, match="give sources"):
        Stepper(translator(), [[1]], room=1)
    with pytest.raises(ValueError, match="reads no source"):
        Stepper(gpt(), [[1]], sources=[[1]], room=1)
    with pytest.raises(ValueError, match="2 prompts and 1 sources"):
        Stepper(translator(), [[1], [1]], sources=[[3]], room=1)
    with pytest.raises(ValueError, match="source 0 is empty"):
        Stepper(translator(), [[1]], sources=[[]], room=1)


def test_a_model_that_says_nan_is_refused():
    model = gpt()
    with torch.no_grad():
        model.head.weight[3] = float("nan")
    with pytest.raises(ValueError, match="NaN"):
        Stepper(model, [[1, 2]], room=1)
    assert len(model.head._forward_pre_hooks) == 0
