"""Hidden states to the vocabulary, and the table that both ends may share."""

import copy

import pytest
import torch
from torch import nn

from heedful.head import vocabulary
from heedful.models import gpt, llama, transformer


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_products_with_every_word(tied, biases):
    tokens = nn.Embedding(7, 4).double()
    head = vocabulary(tokens, tied=tied, biases=biases).double()
    x = draw(2, 3, 4)
    expected = torch.einsum("bnw,vw->bnv", x, tokens.weight if tied else head.weight)
    if biases:
        head.bias.data = draw(7, seed=1)
        expected = expected + head.bias
    assert (head.bias is not None) == biases
    torch.testing.assert_close(head(x), expected, atol=1e-13, rtol=0)


def test_a_tied_head_is_the_table():
    tokens = nn.Embedding(7, 4)
    head = vocabulary(tokens)
    assert head.weight is tokens.weight
    assert head.weight.data_ptr() == tokens.weight.data_ptr()
    with torch.no_grad():
        tokens.weight[3] = 9
    assert head.weight[3].tolist() == [9] * 4


def test_an_untied_head_has_a_matrix_of_its_own():
    tokens = nn.Embedding(7, 4)
    head = vocabulary(tokens, tied=False)
    assert head.weight.shape == (7, 4)
    assert head.weight.data_ptr() != tokens.weight.data_ptr()


def test_a_shared_table_counts_once():
    tokens = nn.Embedding(7, 4)
    assert count(nn.ModuleList([tokens, vocabulary(tokens)])) == 28
    assert count(nn.ModuleList([tokens, vocabulary(tokens, tied=False)])) == 56
    assert count(nn.ModuleList([tokens, vocabulary(tokens, biases=True)])) == 35


def test_gradients_of_both_ends_meet_in_the_table():
    tokens = nn.Embedding(5, 3).double()
    ids = torch.tensor([[0, 2, 2]])

    def both(read, write):
        return torch.einsum("bnw,vw->bnv", read[ids], write).square().sum()

    vocabulary(tokens)(tokens(ids)).square().sum().backward()
    read, write = (tokens.weight.detach().clone().requires_grad_() for _ in range(2))
    both(read, write).backward()
    torch.testing.assert_close(tokens.weight.grad, read.grad + write.grad, atol=1e-12, rtol=1e-12)


def test_gradients():
    head = vocabulary(nn.Embedding(5, 3), biases=True).double()
    assert torch.autograd.gradcheck(head, draw(2, 2, 3).requires_grad_())


SMALL = {
    gpt: {"width": 8, "depth": 1, "heads": 2, "context": 4},
    llama: {"width": 8, "depth": 1, "heads": 2, "inner": 12},
    transformer: {"width": 8, "depth": 1, "heads": 2, "inner": 12},
}


@pytest.mark.parametrize("build", SMALL, ids=lambda build: build.__name__)
def test_tying_saves_one_table(build):
    tied, untied = build(13, tied=True, **SMALL[build]), build(13, tied=False, **SMALL[build])
    assert count(untied) - count(tied) == 13 * 8
    decoder = tied.decoder if build is transformer else tied
    assert decoder.head.weight is decoder.embedding.tokens.weight
    assert decoder.head.weight.std() == decoder.embedding.tokens.weight.std()


@pytest.mark.parametrize("move", [copy.deepcopy, lambda model: model.to(torch.bfloat16)], ids=["deepcopy", "cast"])
def test_a_tie_survives_moving_the_model(move):
    model = move(transformer(13, **SMALL[transformer]))
    table = model.decoder.embedding.tokens.weight
    assert model.decoder.head.weight is table
    assert model.encoder.embedding.tokens.weight is table
