"""Many texts in one array are the list of them."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data.ragged import Ragged

ours = settings(max_examples=100, deadline=None, derandomize=True, database=None)
lists = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=9), max_size=9)


@ours
@given(lists)
def test_it_is_the_list_of_its_texts(texts):
    ragged = Ragged(text for text in texts)
    assert len(ragged) == len(texts)
    assert [ragged[i].tolist() for i in range(len(texts))] == texts
    assert ragged.lengths.tolist() == [len(text) for text in texts]
    assert ragged.ids.tolist() == [i for text in texts for i in text]
    assert ragged.bounds.tolist()[0] == 0


@ours
@given(lists, st.data())
def test_only_some_of_them(texts, data):
    these = data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts)))
    kept = Ragged(texts).only(np.array(these, dtype=bool))
    assert [kept[i].tolist() for i in range(len(kept))] == [
        text for text, this in zip(texts, these, strict=True) if this
    ]


def test_no_texts():
    empty = Ragged([])
    assert (len(empty), empty.ids.tolist(), empty.lengths.tolist()) == (0, [], [])
    assert len(Ragged([[1], [2]]).only(np.array([False, False]))) == 0


def test_the_array_is_as_wide_as_ids_need():
    assert Ragged([[1, 2], []]).ids.dtype == np.int32
    assert Ragged([np.array([1, 2], dtype=np.int32)])[0].tolist() == [1, 2]
    assert Ragged([]).ids.dtype == np.int32
