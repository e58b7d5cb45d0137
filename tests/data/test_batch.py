"""Batches: every example once, in an order that is a function, as the tensors that a model is called with."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data.batch import NOTHING, Batch, Packed, Padded, Shape, Special, Windows
from heedful.data.ragged import Ragged
from heedful.models import gpt, transformer
from heedful.train.objective import surprise

SPECIAL = Special(pad=0, start=1, end=2)
VOCAB = 40
ours = settings(max_examples=80, deadline=None, derandomize=True, database=None)
pairs_of_lengths = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=0, max_size=60)


def texts(lengths, seed=0):
    """Random ids from 3 on, so that none is a special one."""
    rng = np.random.default_rng(seed)
    return Ragged(rng.integers(3, VOCAB, length, dtype=np.int32) for length in lengths)


def like_sentences(count, seed=0):
    """Lengths as those of sentences and their translations: a long tail, and sides that go together."""
    rng = np.random.default_rng(seed)
    source = np.clip(rng.gamma(6, 2.2, count), 1, 80).astype(int)
    target = np.clip(source * rng.normal(1, 0.15, count) + rng.normal(0, 1, count), 1, 90).astype(int)
    return source.tolist(), target.tolist()


def padded(lengths, tokens=100, grid=1, seed=0, source=True):
    """A corpus from pairs of lengths."""
    m, n = [one for one, _ in lengths], [other for _, other in lengths]
    return Padded(texts(m, seed) if source else None, texts(n, seed + 1), SPECIAL, Shape(tokens, grid))


def packed(lengths, tokens=100, grid=1, length=31, seed=0, source=True):
    m, n = [one for one, _ in lengths], [other for _, other in lengths]
    return Packed(texts(m, seed) if source else None, texts(n, seed + 1), SPECIAL, Shape(tokens, grid), length)


def examples_of(order):
    return [example for rows in order for row in rows for example in row]


# Which examples meet, and when.


@ours
@given(pairs_of_lengths, st.integers(1, 200), st.sampled_from([1, 2, 4, 8]), st.booleans(), st.integers(0, 2**31))
def test_every_example_is_there_once_an_epoch(lengths, tokens, grid, source, seed):
    for corpus in (padded(lengths, tokens, grid, source=source), packed(lengths, tokens, grid, source=source)):
        for epoch in (0, 1):
            order = corpus.order(seed, epoch)
            assert sorted(examples_of(order)) == list(range(len(lengths)))
            assert all(row for rows in order for row in rows)
            assert all(rows for rows in order)


@ours
@given(pairs_of_lengths, st.integers(1, 200), st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_a_batch_has_no_more_slots_than_asked_for_or_one_row(lengths, tokens, grid, source):
    corpus = padded(lengths, tokens, grid, source=source)
    for rows in corpus.order(0, 0):
        tables = [t for t in corpus.collate(rows).inputs.values() if t.dtype == torch.int64]
        height, longest = tables[0].shape[0], max(t.shape[1] for t in tables)
        assert height == 1 or height * longest <= tokens


@ours
@given(pairs_of_lengths, st.integers(1, 200), st.booleans())
def test_packed_rows_are_never_longer_than_asked_for(lengths, tokens, source):
    corpus = packed(lengths, tokens, source=source)
    for rows in corpus.order(0, 0):
        assert len(rows) <= max(1, tokens // 31)
        for row in rows:
            for side in (0, 1) if source else (1,):
                assert sum(lengths[example][side] + 1 for example in row) <= 31


def corpora(count=300):
    lengths = list(zip(*like_sentences(count), strict=True))
    return {
        "padded": lambda: padded(lengths, 400),
        "padded on a grid": lambda: padded(lengths, 400, 8),
        "packed": lambda: packed(lengths, 400, length=128),
        "windows": lambda: Windows(texts([5000])[0], 20, Shape(400)),
        "aligned windows": lambda: Windows(texts([5000])[0], 20, Shape(400), aligned=True),
    }


@pytest.mark.parametrize("kind", corpora())
def test_the_order_is_a_function_of_seed_and_epoch(kind):
    once, again = corpora()[kind](), corpora()[kind]()
    orders = {}
    for seed, epoch in [(0, 0), (0, 1), (1, 0), (1, 1), (7, 123)]:
        orders[seed, epoch] = once.order(seed, epoch)
    # Asked for in another order, from another object, with other dice thrown meanwhile.
    torch.manual_seed(5)
    np.random.default_rng(5).random(9)
    for (seed, epoch), order in reversed(orders.items()):
        assert again.order(seed, epoch) == order
    assert len({str(order) for order in orders.values()}) == len(orders)


@pytest.mark.parametrize("make", [padded, packed])
def test_who_meets_whom_differs_between_epochs(make):
    corpus = make(list(zip(*like_sentences(10_000), strict=True)), 1000, **({"length": 128} if make is packed else {}))
    together = [{frozenset(examples_of([rows])) for rows in corpus.order(0, epoch)} for epoch in (0, 1)]
    assert len(together[0] & together[1]) <= 0.1 * len(together[0])


def test_lengths_come_in_any_order():
    """Short batches first, or last, would be a curriculum that nobody asked for."""
    corpus = corpora(2000)["padded"]()
    longest = [corpus.collate(rows).labels.shape[1] for rows in corpus.order(0, 0)]
    place = np.corrcoef(np.arange(len(longest)), longest)[0, 1]
    assert len(longest) > 60
    assert abs(place) < 0.35


# How much of a batch is padding, and how many shapes there are.


def share_of_real(corpus):
    real = slots = 0
    for rows in corpus.order(0, 0):
        batch = corpus.collate(rows)
        real += batch.tokens
        slots += batch.labels.numel()
        if "source" in batch.inputs:
            known = batch.inputs.get("source_valid", batch.inputs.get("source_document", torch.zeros(0)) >= 0)
            real, slots = real + int(known.sum()), slots + known.numel()
    return real / slots


@pytest.mark.parametrize("tokens", [2500, 8000])
@pytest.mark.parametrize("source", [True, False])
def test_nine_slots_of_ten_are_real(tokens, source):
    lengths = list(zip(*like_sentences(20_000), strict=True))
    assert share_of_real(padded(lengths, tokens, source=source)) >= 0.9
    assert share_of_real(packed(lengths, tokens, length=512, source=source)) >= 0.95


@pytest.mark.parametrize("grid", [4, 8, 16])
@pytest.mark.parametrize("tokens", [2500, 8000])
def test_on_a_grid_there_are_few_shapes(grid, tokens):
    lengths = list(zip(*like_sentences(20_000), strict=True))
    longest = max(map(max, lengths)) + 1
    # Eight steps, and four more for each doubling.
    sizes = 8 + 4 * math.ceil(max(math.log2(longest / (8 * grid)), 0))
    for source, most in ((False, sizes), (True, 2 * sizes)):
        corpus = padded(lengths, tokens, grid, source=source)
        shapes = {tuple(tuple(t.shape) for t in corpus.collate(rows).inputs.values()) for rows in corpus.order(0, 0)}
        assert len(shapes) <= most


@pytest.mark.parametrize("grid", [1, 2, 8])
def test_a_grid_by_hand(grid):
    rounded = Shape(100, grid).rounded(np.arange(0, 32 * grid + 1)).tolist()
    assert all(size >= length for length, size in enumerate(rounded))
    if grid == 1:
        assert rounded == list(range(33))
    else:
        steps = [*range(8), *range(8, 16, 2), *range(16, 33, 4)]
        assert sorted(set(rounded)) == [grid * step for step in steps]


@ours
@given(pairs_of_lengths.filter(len), st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_no_row_is_longer_than_the_longest_text(lengths, grid, source):
    """Where a model's positions end, rounding up does not go on."""
    corpus = padded(lengths, 100, grid, source=source)
    m, n = (max(side) + 1 for side in zip(*lengths, strict=True))
    for rows in corpus.order(0, 0):
        batch = corpus.collate(rows)
        assert batch.labels.shape[1] <= n
        assert not source or batch.inputs["source"].shape[1] <= m


