"""The algebra of masks: what it simplifies, what it means, and what it refuses."""

import copy
import itertools
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import heedful
from heedful.mask import Band, band, causal, everything, inf, key, nothing, query, same, window
from tests.mask_trees import check_trees

ours = settings(max_examples=150, deadline=None, derandomize=True, database=None)

# One world for the properties: unequal lengths, positions that are no slots, tables of every shape.
GENERATOR = torch.Generator().manual_seed(5)
ROWS, HEADS, QUERIES, KEYS = 2, 2, 4, 5
Q_AT = torch.randint(-2, 7, (ROWS, QUERIES), generator=GENERATOR)
K_AT = torch.randint(-2, 7, (KEYS,), generator=GENERATOR)
TABLES = {
    "valid": (
        torch.rand(QUERIES, generator=GENERATOR) < 0.6,
        torch.rand(ROWS, KEYS, generator=GENERATOR) < 0.6,
    ),
    "global": (
        torch.rand(ROWS, HEADS, QUERIES, generator=GENERATOR) < 0.4,
        torch.rand(ROWS, HEADS, KEYS, generator=GENERATOR) < 0.4,
    ),
    "document": (
        torch.randint(0, 3, (ROWS, QUERIES), generator=GENERATOR),
        torch.randint(0, 3, (ROWS, KEYS), generator=GENERATOR),
    ),
}
GIVEN = [torch.rand(ROWS, KEYS, generator=GENERATOR) < 0.5 for _ in range(2)]

NAMED = [key("valid"), query("valid"), key("global"), query("global"), same("document")]
NAMES = [*NAMED, *(key(table) for table in GIVEN)]
ends = st.integers(-4, 6) | st.sampled_from([inf, -inf])
bands = st.builds(band, ends, ends) | st.builds(window, st.integers(0, 4)) | st.just(causal)
names = st.sampled_from(NAMES)
masks = st.recursive(
    names | bands | st.sampled_from([everything, nothing]),
    lambda part: st.one_of(
        st.builds(lambda a: ~a, part),
        st.builds(lambda a, b: a & b, part, part),
        st.builds(lambda a, b: a | b, part, part),
    ),
    max_leaves=6,
)


def dense(mask):
    return mask.dense(Q_AT, K_AT, TABLES).broadcast_to(ROWS, HEADS, QUERIES, KEYS)


def means_the_same(a, b):
    return torch.equal(dense(a), dense(b))


@pytest.mark.parametrize("seed", range(4))
def test_random_expressions_agree_with_asking_one_pair_after_another(seed):
    seen = check_trees(250, seed)
    assert seen["mixed"] > 50
    assert seen["rows differ"] > 25
    assert seen["heads differ"] > 5
    assert seen["empty"] > 5
    assert seen["never looks ahead"] > 5
    for kind in ("Band", "Key", "Lengths", "Query", "Same"):
        assert seen[kind] > 25, kind


# What the operators mean.


@ours
@given(masks, masks)
def test_operators_are_those_of_sets(a, b):
    assert torch.equal(dense(a & b), dense(a) & dense(b))
    assert torch.equal(dense(a | b), dense(a) | dense(b))
    assert torch.equal(dense(~a), ~dense(a))


@ours
@given(masks, masks)
def test_de_morgan(a, b):
    assert means_the_same(~(a & b), ~a | ~b)
    assert means_the_same(~(a | b), ~a & ~b)


@ours
@given(masks, masks)
def test_absorption(a, b):
    assert means_the_same(a & (a | b), a)
    assert means_the_same(a | (a & b), a)


@ours
@given(masks, masks, masks)
def test_associativity_and_distributivity(a, b, c):
    assert means_the_same((a & b) & c, a & (b & c))
    assert means_the_same((a | b) | c, a | (b | c))
    assert means_the_same(a & (b | c), (a & b) | (a & c))


@ours
@given(masks)
def test_double_negation_and_complement(a):
    assert means_the_same(~~a, a)
    assert not dense(a & ~a).any()
    assert dense(a | ~a).all()


