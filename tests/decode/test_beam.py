"""Beam search: theirs on random models, every text there is, and by hand."""

import math
import random

import pytest
import torch

from heedful import models
from heedful.decode import Hypothesis, Stepper, beam, collected, sample
from tests.decode.oracles import (
    END,
    KINDS,
    VOCAB,
    Scripted,
    drawn_batch,
    every_text,
    published,
    recomputed,
    texts,
    their_beams,
)
from tests.laws.catalog import spread
from tests.models.parity import through_folder

SCORE = 1e-4
PENALTIES = (-1.0, 0.0, 0.6, 1.0, 2.0)


def a_word_it_says(model, prompts, sources, room):
    """A word that is somewhere in the middle of what the model says: as an end, it comes, but not at once."""
    said = collected(sample(Stepper(model, prompts, sources=sources, room=room)))
    return max(range(3, VOCAB), key=lambda i: sum(i in text[3:] and i not in text[:3] for text in said))


def compare_with_theirs(seed, folder, ends=1):
    """One random model of theirs, some penalty and number of beams: (texts that end before their room does, texts)."""
    rng = random.Random(seed)
    kind, penalty, beams, room = KINDS[seed % 3], rng.choice(PENALTIES), rng.randint(1, 5), 14
    theirs = published(kind, seed)
    ours = through_folder(theirs, folder)
    prompts, sources = drawn_batch(kind, seed)
    end = [a_word_it_says(ours, prompts, sources, room), *range(3, 2 + ends)]
    end = list(dict.fromkeys(end))
    expected = their_beams(theirs, prompts, sources, beams=beams, penalty=penalty, room=room, end=end)
    found = beam(Stepper(ours, prompts, sources=sources, room=room), beams=beams, penalty=penalty, end=end)
    ended = 0
    for row, (mine, their_row) in enumerate(zip(found, expected, strict=True)):
        assert [one.ids for one in mine] == [ids for ids, _ in their_row]
        for one, (ids, score) in zip(mine, their_row, strict=True):
            source = None if sources is None else sources[row]
            assert one.score == pytest.approx(recomputed(ours, prompts[row], source, ids, penalty), abs=SCORE)
            assert score is None or one.score == pytest.approx(score, abs=SCORE)
            assert sum(i in end for i in ids) == (ids[-1] in end), "at most one end, and nothing after it"
            ended += ids[-1] in end
    return ended, sum(len(row) for row in found)


@pytest.mark.parametrize("seed", range(12))
def test_beams_are_those_of_transformers(seed, tmp_path):
    compare_with_theirs(seed, tmp_path)


@pytest.mark.parametrize("seed", [1, 14, 19])
def test_several_ends_are_those_of_transformers(seed, tmp_path):
    ended, _ = compare_with_theirs(seed, tmp_path, ends=3)
    assert ended > 0


# --- every text there is


def tiny(kind, seed, vocab):
    torch.manual_seed(seed)
    if kind == "transformer":
        return spread(models.transformer(vocab, 12, 1, 2, 16)).eval()
    return spread(models.gpt(vocab, 12, 1, 2, 16)).eval()


@pytest.mark.parametrize("kind", ["transformer", "gpt"])
@pytest.mark.parametrize(("vocab", "room"), [(3, 5), (4, 4), (5, 3)])
def test_beams_as_wide_as_the_space_find_every_text(kind, vocab, room):
    model = tiny(kind, vocab, vocab)
    source, prompt = ([1, 2, 0], [1]) if kind == "transformer" else (None, [1, 2])
    sources = None if source is None else [source]
    totals = every_text(model, prompt, source, vocab, room, end=0)
    for penalty in PENALTIES:
        scores = {ids: total / len(ids) ** penalty for ids, total in totals.items()}
        ranked = sorted(scores, key=lambda ids: -scores[ids])
        # As many as there are texts: all of them come, best first. As many as ever go on: the best of them come,
        # and the search stops as soon as nothing can be better.
        for beams in (vocab**room, vocab ** (room - 1)):
            (found,) = beam(Stepper(model, [prompt], sources=sources, room=room), beams=beams, penalty=penalty, end=[0])
            assert [one.score for one in found] == pytest.approx([scores[ids] for ids in ranked[:beams]], abs=SCORE)
            assert len({tuple(one.ids) for one in found}) == len(found)
            for one in found:
                assert one.score == pytest.approx(scores[tuple(one.ids)], abs=SCORE)
                assert one.ids.count(0) == (one.ids[-1] == 0)


def test_the_penalty_decides_between_short_and_long():
    model = tiny("gpt", 3, 3)
    lengths = []
    for penalty in (-1.0, 2.0):
        (found,) = beam(Stepper(model, [[1]], room=6), beams=200, penalty=penalty, end=[0])
        lengths.append(len(found[0].ids))
    assert lengths[0] < lengths[1]


# --- by hand


def by_hand(room=(3,)):
    """Tokens 0 (the end), 1, 2. Greedy says 1 first, and is misled."""
    after = {(): (0.1, 0.5, 0.4), (1,): (0.25, 0.4, 0.35), (2,): (0.9, 0.05, 0.05)}
    return Scripted(lambda row, ids: torch.tensor(after.get(ids, (0.4, 0.3, 0.3))).log(), room)


