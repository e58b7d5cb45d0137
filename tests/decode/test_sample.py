"""One token after another: limits and ends by scripts, chance by chi-square, rows that do not touch each other."""

import random

import pytest
import torch

from heedful.decode import Stepper, collected, drawn, never, sample, temperature, top_k, top_p
from tests.decode.oracles import KINDS, Scripted, cut, published, texts
from tests.models.parity import through_folder

DRAWS = 100_000


def scripted(lines, room, vocab):
    """A stepper whose rows say these lines, whatever they are told."""
    return Scripted(lambda row, ids: torch.eye(vocab)[lines[row][len(ids)]], room)


@pytest.mark.parametrize("part", range(10))
def test_ends_and_rooms_on_random_cases(part):
    """A thousand in all: each row says its line up to the first end, or as far as its room goes."""
    for case in range(100):
        rng = random.Random(100 * part + case)
        rows, vocab = rng.randint(1, 9), rng.randint(2, 12)
        room = [rng.randint(1, 12) for _ in range(rows)]
        lines = [[rng.randrange(vocab) for _ in range(12)] for _ in range(rows)]
        ends = rng.sample(range(vocab), rng.randint(0, 2))
        stepper = scripted(lines, room, vocab)
        said = collected(sample(stepper, end=ends))
        assert said == [cut(line[:most], ends) for line, most in zip(lines, room, strict=True)]
        assert stepper.steps == max(map(len, said)) - 1, "what is said last is not read"


def test_a_row_may_be_ended_from_outside():
    asked = []

    def until(row, token):
        asked.append((row, token))
        return row == 1 and token == 5

    lines = [[3, 4, 2, 9], [4, 5, 6, 9], [7, 8, 7, 9]]
    assert collected(sample(scripted(lines, [4, 4, 4], 10), end=[9], until=until)) == [lines[0], [4, 5], lines[2]]
    assert [token for row, token in asked if row == 0] == lines[0], "once for each token, the last one and the end too"
    assert [token for row, token in asked if row == 1] == [4, 5]


def test_each_step_is_there_as_soon_as_it_is_said():
    stepper = scripted([[3, 4], [5, 2]], [2, 2], 6)
    steps = sample(stepper, end=[5])
    assert next(steps) == [3, 5]
    assert stepper.steps == 0
    assert next(steps) == [4, None]
    assert list(steps) == []


def test_rows_that_have_ended_are_not_stepped_for_ever():
    lines = [[1] * 50, *([[0]] * 7)]
    stepper = scripted(lines, [50] * 8, 2)
    rows = [stepper.rows for _ in sample(stepper, end=[0])]
    assert rows[0] == 8
    assert rows[2:] == [1] * 48


def test_a_row_whose_room_is_full_goes_at_once():
    """Its positions may end there, so it must not be stepped once more, however many go on."""
    most = {}

    def script(row, ids):
        most[row] = len(ids)
        return torch.eye(3)[1]

    said = collected(sample(Scripted(script, [2, *[9] * 20])))
    assert [len(text) for text in said] == [2, *[9] * 20]
    assert most[0] == 1


def test_never():
    stepper = scripted([[0, 1, 2]], [3], 3)
    assert collected(sample(stepper, rules=[never([1])])) == [[0, 0, 2]]


# --- chance