# What is one value, not only one meaning.


@ours
@given(masks, masks)
def test_the_order_of_parts_does_not_matter(a, b):
    for one, other in ((a & b, b & a), (a | b, b | a)):
        assert one == other
        assert hash(one) == hash(other)
        assert repr(one) == repr(other)


@ours
@given(masks)
def test_a_part_given_twice_counts_once(a):
    assert a & a == a
    assert a | a == a


@ours
@given(masks)
def test_everything_and_nothing(a):
    assert a & everything == a
    assert a | nothing == a
    assert a & nothing == nothing
    assert a | everything == everything


@ours
@given(st.lists(names | bands, min_size=3, max_size=3), st.permutations(range(3)))
def test_one_operator_over_atoms_forgets_grouping_and_order(atoms, order):
    a, b, c = atoms
    x, y, z = (atoms[n] for n in order)
    assert (a & b) & c == x & (y & z)
    assert (a | b) | c == x | (y | z)


@ours
@given(names, masks)
def test_a_table_absorbs_whatever_stands_with_it(a, b):
    assert a & (a | b) == a
    assert a | (a & b) == a


@ours
@given(names | bands, names)
def test_negation_is_undone(a, b):
    assert ~~a == a
    for joined in (a & b, a | b):
        assert ~~joined == joined
    assert ~(a & b) == ~a | ~b
    assert ~(a | b) == ~a & ~b


@pytest.mark.parametrize("atom", [*NAMES, causal, ~causal, window(2), band(1, 3), everything, nothing], ids=repr)
def test_an_atom_and_its_complement_cancel(atom):
    assert atom & ~atom == nothing
    assert atom | ~atom == everything


def test_bands_merge():
    assert causal & window(256) == band(0, 256)
    assert window(3) & window(5) == window(3)
    assert band(0, 2) | band(3, 5) == band(0, 5), "no integer lies between 2 and 3"
    assert band(0, 2) & band(3, 5) == nothing
    assert causal | ~causal == everything
    assert causal | band(-3, 1) == band(-3, inf)
    assert (band(0, 2) | band(4, 5)) | band(3, 3) == band(0, 5)
    assert band(-inf, inf) == everything
    assert window(inf) == everything
    assert band(2, 1) == nothing
    assert band(0.0, 2.0) == band(0, 2)


def test_bands_apart_stay_apart():
    apart = band(0, 2) | band(4, 5)
    assert apart != band(0, 5)
    assert apart.dense(6, 1).flatten().tolist() == [True, True, True, False, True, True]


@ours
@given(masks)
def test_no_band_is_empty_or_whole_or_out_of_reach(a):
    for atom in (a & ~causal).atoms + (a | ~causal).atoms + (~a).atoms:
        if isinstance(atom, Band):
            assert atom.lo <= atom.hi
            assert atom.lo < inf
            assert atom.hi > -inf
            assert (atom.lo, atom.hi) != (-inf, inf)


def test_later_than_causal_is_one_plain_band():
    assert ~causal == band(-inf, -1)
    assert repr(~causal) == "band(-inf, -1)"
    assert band(inf, inf) == nothing
    assert band(-inf, -inf) == nothing
    assert ~band(-inf, 3) == band(4, inf)


# Masks as values.


def test_masks_are_keys_of_dicts():
    plans = {causal & key("valid"): 1, window(2): 2, everything: 3}
    assert plans[key("valid") & causal] == 1
    assert plans[band(-2, 2)] == 2
    assert plans[~nothing] == 3
    assert causal not in plans


def test_kinds_do_not_mix():
    values = [key("a"), query("a"), same("a"), same("a", "b"), causal, key("a") & key("b"), key("a") | key("b")]
    for one, other in itertools.combinations(values, 2):
        assert one != other
    assert key("a") != "a"
    assert same("a") == same("a", "a")