def test_by_hand():
    (found,) = beam(by_hand(), beams=2, penalty=0.0, end=[0])
    assert found[0].ids == [2, 0]
    assert found[0].score == pytest.approx(math.log(0.4 * 0.9))
    # 1 and its end, 0.5 · 0.25, came third behind 2 and its end, and 1 1: so it was not finished.
    assert found[1].ids == [1, 1, 0]
    assert found[1].score == pytest.approx(math.log(0.5 * 0.4 * 0.4))
    ((only,),) = beam(by_hand(), beams=1, penalty=0.0, end=[0])
    assert only.ids == [1, 1, 0], "greedy takes 1, and 0 where it is likeliest"
    assert only.score == pytest.approx(math.log(0.5 * 0.4 * 0.4))
    ((only,),) = beam(by_hand(), beams=1, penalty=2.0, end=[0])
    assert only.score == pytest.approx(math.log(0.5 * 0.4 * 0.4) / 9), "the end counts in the length"


def test_an_end_counts_only_among_the_best():
    """At first the end is third of three. Two beams are better, so it is not finished; of three it is one."""
    for beams, is_there in ((2, False), (3, True)):
        (found,) = beam(by_hand(), beams=beams, penalty=-1.0, end=[0])
        assert ([0] in [one.ids for one in found]) == is_there


def test_where_the_room_ends_texts_are_finished_as_they_are():
    (found,) = beam(by_hand((1,)), beams=3, end=[0])
    assert [one.ids for one in found] == [[1], [2], [0]]
    assert [one.score for one in found] == pytest.approx([math.log(p) for p in (0.5, 0.4, 0.1)])


def test_what_never_comes_leaves_the_others_their_probability():
    (found,) = beam(by_hand((1,)), beams=3, end=[0], never=[1])
    assert [one.ids for one in found] == [[2], [0]]
    assert found[0].score == pytest.approx(math.log(0.4))


def test_more_beams_than_words():
    (found,) = beam(by_hand((2,)), beams=50, end=[0])
    assert len(found) == 1 + 2 * 3


def test_rows_that_are_done_leave():
    """The first row says its end at once, beyond doubt; only the second is stepped on."""
    sure = torch.tensor([0.0, -50.0, -60.0])
    rows = []

    def script(row, ids):
        if len(ids) > 0:
            rows.append(row)
        return sure if row == 0 else torch.tensor([-9.0, 0.5, 0.1])

    found = beam(Scripted(script, [5, 5]), beams=1, end=[0])
    assert [len(row[0].ids) for row in found] == [1, 5]
    assert set(rows) == {1}


@pytest.mark.parametrize("seed", range(300))
def test_it_always_ends(seed):
    """Random rooms, ends and logits, some of them -inf: no row is left without a text, none is too long."""
    rng = random.Random(seed)
    vocab, rows = rng.randint(2, 6), rng.randint(1, 3)
    room = [rng.randint(1, 7) for _ in range(rows)]
    ends = rng.sample(range(vocab), rng.randint(0, min(3, vocab)))
    never = [rng.randrange(vocab)] if vocab > 2 and rng.random() < 0.3 else []
    made = torch.Generator().manual_seed(seed)
    table = 3 * torch.randn(rows, 8, vocab, generator=made)
    beams, penalty = rng.randint(1, 5), rng.choice(PENALTIES)
    found = beam(
        Scripted(lambda row, ids: table[row, len(ids)], room), beams=beams, penalty=penalty, end=ends, never=never
    )
    for most, row in zip(room, found, strict=True):
        assert 1 <= len(row) <= beams
        assert [one.score for one in row] == sorted((one.score for one in row), reverse=True)
        for one in row:
            assert len(one.ids) <= most
            assert not set(one.ids) & set(never)
            assert not set(one.ids[:-1]) & set(ends)
            assert len(one.ids) == most or one.ids[-1] in ends


# --- with models


@pytest.mark.parametrize("seed", range(9))
def test_one_beam_is_greedy(seed, tmp_path):
    kind = KINDS[seed % 3]
    ours = through_folder(published(kind, seed), tmp_path)
    prompts, sources = drawn_batch(kind, seed)
    for penalty in (-1.0, 1.0):
        found = beam(Stepper(ours, prompts, sources=sources, room=14), beams=1, penalty=penalty, end=[END])
        said = collected(sample(Stepper(ours, prompts, sources=sources, room=14), end=[END]))
        assert [row[0].ids for row in found] == said


@pytest.mark.parametrize("seed", range(6))
def test_beams_of_a_batch_are_those_of_each_alone(seed, tmp_path):
    kind = KINDS[seed % 3]
    ours = through_folder(published(kind, seed + 50), tmp_path)
    rng = random.Random(seed)
    read, room = texts(rng, 5, 9), [rng.randint(1, 12) for _ in range(5)]
    prompts, sources = (read, None) if kind != "marian" else ([[1]] * 5, read)
    together = beam(Stepper(ours, prompts, sources=sources, room=room), beams=3, end=[END])
    for row in range(5):
        alone = Stepper(ours, [prompts[row]], sources=None if sources is None else [sources[row]], room=[room[row]])
        (found,) = beam(alone, beams=3, end=[END])
        assert [one.ids for one in found] == [one.ids for one in together[row]]
        assert [one.score for one in found] == pytest.approx([one.score for one in together[row]], abs=SCORE)


@pytest.mark.parametrize("beams", [0, -1])
def test_there_is_a_beam(beams):
    with pytest.raises(ValueError, match=f"beams={beams}: there is at least one"):
        beam(by_hand(), beams=beams)


def test_a_penalty_is_finite():
    with pytest.raises(ValueError, match="penalty=nan"):
        beam(by_hand(), penalty=math.nan)


def test_print():
    assert repr(Hypothesis([3, 2], -0.5)) == "Hypothesis(ids=[3, 2], score=-0.5)"