def test_batches_of_one_length_have_one_height_on_a_grid():
    corpus = padded([(9, 9)] * 23, tokens=100, grid=4, source=False)
    assert {corpus.collate(rows).labels.shape for rows in corpus.order(0, 0)} == {(10, 10)}
    assert sum(corpus.collate(rows).tokens for rows in corpus.order(0, 0)) == 23 * 10


# What a batch is.


SOURCE, TARGET = Ragged([[11, 12], [13], []]), Ragged([[21], [22, 23, 24], [25, 26]])


def as_lists(batch):
    return {name: t.tolist() for name, t in batch.inputs.items()}, batch.labels.tolist()


def test_padded_by_hand():
    x = NOTHING
    inputs, labels = as_lists(Padded(SOURCE, TARGET, SPECIAL, Shape(100)).collate([[0], [1], [2]]))
    assert inputs == {
        "source": [[11, 12, 2], [13, 2, 0], [2, 0, 0]],
        "target": [[1, 21, 0, 0], [1, 22, 23, 24], [1, 25, 26, 0]],
        "source_valid": [[True, True, True], [True, True, False], [True, False, False]],
    }
    assert labels == [[21, 2, x, x], [22, 23, 24, 2], [25, 26, 2, x]]


def test_padded_without_a_source_by_hand():
    inputs, labels = as_lists(Padded(None, TARGET, SPECIAL, Shape(100)).collate([[2], [0]]))
    assert inputs == {"ids": [[1, 25, 26], [1, 21, 0]]}
    assert labels == [[25, 26, 2], [21, 2, NOTHING]]