def test_given_tables_are_equal_to_themselves_alone():
    one, two = torch.ones(3, dtype=torch.bool), torch.ones(3, dtype=torch.bool)
    assert key(one) == key(one)
    assert hash(key(one)) == hash(key(one))
    assert key(one) != key(two)
    assert len({key(one), key(two), key(one)}) == 2
    both = key(one) & key(two)
    assert both == key(two) & key(one)
    assert hash(both) == hash(key(two) & key(one))
    assert len(both.parts) == 2
    assert key(lengths=one.long()) != key(lengths=two.long())
    assert key(lengths=[3, 2]) == key(lengths=(3, 2))


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (causal, "causal"),
        (everything, "everything"),
        (nothing, "nothing"),
        (window(2), "window(2)"),
        (window(0), "window(0)"),
        (band(1, 3), "band(1, 3)"),
        (band(-inf, 3), "band(-inf, 3)"),
        (~window(2), "band(-inf, -3) | band(3, inf)"),
        (key("valid"), 'key("valid")'),
        (query("global"), 'query("global")'),
        (same("document"), 'same("document")'),
        (same("a", "b"), 'same("a", "b")'),
        (key(lengths=[3, 2]), "key(lengths=[3, 2])"),
        (key(torch.ones(2, 5, dtype=torch.bool)), "key(<bool (2, 5)>)"),
        (key(lengths=torch.tensor([3, 2])), "key(lengths=<int64 (2,)>)"),
        (~key("valid"), '~key("valid")'),
        (key("valid") & causal, 'causal & key("valid")'),
        (window(4) | key("global") | query("global"), 'key("global") | query("global") | window(4)'),
        (~(key("a") | key("b")), '~key("a") & ~key("b")'),
        ((key("a") | causal) & same("d"), '(causal | key("a")) & same("d")'),
        (key("a") & ~key("b") | causal & same("d"), '(causal & same("d")) | (key("a") & ~key("b"))'),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_print(mask, text):
    assert repr(mask) == text


@ours
@given(st.recursive(st.sampled_from(NAMED) | bands, lambda p: st.builds(lambda a, b: a & ~b | b, p, p), max_leaves=4))
def test_what_is_printed_can_be_typed_again(a):
    typed = {
        "band": band, "causal": causal, "everything": everything, "inf": inf, "key": key, "nothing": nothing,
        "query": query, "same": same, "window": window,
    }  # fmt: skip
    assert means_the_same(eval(repr(a), typed), a)


@pytest.mark.parametrize("mask", [causal, ~key("a"), everything, nothing, key("a") & (window(2) | ~same("d", "e"))])
def test_masks_of_names_survive_copying_and_pickling(mask):
    for again in (pickle.loads(pickle.dumps(mask)), copy.deepcopy(mask), copy.copy(mask)):
        assert again == mask
        assert hash(again) == hash(mask)


def test_masks_are_frozen():
    with pytest.raises(AttributeError):
        causal.lo = 3


# What a mask reads.


def test_lengths_alone_have_a_row_for_each_number():
    """Nothing else in this call says how many rows there are."""
    expected = torch.tensor([[True, True, True, False], [True, True, False, False]])
    for lengths in ([3, 2], torch.tensor([3, 2])):
        allowed = key(lengths=lengths).dense(2, 4).broadcast_to(2, 1, 2, 4)
        assert torch.equal(allowed, expected[:, None, None].expand(2, 1, 2, 4))


