"""The mistakes that people make first: each message says what was asked for, the shapes, and what would work."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from heedful import Attention, Fixed, Growing, attend, load, models, save, select
from heedful.attention import choose
from heedful.block import Dropouts, FeedForward
from heedful.mask import causal, key, query, same, window
from heedful.position import Learned, Rotary, geometric

Q = torch.randn(2, 4, 5, 8)
IDS = torch.arange(6)[None]


def gpt(**more: Any) -> Any:
    return models.gpt(11, 8, 1, 2, 16, **more).eval()


def translator() -> Any:
    return models.transformer(11, 8, 1, 2, 16).eval()


def llama_with_stretch(kind: str) -> Any:
    return models.llama(11, 8, 1, 2, 2, 16, stretch={"kind": kind})


# name -> (the mistake, what the message must say)
MISTAKES: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "heads do not divide the width": (
        lambda: Attention(512, 7),
        ("heads=7 does not divide width=512", "try 8"),
    ),
    "heads of a recipe do not divide its width": (
        lambda: models.gpt(width=30, heads=4),
        ("heads=4 does not divide width=30", "try 3"),
    ),
    "groups do not divide the heads": (
        lambda: Attention(512, 8, kv_heads=3),
        ("kv_heads=3 does not divide heads=8",),
    ),
    "x of another width": (
        lambda: Attention(8, 2)(torch.randn(1, 5, 16)),
        ("(1, 5, 16)", "width is 8"),
    ),
    "q and k of different widths": (
        lambda: attend(Q, torch.randn(2, 4, 5, 6), torch.randn(2, 4, 5, 6)),
        ("one width", "q (2, 4, 5, 8)", "k (2, 4, 5, 6)"),
    ),
    "no batch or heads axis": (
        lambda: attend(Q[0], Q[0], Q[0]),
        ("(batch, heads, length, width)", "q (4, 5, 8)", "[None]"),
    ),
    "keys and values of different lengths": (
        lambda: attend(Q, Q, Q[:, :, :3]),
        ("each key needs one value", "v (2, 4, 3, 8)"),
    ),
    "a table of the wrong length": (
        lambda: attend(Q, Q, Q, mask=key(torch.ones(4, dtype=torch.bool))),
        ("key(<bool (4,)>)", "has 4 slots", "this call has 5 keys"),
    ),
    "a named table of the wrong length": (
        lambda: gpt()(IDS, valid=torch.ones(1, 5, dtype=torch.bool)),
        ("valid has shape (1, 5)", "6 slots", "give (1, 6)"),
    ),
    "a table that is not bool": (
        lambda: attend(Q, Q, Q, mask=key(torch.ones(5))),
        ("float32", "bool", "table.bool()"),
    ),
    "valid as numbers": (
        lambda: gpt()(IDS, valid=torch.ones(1, 6)),
        ("valid is torch.float32", "must be bool"),
    ),
    "lengths beyond the keys": (
        lambda: attend(Q, Q, Q, mask=key(lengths=[3, 9])),
        ("key(lengths=[3, 9])", "up to 9 keys", "this call has 5"),
    ),
    "positions missing": (
        lambda: attend(Q[:, :, :2], Q, Q, mask=causal & window(3)),
        ("band(0, 3)", "2 queries meet 5 keys", "q_at=torch.arange(3, 5), k_at=5"),
    ),
    "positions that are not integers": (
        lambda: attend(Q, Q, Q, mask=causal, q_at=torch.linspace(0, 1, 5), k_at=5),
        ("q_at is torch.float32", "positions are integers"),
    ),
    "positions of the wrong number": (
        lambda: attend(Q, Q, Q, mask=causal, q_at=torch.arange(4), k_at=5),
        ("q_at has 4 positions", "5 queries"),
    ),
    "a text longer than the table of positions": (
        lambda: gpt()(torch.zeros(1, 17, dtype=torch.long)),
        ("17 positions", "0..15", "shorten"),
    ),
    "a position beyond the table": (
        lambda: Learned(16, 8)(torch.tensor([3, 16])),
        ("position 16", "0..15", "longer table"),
    ),
    "an id beyond the vocabulary": (
        lambda: gpt()(IDS + 8),
        ("id 13", "0..10", "tokenizer"),
    ),
    "a negative id": (
        lambda: gpt()(IDS - 1),
        ("id -1", "0..10"),
    ),
    "ids that are not integers": (
        lambda: gpt()(IDS.float()),
        ("ids are torch.float32", "integers"),
    ),
    "ids without a batch axis": (
        lambda: gpt()(IDS[0]),
        ("ids has shape (6,)", "ids[None]"),
    ),
    "different dtypes": (
        lambda: attend(Q, Q.double(), Q.double()),
        ("q is torch.float32", "k torch.float64", "k.to(q.dtype)"),
    ),
    "integers for attention": (
        lambda: attend(Q.long(), Q.long(), Q.long()),
        ("torch.int64", "q.float()"),
    ),
    "different devices": (
        lambda: attend(Q, Q.to("meta"), Q.to("meta")),
        ("q is on cpu", "k on meta", "one device"),
    ),
    "ids on another device than the model": (
        lambda: gpt()(IDS.to("meta")),
        ("ids are on meta", "the model is on cpu", "ids.to('cpu')"),
    ),
    "cross-attention without a memory": (
        lambda: Attention(8, 2, reads="memory")(torch.randn(1, 5, 8)),
        ("cross-attention", "give the encoder's output"),
    ),
    "an encoder-decoder without a source": (
        lambda: translator()(None, IDS),
        ("no source", "first call with a cache"),
    ),
    "a document table on one side alone": (
        lambda: translator()(IDS, IDS, target_document=torch.zeros(1, 6, dtype=torch.long)),
        ("queries have a document table", "give both or neither"),
    ),
    "a source that nothing is called": (
        lambda: Attention(8, 2, reads="other")(torch.randn(1, 5, 8)),
        ('"own" or "memory", not "other"',),
    ),
    "a table for another number of heads": (
        lambda: attend(Q, Q, Q, mask=key(torch.ones(2, 3, 5, dtype=torch.bool))),
        ("speak of 3 heads", "q has 4"),
    ),
    "tables for different numbers of heads": (
        lambda: (key(torch.ones(2, 3, 5).bool()) & key(torch.ones(2, 4, 5).bool())).dense(5, 5),
        ("tables of 3 and of 4 heads",),
    ),
    "a table on another device": (
        lambda: attend(Q, Q, Q, mask=key(torch.ones(5, dtype=torch.bool, device="meta"))),
        ("reads a table on meta", "the call is on cpu"),
    ),
    "valid on another device": (
        lambda: gpt()(IDS, valid=torch.ones(1, 6, dtype=torch.bool, device="meta")),
        ("valid is on meta", "the ids are on cpu"),
    ),
    "a source and a target of different batches": (
        lambda: translator()(IDS.expand(3, 6), IDS.expand(2, 6)),
        ("2 rows look at a memory of 3",),
    ),
    "no heads": (
        lambda: Attention(8, 0),
        ("heads=0", "at least one"),
    ),
    "ids with an axis too many": (
        lambda: gpt()(IDS[..., None]),
        ("(1, 6, 1)", "give (batch, length)"),
    ),
    "a document that comes back": (
        lambda: gpt()(IDS, document=torch.tensor([[0, 0, 1, 1, 0, 0]])),
        ("each its own label",),
    ),
    "a misspelt table": (
        lambda: attend(Q, Q, Q, mask=key("vaild"), tables={"valid": torch.ones(5, dtype=torch.bool)}),
        ('key("vaild")', 'there are: "valid"', 'did you mean "valid"?'),
    ),
    "a table that was never given": (
        lambda: attend(Q, Q, Q, mask=same("document")),
        ('no table "document" for the queries', 'tables={"document": ...}'),
    ),
    "an unknown kernel": (
        lambda: choose(causal, kernel="flash"),
        ('kernel="flash"', "'reference'", "'sdpa'"),
    ),
    "a cache too small": (
        lambda: gpt()(IDS, cache=Fixed(4)),
        ("room for 4 slots", "6 more do not fit", "Fixed(6)"),
    ),
    "a mask that looks ahead, with a cache": (
        lambda: Attention(8, 2)(torch.randn(1, 3, 8), cached(Growing())),
        ("everything", "later ones", "causal & (...)"),
    ),
    "documents with a cache and no positions": (
        lambda: gpt()(IDS, document=torch.zeros(1, 6, dtype=torch.long), cache=Growing()),
        ("give at",),
    ),
    "rotary on too narrow a head": (
        lambda: Rotary(geometric(8))(torch.randn(1, 1, 3, 4), torch.arange(3)),
        ("turns 8 columns", "a head has 4", "2 frequencies"),
    ),
    "a band with a fraction": (
        lambda: window(1.5),  # type: ignore[arg-type]
        ("band(-1.5, 1.5)", "integers"),
    ),
    "an unknown place of dropout": (
        lambda: gpt(dropout_at={"atention": 0.1}),
        ('no dropout place "atention"', "attention, inner, branch, sum, embedding"),
    ),
    "a chance that is none": (
        lambda: Dropouts.at(("branch",), 1.5),
        ("dropout branch=1.5", "from 0 to below 1"),
    ),
    "an unknown activation": (
        lambda: FeedForward(8, 16, "swiglu"),
        ('no activation "swiglu"', "relu, gelu"),
    ),
    "an unknown stretching": (
        lambda: llama_with_stretch("yarm"),
        ("kind='yarm'", "linear, llama3"),
    ),
    "a folder that is none": (
        lambda: load("no/such/folder"),
        ("no/such/folder is not a folder", "config.json"),
    ),
    "a model that no recipe built": (
        lambda: save(without_recipe(), "never-written"),
        ("not built by a recipe", "@heedful.recipe"),
    ),
    "nothing selected": (
        lambda: select(gpt(), "layers.*.atention"),
        ('"layers.*.atention"', "its paths begin: embedding"),
    ),
}


def cached(cache: Growing) -> Any:
    from heedful.context import Context
    from heedful.side import side

    return Context.begin(side(torch.zeros(1, 3, 8)), cache=cache)


def without_recipe() -> Any:
    model = gpt()
    model.recipe = None
    return model


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_with_what_would_work(name: str) -> None:
    mistake, says = MISTAKES[name]
    with pytest.raises(ValueError) as raised:  # noqa: PT011  the message is what is tested
        mistake()
    message = str(raised.value)
    for part in says:
        assert part in message, message


def test_a_mask_is_no_truth_value() -> None:
    with pytest.raises(TypeError, match=r"causal is a mask.*& \| ~"):
        bool(causal)
    with pytest.raises(TypeError, match="causal"):
        causal and query("seen")


def test_a_tensor_is_no_mask_and_a_bias_is_no_tuple() -> None:
    """What one tries who comes from PyTorch's own attention."""
    with pytest.raises(TypeError, match=r"mask is a Tensor; it must be an expression: .*key\(table\)"):
        attend(Q, Q, Q, mask=torch.ones(5, 5).bool())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="mask is a NoneType"):
        attend(Q, Q, Q, mask=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"give a tuple: bias=\(it,\)"):
        attend(Q, Q, Q, bias=torch.nn.Tanh())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="kind is a list; a table of facts is a tensor"):
        gpt()(IDS, tables={"kind": [0, 1]})


def test_a_recipe_names_its_arguments() -> None:
    from heedful import recipe

    with pytest.raises(TypeError, match=r"a recipe names each of its arguments"):

        @recipe
        def loose(**more: int) -> Any:
            return gpt(**more)

    with pytest.raises(ValueError, match='heedful has a recipe "llama" already'):

        @recipe
        def llama(vocab: int = 11) -> Any:
            return gpt()


def test_the_package_names_what_it_has() -> None:
    import heedful

    with pytest.raises(AttributeError, match=r"heedful has no 'atend'; it has: .*attend"):
        heedful.atend  # noqa: B018


def test_there_are_at_least_twenty() -> None:
    assert len(MISTAKES) >= 20