def test_packed_by_hand():
    x = NOTHING
    inputs, labels = as_lists(Packed(SOURCE, TARGET, SPECIAL, Shape(100), 7).collate([[2, 0], [1]]))
    assert inputs == {
        "source": [[2, 11, 12, 2, 0, 0, 0], [13, 2, 0, 0, 0, 0, 0]],
        "target": [[1, 25, 26, 1, 21, 0, 0], [1, 22, 23, 24, 0, 0, 0]],
        "source_document": [[0, 1, 1, 1, -1, -1, -1], [0, 0, -1, -1, -1, -1, -1]],
        "target_document": [[0, 0, 0, 1, 1, -1, -1], [0, 0, 0, 0, -1, -1, -1]],
    }
    assert labels == [[25, 26, 2, 21, 2, x, x], [22, 23, 24, 2, x, x, x]]


def test_windows_by_hand():
    windows = Windows(np.arange(10, 18, dtype=np.int32), 3, Shape(6), aligned=True)
    assert as_lists(windows.collate([[3], [6]])) == (
        {"ids": [[13, 14, 15], [16, 0, 0]]},
        [[14, 15, 16], [17, NOTHING, NOTHING]],
    )


@ours
@given(pairs_of_lengths.filter(len), st.sampled_from([1, 4]), st.booleans(), st.booleans())
def test_every_text_is_in_its_batch_whole(lengths, grid, source, packs):
    """Read back from the tables: what a row says, example by example, is the texts."""
    corpus = (packed if packs else padded)(lengths, 90, grid, source=source)
    for rows in corpus.order(3, 4):
        batch = corpus.collate(rows)
        read, said = batch.inputs["target" if source else "ids"].tolist(), batch.labels.tolist()
        for n, row in enumerate(rows):
            words = [corpus.target[example].tolist() for example in row]
            assert read[n] == _filled([i for text in words for i in [1, *text]], len(read[n]), 0)
            assert said[n] == _filled([i for text in words for i in [*text, 2]], len(said[n]), NOTHING)
            if source:
                sources = [corpus.source[example].tolist() for example in row]
                at = batch.inputs["source"].tolist()[n]
                assert at == _filled([i for text in sources for i in [*text, 2]], len(at), 0)
        assert all(set(row) == {NOTHING} for row in said[len(rows) :])
        assert batch.tokens == sum(len(corpus.target[example]) + 1 for example in examples_of([rows]))


