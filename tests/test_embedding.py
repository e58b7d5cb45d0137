"""Tokens to vectors: the formula, how positions join, and which ids are refused."""

import pytest
import torch
from torch import nn

from heedful.context import Context
from heedful.embedding import Embedding
from heedful.position import Learned, Sinusoidal, concatenate
from heedful.side import side
from heedful.trace import listen

IDS = torch.tensor([[3, 0, 3, 4], [1, 1, 2, 0]])


def table(vocab=5, width=6):
    tokens = nn.Embedding(vocab, width)
    tokens.weight.data = torch.randn(vocab, width, generator=torch.Generator().manual_seed(0))
    return tokens


def embed(embedding, ids=IDS, **facts):
    return embedding(ids, Context.begin(side(ids, **facts)))


def test_a_token_is_a_row_of_the_table():
    tokens = table()
    assert torch.equal(embed(Embedding(tokens)), tokens.weight[IDS])


def test_tokens_are_scaled_and_positions_are_not():
    tokens, position = table(), Sinusoidal(6)
    y = embed(Embedding(tokens, position, scale=6**0.5))
    expected = tokens.weight[IDS] * 6**0.5 + position(torch.arange(4)).float()
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, expected, atol=1e-6, rtol=0)


def test_learned_positions_are_added():
    tokens, position = table(), Learned(9, 6)
    assert torch.equal(embed(Embedding(tokens, position)), tokens.weight[IDS] + position.table.weight[:4])


def test_positions_may_stand_beside():
    tokens, position = table(), Sinusoidal(3)
    y = embed(Embedding(tokens, position, scale=2.0, join=concatenate))
    assert y.shape == (2, 4, 9)
    assert torch.equal(y[..., :6], tokens.weight[IDS] * 2)
    assert torch.equal(y[..., 6:], position(torch.arange(4)).float().expand(2, 4, 3))


def test_positions_are_those_of_the_side_and_not_the_slots():
    tokens, position = table(), Learned(40, 6)
    embedding = Embedding(tokens, position)
    valid = torch.tensor([[False, True, True, True], [True, True, True, True]])
    at = torch.tensor([[0, 0, 1, 2], [0, 1, 2, 3]])
    assert torch.equal(embed(embedding, valid=valid), tokens.weight[IDS] + position.table.weight[at])
    given = torch.tensor([[30, 31, 7, 7], [0, 39, 2, 1]])
    assert torch.equal(embed(embedding, at=given), tokens.weight[IDS] + position.table.weight[given])
    assert torch.equal(embed(embedding, start=20), tokens.weight[IDS] + position.table.weight[20:24])


def test_a_listener_hears_tokens_position_and_sum():
    embedding = Embedding(table(), Sinusoidal(6), scale=3.0)
    with listen(embedding) as trace:
        y = embed(embedding)
    assert list(trace) == ["tokens", "position", "sum"]
    assert torch.equal(trace["tokens"], embedding.tokens.weight[IDS])
    assert torch.equal(trace["sum"], y)


def test_the_sum_is_dropped_while_training():
    torch.manual_seed(0)
    embedding = Embedding(table(), Sinusoidal(6), dropout=0.5)
    whole, some = embed(embedding.eval()), embed(embedding.train())
    gone = some == 0
    assert 0.2 < gone.float().mean() < 0.8
    torch.testing.assert_close(some[~gone], 2 * whole[~gone])


def test_gradients():
    embedding = Embedding(table(), Sinusoidal(6), scale=6**0.5).double()
    weight = embedding.tokens.weight.detach().requires_grad_()
    context = Context.begin(side(IDS))
    assert torch.autograd.gradcheck(
        lambda weight: torch.func.functional_call(embedding, {"tokens.weight": weight}, (IDS, context)), weight
    )


def test_small_integers_are_ids_too():
    embedding = Embedding(table(), Sinusoidal(6))
    assert torch.equal(embed(embedding, IDS.int()), embed(embedding))


@pytest.mark.parametrize("shape", [(0, 4), (2, 0), (0, 0)])
def test_no_ids_give_no_vectors(shape):
    assert embed(Embedding(table(), Sinusoidal(6)), torch.zeros(shape, dtype=torch.int64)).shape == (*shape, 6)


@pytest.mark.parametrize("wrong", [5, 99, -1, -7])
def test_ids_outside_of_the_vocabulary_are_refused(wrong):
    ids = IDS.clone()
    ids[1, 2] = wrong
    with pytest.raises(ValueError, match=rf"id {wrong} is outside of the vocabulary, 0\.\.4"):
        embed(Embedding(table()), ids)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.float64, torch.int16, torch.uint8])
def test_ids_are_integers(dtype):
    with pytest.raises(ValueError, match=rf"ids are {dtype}; they must be integers \(int64 or int32\)"):
        embed(Embedding(table()), torch.zeros(2, 4, dtype=dtype))


def test_the_last_id_is_inside():
    tokens = table()
    assert torch.equal(embed(Embedding(tokens), torch.tensor([[4]]))[0, 0], tokens.weight[4])