def frequencies(rules, logits):
    """How often each token is drawn: 100 rows, each with a chance of its own, 1,000 times."""
    choose, rows = drawn(seed=11), list(range(100))
    for rule in rules:
        logits = rule(logits)
    counts = torch.zeros(logits.shape[-1], dtype=torch.long)
    for _ in range(DRAWS // len(rows)):
        counts += torch.bincount(choose(logits.expand(len(rows), -1), rows), minlength=len(counts))
    return counts


def chi_square(counts, share):
    """The chance of frequencies as far from `share` as these, or further."""
    assert (counts[share == 0] == 0).all(), "what is ruled out does not come"
    likely = share > 0
    expected = share[likely] * counts.sum()
    assert expected.min() >= 5, "the test needs at least five of each"
    statistic = ((counts[likely] - expected) ** 2 / expected).sum()
    freedom = torch.tensor((int(likely.sum()) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


def shares(logits, t=1.0, k=None, p=None):
    """In plain Python, from the definition."""
    weights = [2.718281828459045 ** (x / t) for x in logits.tolist()]
    order = sorted(range(len(weights)), key=lambda i: -weights[i])[:k]
    if p is not None:
        total, upto = sum(weights[i] for i in order), 0.0
        for n, i in enumerate(order):
            upto += weights[i] / total
            if upto >= p:
                order = order[: n + 1]
                break
    total = sum(weights[i] for i in order)
    return torch.tensor([weights[i] / total if i in order else 0.0 for i in range(len(weights))], dtype=torch.float64)


@pytest.mark.parametrize(
    ("settings", "rules"),
    [
        ({}, []),
        ({"t": 0.6}, [temperature(0.6)]),
        ({"t": 2.5}, [temperature(2.5)]),
        ({"k": 4}, [top_k(4)]),
        ({"p": 0.7}, [top_p(0.7)]),
        ({"t": 1.3, "k": 9, "p": 0.8}, [temperature(1.3), top_k(9), top_p(0.8)]),
    ],
)
def test_draws_are_as_frequent_as_they_should_be(settings, rules):
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(3))
    counts = frequencies(rules, logits)
    assert int(counts.sum()) == DRAWS
    assert chi_square(counts, shares(logits[0], **settings)) > 0.001


def test_the_test_of_frequencies_can_fail():
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(3))
    assert chi_square(frequencies([temperature(1.05)], logits), shares(logits[0])) < 0.001


def test_rows_draw_apart_from_each_other():
    """First draws of 20,000 rows, in pairs: as frequent as two independent ones."""
    logits = torch.tensor([[0.0, 1.0, -0.5, 0.3]])
    share = shares(logits[0])
    firsts = drawn(seed=5)(logits.expand(20_000, -1), range(20_000))
    both = (share[:, None] * share[None]).flatten()
    assert chi_square(torch.bincount(firsts[:-1:2] * 4 + firsts[1::2], minlength=16), both) > 0.001
    seeds = torch.stack([drawn(seed=seed)(logits, [0])[0] for seed in range(5_000)])
    assert chi_square(torch.bincount(seeds[:-1:2] * 4 + seeds[1::2], minlength=16), both) > 0.001


def test_a_row_draws_what_it_draws_alone():
    logits = torch.randn(5, 30, generator=torch.Generator().manual_seed(1))
    together, alone = drawn(seed=4), [drawn(seed=4, numbers=[n]) for n in range(5)]
    rows = list(range(5))
    for _ in range(20):
        tokens = together(logits[rows], rows).tolist()
        assert tokens == [int(alone[n](logits[n : n + 1], [0])) for n in rows]
        rows = rows[1:] if len(rows) > 3 else rows
    assert drawn(seed=4)(logits, range(5)).tolist() != drawn(seed=5)(logits, range(5)).tolist()


@pytest.mark.parametrize(("point", "first"), [(0.0, True), (1 - 2**-53, False)])
def test_the_outermost_points_fall_on_tokens_that_may_come(point, first, monkeypatch):
    """The least and the greatest that chance can be; shares in float32 add up to a little less or more than 1."""
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype, **how: torch.tensor(point, dtype=dtype))
    logits = never([0, 1, 48, 49])(torch.randn(500, 50, generator=torch.Generator().manual_seed(1)))
    assert (drawn()(logits, range(500)) == (2 if first else 47)).all()


@pytest.mark.parametrize("seed", range(9))
def test_a_batch_says_what_each_says_alone(seed, tmp_path):
    """Greedy and by chance; prompts and sources of several lengths, rooms of several sizes."""
    kind, rng = KINDS[seed % 3], random.Random(seed)
    model = through_folder(published(kind, 80 + seed), tmp_path)
    read, room = texts(rng, 6, 9), [rng.randint(1, 15) for _ in range(6)]
    prompts, sources = (read, None) if kind != "marian" else ([[1]] * 6, read)
    rules = [temperature(0.9), top_k(8), top_p(0.95)]
    chances = [lambda numbers: drawn(7, numbers), None]
    for chance in chances:
        how = {"end": [5], **({} if chance is None else {"rules": rules})}
        chosen = {} if chance is None else {"choose": chance(range(6))}
        together = collected(sample(Stepper(model, prompts, sources=sources, room=room), **how, **chosen))
        for row in range(6):
            one = None if sources is None else [sources[row]]
            chosen = {} if chance is None else {"choose": chance([row])}
            alone = Stepper(model, [prompts[row]], sources=one, room=room[row])
            assert collected(sample(alone, **how, **chosen)) == [together[row]]