def _filled(ids, length, fill):
    return ids + [fill] * (length - len(ids))


@ours
@given(st.integers(2, 200), st.integers(1, 50), st.integers(1, 90), st.sampled_from([1, 4]), st.integers(0, 9))
def test_aligned_windows_cover_every_token_once(count, length, tokens, grid, seed):
    ids = np.arange(100, 100 + count, dtype=np.int32)
    windows = Windows(ids, length, Shape(tokens, grid), aligned=True)
    said = Counter()
    for rows in windows.order(seed, 0):
        batch = windows.collate(rows)
        said.update(batch.labels[batch.labels != NOTHING].tolist())
    assert said == Counter(ids[1:].tolist())


@ours
@given(st.integers(2, 200), st.integers(1, 50), st.integers(1, 90), st.integers(0, 9), st.integers(0, 9))
def test_windows_do_not_overlap_and_leave_out_little(count, length, tokens, seed, epoch):
    ids = np.arange(100, 100 + count, dtype=np.int32)
    windows = Windows(ids, length, Shape(tokens))
    order = windows.order(seed, epoch)
    assert order
    assert all(rows for rows in order)
    said = Counter()
    for rows in order:
        batch = windows.collate(rows)
        assert batch.tokens == batch.labels.numel(), "every piece is whole"
        assert torch.equal(batch.labels, batch.inputs["ids"] + 1)
        said.update(batch.labels.flatten().tolist())
    assert max(said.values()) == 1
    # Less than a piece at the beginning, and less than one at the end.
    assert len(said) > count - 1 - 2 * min(length, count - 1)


def test_windows_begin_elsewhere_each_epoch():
    windows = Windows(np.arange(1000, dtype=np.int32), 100, Shape(1000))
    begins = [min(examples_of(windows.order(0, epoch))) for epoch in range(300)]
    assert set(begins) <= set(range(100))
    assert len(set(begins)) > 80


# What a model learns from it.


def tiny(source, vocab=VOCAB):
    """A real model without dropout, in float64."""
    torch.manual_seed(1)
    if source:
        model = transformer(vocab=vocab, width=16, depth=2, heads=2, inner=32, dropout=0.0)
    else:
        model = gpt(vocab=vocab, width=16, depth=2, heads=2, context=128, dropout=0.0)
    return model.double()


def summed(model, batch):
    """Σ -log p(label) in float64."""
    logp = model(**batch.inputs).log_softmax(-1)
    real = batch.labels != NOTHING
    return -logp[real].gather(-1, batch.labels[real].unsqueeze(-1)).sum()


def learned(corpus, source, batches):
    """Loss and gradients, summed over batches."""
    model = tiny(source)
    loss = sum(summed(model, batch) for batch in batches(corpus))
    return loss, torch.autograd.grad(loss, list(model.parameters()))


def whole_epoch(corpus):
    return [corpus.collate(rows) for rows in corpus.order(0, 0)]


def one_by_one(corpus):
    return [corpus.collate([[example]]) for example in range(len(corpus))]


def assert_alike(one, other, tolerance=1e-10):
    assert abs(one[0] - other[0]) <= tolerance * abs(one[0])
    for a, b in zip(one[1], other[1], strict=True):
        assert (a - b).abs().max() <= tolerance * max(1.0, float(a.abs().max()))


LENGTHS = list(zip([5, 9, 1, 0, 12, 7, 3, 8, 2], [6, 7, 2, 3, 9, 0, 4, 11, 1], strict=True))