@pytest.mark.parametrize("kernel", ["reference", "sdpa"])
def test_attention_over_lengths_alone_stops_each_row_at_its_own(kernel):
    q, k, v = torch.zeros(2, 1, 2, 3), torch.zeros(2, 1, 4, 3), torch.arange(4.0).expand(2, 1, 4)[..., None]
    for lengths in ([3, 2], torch.tensor([3, 2])):
        y = heedful.attend(q, k, v, mask=key(lengths=lengths), kernel=kernel)
        torch.testing.assert_close(y[:, 0, :, 0], torch.tensor([[1.0, 1.0], [0.5, 0.5]]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", ["list", "tensor"])
def test_there_is_a_length_for_each_row(kind, count):
    lengths = [1] * count if kind == "list" else torch.ones(count, dtype=torch.int64)
    at = torch.arange(4).expand(3, 4)
    with pytest.raises(ValueError, match="3"):
        key(lengths=lengths).dense(at, at)


@pytest.mark.parametrize("kernel", ["reference", "sdpa"])
@pytest.mark.parametrize("rows", [1, 3])
def test_attention_refuses_a_mask_for_another_number_of_rows(rows, kernel):
    q, kv = torch.zeros(rows, 1, 2, 4), torch.zeros(rows, 1, 4, 4)
    with pytest.raises(ValueError, match="2"):
        heedful.attend(q, kv, kv, mask=key(lengths=[3, 2]), kernel=kernel)
    with pytest.raises(ValueError, match="2"):
        heedful.attend(q, kv, kv, mask=key(torch.ones(2, 4, dtype=torch.bool)), kernel=kernel)
    tables = {"valid": (None, torch.ones(2, 4, dtype=torch.bool))}
    with pytest.raises(ValueError, match="2"):
        heedful.attend(q, kv, kv, mask=key("valid"), tables=tables, kernel=kernel)
    with pytest.raises(ValueError, match="2"):
        heedful.attend(q, kv, kv, mask=causal, q_at=torch.arange(2).expand(2, 2), k_at=4, kernel=kernel)


def test_tables_are_read_by_slot_never_by_position():
    """A ring: slot 0 holds position 2. A table read by position would give other columns."""
    ring = torch.arange(4).roll(2)
    table = torch.tensor([True, False, False, False])
    assert key("filled").dense(1, ring, {"filled": (None, table)}).flatten().tolist() == table.tolist()
    assert key(table).dense(1, ring).flatten().tolist() == table.tolist()
    assert query("open").dense(ring, 1, {"open": (table, None)}).flatten().tolist() == table.tolist()
    assert key(lengths=[1]).dense(1, ring).flatten().tolist() == table.tolist()
    labels = torch.tensor([7, 8, 8, 9])
    allowed = same("document").dense(torch.tensor([3]), ring, {"document": (torch.tensor([8]), labels)})
    assert allowed.flatten().tolist() == [False, True, True, False]


def test_bands_compare_positions_never_slots():
    ring = torch.arange(4).roll(2)
    assert ring.tolist() == [2, 3, 0, 1]
    assert causal.dense(torch.tensor([1]), ring).flatten().tolist() == [False, False, True, True]
    assert (causal & key(ring < 4)).dense(torch.tensor([2]), ring).flatten().tolist() == [True, False, True, True]


def test_a_length_stands_for_counting_from_zero():
    assert torch.equal(window(1).dense(3, 5), window(1).dense(torch.arange(3), torch.arange(5)))


def test_tables_may_differ_by_head():
    table = torch.tensor([[[True, False], [False, True]]])
    assert key(table).dense(1, 2)[0, :, 0].tolist() == [[True, False], [False, True]]


def test_no_slots_give_an_empty_answer():
    assert causal.dense(0, 3).shape[-2:] == (0, 3)
    assert (key("valid") & causal).dense(2, 0, {"valid": torch.zeros(1, 0, dtype=torch.bool)}).shape[-2:] == (2, 0)


@ours
@given(masks)
def test_never_looks_ahead_is_true_where_it_is_said(a):
    if not a.looks_ahead:
        later = ~causal.dense(Q_AT, K_AT)
        assert not (dense(a) & later).any()


def test_who_looks_ahead():
    for mask in (causal, nothing, band(3, 9), causal & key("a"), causal & ~key("a"), (causal | key("a")) & band(0, 4)):
        assert not mask.looks_ahead
    for mask in (everything, window(1), ~causal, key("a"), causal | key("a"), ~(causal & key("a"))):
        assert mask.looks_ahead


# What a mask refuses.


def test_a_mask_is_no_truth_value():
    for ask in (bool, lambda mask: mask and causal, lambda mask: not mask):
        with pytest.raises(TypeError, match=r'causal & key\("valid"\) is a mask'):
            ask(causal & key("valid"))


def test_masks_join_masks_alone():
    for join in (lambda: causal & 3, lambda: causal | True, lambda: torch.ones(2, dtype=torch.bool) & causal):
        with pytest.raises(TypeError):
            join()


def test_an_unknown_table_suggests_the_nearest():
    tables = {"valid": torch.ones(3, dtype=torch.bool), "document": torch.zeros(3, dtype=torch.int64)}
    with pytest.raises(
        ValueError, match=r'same\("documents"\).*there are: "valid", "document"; did you mean "document"'
    ):
        same("documents").dense(3, 3, tables)
    with pytest.raises(ValueError, match=r'no table "zzz" for the queries; .*tables=\{"zzz": \.\.\.\}'):
        query("zzz").dense(3, 3, tables)
    with pytest.raises(ValueError, match="there are: none"):
        key("valid").dense(3, 3)
    with pytest.raises(ValueError, match='no table "valid" for the keys'):
        key("valid").dense(3, 3, {"valid": (tables["valid"], None)})


def test_a_table_has_an_entry_for_each_slot():
    with pytest.raises(ValueError, match=r'key\("valid"\) has 4 slots, this call has 3 keys'):
        key("valid").dense(4, 3, {"valid": torch.ones(4, dtype=torch.bool)})
    with pytest.raises(ValueError, match=r"query\(<bool \(2, 5\)>\) has 5 slots, this call has 4 queries"):
        query(torch.ones(2, 5, dtype=torch.bool)).dense(4, 3)
    with pytest.raises(ValueError, match=r'same\("d"\) has 4 slots, this call has 3 keys'):
        same("d").dense(4, 3, {"d": torch.ones(4, dtype=torch.int64)})


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.uint8])
@pytest.mark.parametrize("atom", [key, query])
def test_a_table_of_who_may_look_is_bool(atom, dtype):
    with pytest.raises(ValueError, match=r"is bool: try table\.bool\(\)"):
        atom(torch.ones(3, dtype=dtype)).dense(3, 3)
    with pytest.raises(ValueError, match=rf'{atom.__name__}\("valid"\) reads'):
        atom("valid").dense(3, 3, {"valid": torch.ones(3, dtype=dtype)})


