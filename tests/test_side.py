"""One end of a look: where its slots are, and which tables it takes."""

import random

import pytest
import torch

from heedful.side import Side, following, side


def slowly(length, valid=None, document=None, start=0):
    """The position of each slot of one row, found by walking along it."""
    first = next((slot for slot in range(length) if valid is None or valid[slot]), 0)
    found, begin = [], 0
    for slot in range(length):
        if document is not None and slot > 0 and document[slot] != document[slot - 1]:
            begin = slot
        found.append(start + max(slot - max(first, begin), 0))
    return found


def ids(batch, length):
    return torch.zeros(batch, length, dtype=torch.int64)


def rows_of(table, batch):
    return [None] * batch if table is None else table.tolist()


def random_valid(rng, length):
    """Padding left, right, on both sides, holes, none, or nothing but padding."""
    kind = rng.choice(["left", "right", "both", "holes", "full", "empty"])
    if kind in ("full", "empty"):
        return [kind == "full"] * length
    if kind == "holes":
        return [rng.random() < 0.6 for _ in range(length)]
    begin = rng.randint(0, length) if kind in ("left", "both") else 0
    end = rng.randint(begin, length) if kind in ("right", "both") else length
    return [begin <= slot < end for slot in range(length)]


def random_document(rng, length):
    """Runs of labels, in any order; no label comes back."""
    labels, names = [], rng.sample(range(length + 1), length + 1)
    while len(labels) < length:
        labels += [names.pop()] * rng.randint(1, 4)
    return labels[:length]


@pytest.mark.parametrize("seed", range(200))
def test_derived_positions_are_those_of_walking_along_the_row(seed):
    rng = random.Random(seed)
    batch, length = rng.randint(1, 4), rng.randint(1, 9)
    valid = torch.tensor([random_valid(rng, length) for _ in range(batch)]) if seed % 3 else None
    document = torch.tensor([random_document(rng, length) for _ in range(batch)]) if seed % 2 else None
    start = rng.choice([0, 5, torch.tensor([rng.randint(0, 9) for _ in range(batch)])])
    at = side(ids(batch, length), valid=valid, document=document, start=start).at.expand(batch, length)
    starts = start.tolist() if isinstance(start, torch.Tensor) else [start] * batch
    rows = zip(rows_of(valid, batch), rows_of(document, batch), starts, strict=True)
    assert at.tolist() == [slowly(length, v, d, s) for v, d, s in rows]


def test_derived_positions_by_hand():
    valid = torch.tensor(
        [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0]]
    ).bool()
    found = side(ids(6, 5), valid=valid)
    assert found.at.tolist() == [
        [0, 1, 2, 3, 4],
        [0, 0, 0, 1, 2],
        [0, 1, 2, 3, 4],
        [0, 0, 1, 2, 3],
        [0, 0, 1, 2, 3],
        [0, 1, 2, 3, 4],
    ]
    assert found.start is None


def test_documents_count_from_their_own_beginning():
    document = torch.tensor([[4, 4, 4, 7, 7, 5], [1, 2, 3, 3, 3, 3]])
    found = side(ids(2, 6), document=document)
    assert found.at.tolist() == [[0, 1, 2, 0, 1, 0], [0, 0, 0, 1, 2, 3]]


def test_left_padding_before_packed_documents():
    valid = torch.tensor([[0, 0, 1, 1, 1, 1]]).bool()
    document = torch.tensor([[1, 1, 1, 1, 2, 2]])
    assert side(ids(1, 6), valid=valid, document=document).at.tolist() == [[0, 0, 0, 1, 0, 1]]


def test_one_row_of_facts_serves_every_row():
    valid = torch.tensor([False, True, True])
    found = side(ids(4, 3), valid=valid)
    assert found.facts["valid"].shape == (1, 3)
    assert found.at.tolist() == [[0, 0, 1]]
    assert found.batch == 4


def test_positions_are_the_slots_where_nothing_is_known():
    found = side(ids(3, 4))
    assert found.at.tolist() == [[0, 1, 2, 3]]
    assert (found.length, found.batch, found.start) == (4, 3, 0)
    assert side(ids(3, 4), start=7).start == 7
    assert side(torch.zeros(3, 4, 8)).at.tolist() == [[0, 1, 2, 3]], "vectors count as ids do"


def test_where_positions_count_up_is_said_only_if_it_is_known():
    valid = torch.ones(2, 3, dtype=torch.bool)
    assert side(ids(2, 3), valid=valid).start is None
    assert side(ids(2, 3), document=ids(2, 3)).start is None
    assert side(ids(2, 3), at=torch.arange(3)).start is None
    assert side(ids(2, 3), start=torch.tensor([0, 0])).start is None
    assert side(ids(2, 3), tables={"segment": ids(2, 3)}).start == 0


def test_given_positions_win():
    at = torch.tensor([[5, 3, 9], [0, 0, 2]])
    valid = torch.tensor([[False, True, True], [True, True, True]])
    found = side(ids(2, 3), at=at, valid=valid, document=ids(2, 3))
    assert torch.equal(found.at, at)
    assert side(ids(2, 3), at=torch.tensor([4, 5, 6])).at.tolist() == [[4, 5, 6]]
    assert side(ids(2, 3), at=at.to(torch.int16)).at.dtype == torch.int64