@pytest.mark.parametrize("source", [True, False])
@pytest.mark.parametrize("grid", [1, 4])
def test_padded_packed_and_one_by_one_learn_the_same(source, grid):
    alone = learned(padded(LENGTHS, source=source), source, one_by_one)
    assert_alike(alone, learned(padded(LENGTHS, 40, grid, source=source), source, whole_epoch))
    assert_alike(alone, learned(packed(LENGTHS, 60, grid, 20, source=source), source, whole_epoch))


@pytest.mark.parametrize("source", [True, False])
@pytest.mark.parametrize("packs", [False, True])
def test_what_pads_never_contributes(source, packs):
    """Bit for bit: whatever stands in a padded slot, loss and gradients stay as they are."""
    corpus = (packed if packs else padded)(LENGTHS, 60, 4, source=source)
    for rows in corpus.order(0, 0):
        batch = corpus.collate(rows)
        outcomes = []
        for seed in range(3):
            inputs = dict(batch.inputs)
            for name in ("source", "target", "ids"):
                if name in inputs and seed:
                    pads = _pads(batch, name)
                    assert torch.equal(inputs[name][pads], torch.zeros_like(inputs[name][pads]))
                    other = torch.randint(VOCAB, pads.shape, generator=torch.Generator().manual_seed(seed))
                    inputs[name] = torch.where(pads, other, inputs[name])
            model = tiny(source)
            loss = summed(model, Batch(inputs, batch.labels))
            outcomes.append((loss, torch.autograd.grad(loss, list(model.parameters()))))
        for loss, gradients in outcomes[1:]:
            assert torch.equal(loss, outcomes[0][0])
            assert all(torch.equal(a, b) for a, b in zip(gradients, outcomes[0][1], strict=True))


def _pads(batch, name):
    """The slots of a table in which no text stands."""
    if name == "source":
        return ~batch.inputs.get("source_valid", batch.inputs.get("source_document", torch.zeros(0)) >= 0)
    return batch.labels == NOTHING


@pytest.mark.parametrize("source", [True, False])
@pytest.mark.parametrize("packs", [False, True])
def test_slot_i_learns_label_i_from_what_stands_up_to_i(source, packs):
    """Targets are shifted once: label i is the next input, and no input from i + 1 on is looked at."""
    corpus = (packed if packs else padded)(LENGTHS, 400, source=source)
    batch = corpus.collate(corpus.order(0, 0)[0])
    name = "target" if source else "ids"
    read, labels = batch.inputs[name], batch.labels
    follows = (labels[:, :-1] != NOTHING) & (labels[:, :-1] != SPECIAL.end)
    assert torch.equal(labels[:, :-1][follows], read[:, 1:][follows])
    model = tiny(source)
    (table,) = {part for part in model.modules() if isinstance(part, torch.nn.Embedding) and len(part.weight) == VOCAB}
    seen = []
    handle = table.register_forward_hook(lambda module, given, made: seen.append(made.retain_grad() or made))
    logits = model(**batch.inputs)
    handle.remove()
    logits.retain_grad()
    loss = surprise(logits, labels)
    row, at = 0, int((labels[0] != NOTHING).sum()) // 2
    loss.backward()
    # Of the summed loss, the logits of slot i have the gradient of their own label: p - 1 there, p elsewhere.
    expected = logits.detach().softmax(-1) - F.one_hot(labels.clamp(min=0), VOCAB)
    assert torch.allclose(logits.grad, expected * (labels != NOTHING).unsqueeze(-1), atol=1e-6)
    # Of one label alone, nothing that stands after its slot has any.
    seen.clear()
    handle = table.register_forward_hook(lambda module, given, made: seen.append(made.retain_grad() or made))
    only = torch.full_like(labels, NOTHING)
    only[row, at] = labels[row, at]
    surprise(model(**batch.inputs), only).backward()
    handle.remove()
    of_reader = seen[-1].grad
    assert of_reader[row, at].abs().max() > 0
    assert torch.equal(of_reader[row, at + 1 :], torch.zeros_like(of_reader[row, at + 1 :]))