def test_lengths_end_with_the_keys():
    with pytest.raises(ValueError, match=r"key\(lengths=\[3, 5\]\) counts up to 5 keys, this call has 4"):
        key(lengths=[3, 5]).dense(2, 4)


def test_lengths_are_integers():
    with pytest.raises(ValueError, match="lengths are integers"):
        key(lengths=torch.tensor([2.0]))
    with pytest.raises(ValueError, match="lengths are integers"):
        key(lengths=torch.tensor([[2]]))
    with pytest.raises((TypeError, ValueError)):
        key(lengths=[2.5])


def test_what_makes_no_mask():
    for make in (lambda: key(), lambda: key("a", lengths=[1]), lambda: key(3), lambda: same("a", 3)):
        with pytest.raises(TypeError):
            make()
    with pytest.raises(ValueError, match=r"window\(-1\)"):
        window(-1)
    with pytest.raises(ValueError, match=r"band\(0\.5, 2\): positions are integers"):
        band(0.5, 2)
    with pytest.raises(ValueError, match="a table has shape"):
        key(torch.ones(1, 1, 1, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="positions are integers"):
        causal.dense(torch.zeros(3), 3)
    with pytest.raises(ValueError, match="q_at"):
        causal.dense(torch.zeros(1, 1, 3, dtype=torch.int64), 3)
    with pytest.raises(ValueError, match="q_at"):
        causal.dense(torch.tensor(3), 3)