def test_a_slot_becomes_a_position():
    found = side(ids(2, 3), at=torch.tensor([[5, 3, 9], [0, 0, 2]]))
    assert found.position(torch.tensor([0, 1]), torch.tensor([2, 2])).tolist() == [9, 2]
    assert side(ids(2, 3), at=torch.tensor([4, 5, 6])).position(torch.tensor([1]), torch.tensor([2])).tolist() == [6]
    assert Side(3).position(torch.tensor([1]), torch.tensor([2])).tolist() == [2]


@pytest.mark.parametrize("seed", range(100))
def test_what_follows_comes_after_the_last_real_token(seed):
    rng = random.Random(seed)
    batch, length, start = rng.randint(1, 4), rng.randint(1, 9), rng.choice([0, 6])
    valid = [random_valid(rng, length) for _ in range(batch)]
    own = side(ids(batch, length), valid=torch.tensor(valid), start=start)
    expected = []
    for row in valid:
        real = [place for place, real in zip(slowly(length, row, None, start), row, strict=True) if real]
        expected.append(real[-1] + 1 if real else start)
    assert following(own, start).tolist() == expected
    each = torch.full((batch,), start)
    assert following(side(ids(batch, length), valid=torch.tensor(valid), start=each), each).tolist() == expected


def test_what_follows_where_positions_count_up_is_one_number():
    assert following(side(ids(2, 5)), 0) == 5
    assert following(side(ids(2, 5), start=3), 3) == 8
    assert following(side(ids(2, 0), start=3), 3) == 3


def test_what_follows_given_positions():
    own = side(ids(2, 3), at=torch.tensor([[0, 1, 2], [7, 8, 9]]))
    assert following(own, 0).tolist() == [3, 10]
    assert following(side(ids(2, 3), at=torch.tensor([7, 8, 9])), 0).tolist() == [10, 10]


@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("length", [0, 1])
@pytest.mark.parametrize("facts", [(), ("valid",), ("document",), ("valid", "document"), ("at",)])
def test_few_rows_and_few_slots(batch, length, facts):
    tables = {
        "valid": torch.ones(batch, length, dtype=torch.bool),
        "document": ids(batch, length),
        "at": ids(batch, length),
    }
    found = side(ids(batch, length), start=4, **{name: tables[name] for name in facts})
    assert (found.length, found.batch) == (length, batch)
    assert found.at.expand(batch, length).tolist() == [[0 if "at" in facts else 4] * length] * batch
    if length == 0:
        assert following(found, 4) == 4


# What a side refuses.


@pytest.mark.parametrize("at", [torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool), torch.zeros(2, 3).half()])
def test_positions_are_integers(at):
    with pytest.raises(ValueError, match=r"at is torch\..*; positions are integers"):
        side(ids(2, 3), at=at)


@pytest.mark.parametrize("shape", [(4,), (2, 4), (2, 1, 3), ()])
def test_there_is_a_position_for_each_slot(shape):
    with pytest.raises(ValueError, match="this side has 3 slots"):
        side(ids(2, 3), at=torch.zeros(shape, dtype=torch.int64))


def test_positions_have_a_row_for_each_row():
    with pytest.raises(ValueError, match="at has 3 rows, this call has 2"):
        side(ids(2, 3), at=ids(3, 3))


@pytest.mark.parametrize("name", ["valid", "document"])
def test_facts_fit_the_call(name):
    dtype = torch.bool if name == "valid" else torch.int64
    with pytest.raises(ValueError, match=rf"{name} has shape \(2, 4\), this call has 3 slots: give \(2, 3\)"):
        side(ids(2, 3), **{name: torch.ones(2, 4, dtype=dtype)})
    with pytest.raises(ValueError, match=f"{name} has 3 rows, this call has 2"):
        side(ids(2, 3), **{name: torch.ones(3, 3, dtype=dtype)})
    with pytest.raises(ValueError, match=rf"{name} has shape \(2, 1, 3\); it must be \(2, 3\)"):
        side(ids(2, 3), **{name: torch.ones(2, 1, 3, dtype=dtype)})
    with pytest.raises(ValueError, match="this call has 3 slots"):
        side(ids(2, 3), **{name: torch.ones((), dtype=dtype)})


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.uint8])
def test_valid_is_bool(dtype):
    with pytest.raises(ValueError, match=r"it must be bool, True for real tokens: try valid=\(\.\.\.\)\.bool\(\)"):
        side(ids(2, 3), valid=torch.ones(2, 3, dtype=dtype))


def test_further_tables_fit_the_call():
    table = torch.zeros(2, 4, 3, dtype=torch.bool)
    assert side(ids(2, 3), tables={"open": table}).facts["open"] is table
    with pytest.raises(ValueError, match="open has shape"):
        side(ids(2, 5), tables={"open": table})
    with pytest.raises(ValueError, match="open has 2 rows, this call has 3"):
        side(ids(3, 3), tables={"open": table})


def test_a_document_that_comes_back_is_refused():
    """Its words would look back past a text that is not theirs."""
    with pytest.raises(ValueError, match="each its own label"):
        side(ids(1, 5), document=torch.tensor([[0, 0, 1, 1, 0]]))


def test_names_with_a_meaning_of_their_own_are_no_tables():
    for name in ("valid", "document", "filled"):
        with pytest.raises(ValueError, match=f'"{name}" has a meaning of its own'):
            side(ids(1, 3), tables={name: ids(1, 3)})


def test_print():
    assert repr(side(ids(2, 3), valid=torch.ones(2, 3, dtype=torch.bool))) == "Side(3 slots, valid (2, 3))"
    assert repr(Side(3)) == "Side(3 slots)"