# Parts of a batch.


@pytest.mark.parametrize("of", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("source", [True, False])
@pytest.mark.parametrize("packs", [False, True])
def test_parts_are_the_batch(of, source, packs):
    corpus = (packed if packs else padded)(LENGTHS, 60, source=source)
    for rows in corpus.order(0, 0):
        batch = corpus.collate(rows)
        parts = [batch.part(n, of) for n in range(of)]
        assert len({part.labels.shape for part in parts}) == 1
        assert sum(part.tokens for part in parts) == batch.tokens
        for n, part in enumerate(parts):
            own = range(n, len(batch.labels), of)
            assert torch.equal(part.labels[: len(own)], batch.labels[list(own)])
            assert torch.equal(part.labels[len(own) :], torch.full_like(part.labels[len(own) :], NOTHING))
            for name, t in batch.inputs.items():
                assert part.inputs[name].dtype == t.dtype
                assert torch.equal(part.inputs[name][: len(own)], t[list(own)])


@pytest.mark.parametrize("of", [2, 3, 4])
@pytest.mark.parametrize("source", [True, False])
@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_parts_sum_to_the_whole(of, source, packs, smoothing):
    """As processes, or as micro-batches: unequal lengths, and rows that are padding alone."""
    corpus = (packed if packs else padded)(LENGTHS, 90, source=source)
    model = tiny(source)
    for rows in corpus.order(0, 0):
        batch = corpus.collate(rows)
        whole = _loss_and_gradients(model, batch, smoothing)
        parts = [_loss_and_gradients(model, batch.part(n, of), smoothing) for n in range(of)]
        sums = sum(loss for loss, _ in parts), [sum(each) for each in zip(*(g for _, g in parts), strict=True)]
        assert_alike(whole, sums, 1e-6)
        assert all(torch.isfinite(loss) for loss, _ in parts)


def _loss_and_gradients(model, batch, smoothing):
    loss = surprise(model(**batch.inputs), batch.labels, smoothing)
    return loss, torch.autograd.grad(loss, list(model.parameters()))


def test_smoothed_surprise_is_its_formula():
    """(1 - ε) · -log p(label) + ε · mean of -log p, over real labels."""
    logits, labels = torch.randn(3, 5, 7), torch.randint(7, (3, 5))
    labels[0, 3:] = labels[2] = NOTHING
    expected = 0.0
    for row in range(3):
        for slot in range(5):
            if labels[row, slot] != NOTHING:
                logp = [float(x) - float(logits[row, slot].exp().sum().log()) for x in logits[row, slot]]
                expected += 0.9 * -logp[labels[row, slot]] + 0.1 * -sum(logp) / 7
    assert float(surprise(logits, labels, 0.1)) == pytest.approx(expected, rel=1e-5)


def test_to_a_device_everything_goes():
    batch = padded(LENGTHS).collate([[0], [1]])
    moved = batch.to(torch.device("meta"))
    assert {t.device.type for t in (*moved.inputs.values(), moved.labels)} == {"meta"}
    assert list(moved.inputs) == list(batch.inputs)


# What is refused, and what is empty.


def test_a_text_that_no_row_can_hold():
    with pytest.raises(ValueError, match="a text has 12 tokens, a row 11 slots: give longer rows, or drop the text"):
        packed([(11, 3)], length=11)


def test_sides_of_other_counts():
    with pytest.raises(ValueError, match="2 sources and 1 targets: give one target for each source"):
        Padded(texts([1, 2]), texts([1]), SPECIAL, Shape(10))


@pytest.mark.parametrize("count", [0, 1])
def test_a_text_with_nothing_to_predict(count):
    with pytest.raises(ValueError, match=f"the text has {count} tokens"):
        Windows(np.zeros(count, dtype=np.int32), 4, Shape(10))


@pytest.mark.parametrize("source", [True, False])
def test_no_examples(source):
    assert padded([], source=source).order(0, 0) == packed([], source=source).order(0, 0) == []
