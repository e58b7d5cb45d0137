"""A fresh model is spread as the published code spreads it: group by group, and in its first loss.

A group is one kind of tensor over all layers. Constants (zero biases, unit norms) are equal exactly.
"""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
)

from heedful import models
from heedful.convert import FAMILIES
from tests.models.parity import named, under_our_names

SPREAD = 0.03  # standard deviations differ by less, and means by less of a standard deviation
LOSS = 0.01

VOCAB, WIDTH, INNER = 2500, 192, 768


def groups(tensors):
    found = {}
    for name, tensor in tensors.items():
        found.setdefault(re.sub(r"\.\d+\.", ".*.", name), []).append(tensor.detach().double().flatten())
    return {name: torch.cat(parts) for name, parts in found.items()}


def same_spread(ours, theirs):
    """Both are tensors by our names."""
    ours, theirs = groups(ours), groups(theirs)
    assert ours.keys() == theirs.keys()
    for name, x in ours.items():
        y = theirs[name]
        if len(y.unique()) == 1:
            assert torch.equal(x, y), f"{name} is constant in the published code: {y[0]}"
            continue
        assert abs(x.std() / y.std() - 1) < SPREAD, f"{name}: {x.std():.5f}, published {y.std():.5f}"
        assert abs(x.mean() - y.mean()) < SPREAD * y.std(), f"{name}: mean {x.mean():.6f}, published {y.mean():.6f}"
    return ours


def same_loss(ours, theirs, targets):
    a, b = (F.cross_entropy(logits.flatten(0, 1), targets.flatten()) for logits in (ours, theirs))
    assert abs(a / b - 1) < LOSS, f"{a:.4f}, published {b:.4f}"


@pytest.mark.parametrize("depth", [2, 5])
def test_gpt_is_spread_as_gpt2(depth):
    ours = models.gpt(vocab=VOCAB, width=WIDTH, depth=depth, heads=4, context=256).eval()
    config = GPT2Config(vocab_size=VOCAB, n_embd=WIDTH, n_layer=depth, n_head=4, n_positions=256)
    theirs = GPT2LMHeadModel(config).eval()
    spreads = same_spread(named(ours), under_our_names(FAMILIES["gpt2"], theirs.state_dict(), ours))
    # What writes into the residual is smaller by the root of how often it is added.
    for last in ("attention.out", "feedforward.down"):
        assert spreads[f"layers.*.{last}.weight"].std() == pytest.approx(0.02 / math.sqrt(2 * depth), rel=SPREAD)
    ids = torch.randint(VOCAB, (16, 129))
    with torch.no_grad():
        same_loss(ours(ids[:, :-1]), theirs(ids[:, :-1]).logits, ids[:, 1:])


@pytest.mark.parametrize("spread", [0.02, 0.07])
def test_llama_is_spread_as_llama(spread):
    ours = models.llama(
        vocab=VOCAB,
        width=WIDTH,
        depth=3,
        heads=4,
        kv_heads=2,
        inner=INNER,
        attention_biases=True,
        feedforward_biases=True,
        spread=spread,
    ).eval()
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=INNER,
        attention_bias=True,
        mlp_bias=True,
        initializer_range=spread,
    )
    theirs = LlamaForCausalLM(config).eval()
    same_spread(named(ours), under_our_names(FAMILIES["llama"], theirs.state_dict(), ours))
    ids = torch.randint(VOCAB, (16, 129))
    with torch.no_grad():
        same_loss(ours(ids[:, :-1]), theirs(ids[:, :-1]).logits, ids[:, 1:])


@pytest.mark.parametrize("tied", [True, False])
def test_marian_is_spread_as_marian(tied):
    ours = models.marian(
        vocab=VOCAB, width=WIDTH, depth=2, heads=4, inner=INNER, tied=tied, source_vocab=None if tied else VOCAB
    ).eval()
    config = MarianConfig(
        vocab_size=VOCAB,
        d_model=WIDTH,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=INNER,
        decoder_ffn_dim=INNER,
        activation_function="swish",
        scale_embedding=True,
        max_position_embeddings=256,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
        tie_word_embeddings=tied,
    )
    theirs = MarianMTModel(config).eval()
    same_spread(named(ours), under_our_names(FAMILIES["marian"], theirs.state_dict(), ours))
    source, target = torch.randint(1, VOCAB, (16, 64)), torch.randint(1, VOCAB, (16, 129))
    with torch.no_grad():
        logits = theirs(input_ids=source, decoder_input_ids=target[:, :-1]).logits
        same_loss(ours(source, target[:, :-1]), logits, target[:, 1:])


HEADS, DEPTH = 4, 3


def fresh(tied):
    """The paper's model written plainly, as tensors by our names: nn.Linear, its matrices made Xavier-uniform."""
    tensors = {}

    def linear(name, n, m, bias=True):
        made = nn.Linear(n, m, bias=bias)
        nn.init.xavier_uniform_(made.weight)
        tensors.update({f"{name}.{leaf}": parameter.detach() for leaf, parameter in made.named_parameters()})

    def norm(name):
        tensors.update({f"{name}.weight": torch.ones(WIDTH), f"{name}.bias": torch.zeros(WIDTH)})

    for side in ("encoder", "decoder"):
        for n in range(DEPTH):
            for attention in ("attention", "cross")[: 1 + (side == "decoder")]:
                for projection in ("query", "key", "value", "out"):
                    linear(f"{side}.layers.{n}.{attention}.{projection}", WIDTH, WIDTH)
                norm(f"{side}.layers.{n}.{attention}_norm")
            linear(f"{side}.layers.{n}.feedforward.up", WIDTH, INNER)
            linear(f"{side}.layers.{n}.feedforward.down", INNER, WIDTH)
            norm(f"{side}.layers.{n}.feedforward_norm")
    tensors["encoder.embedding.tokens.weight"] = torch.randn(VOCAB, WIDTH) / math.sqrt(WIDTH)
    if not tied:
        tensors["decoder.embedding.tokens.weight"] = torch.randn(VOCAB, WIDTH) / math.sqrt(WIDTH)
        linear("decoder.head", WIDTH, VOCAB, bias=False)
    return tensors


def written(tensors, source, target):
    """The forward over such tensors, from ids to logits."""

    def linear(name, x):
        return F.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    def attend(name, x, memory, causal=False):
        q, k, v = (
            linear(f"{name}.{projection}", of).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for projection, of in (("query", x), ("key", memory), ("value", memory))
        )
        scores = q @ k.mT / math.sqrt(WIDTH / HEADS)
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
        return linear(f"{name}.out", (scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def add(name, x, branch):
        return F.layer_norm(x + branch, (WIDTH,), tensors[f"{name}_norm.weight"], tensors[f"{name}_norm.bias"])

    def feed(name, x):
        return add(name, x, linear(f"{name}.down", linear(f"{name}.up", x).relu()))

    def embed(table, ids):
        angles = torch.arange(ids.shape[1])[:, None] / 10000 ** (torch.arange(0, WIDTH, 2) / WIDTH)
        sinusoids = torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)
        return table[ids] * math.sqrt(WIDTH) + sinusoids

    words = tensors["encoder.embedding.tokens.weight"]
    targets = tensors.get("decoder.embedding.tokens.weight", words)
    memory, x = embed(words, source), embed(targets, target)
    for n in range(DEPTH):
        at = f"encoder.layers.{n}"
        memory = add(f"{at}.attention", memory, attend(f"{at}.attention", memory, memory))
        memory = feed(f"{at}.feedforward", memory)
    for n in range(DEPTH):
        at = f"decoder.layers.{n}"
        x = add(f"{at}.attention", x, attend(f"{at}.attention", x, x, causal=True))
        x = add(f"{at}.cross", x, attend(f"{at}.cross", x, memory))
        x = feed(f"{at}.feedforward", x)
    return x @ tensors.get("decoder.head.weight", targets).mT


def joined(tensors):
    """Biases are few, so those of all linear layers are one group: each is uniform in ±1/√inputs, told in that unit."""
    found = {}
    for name, tensor in tensors.items():
        matrix = tensors.get(name.removesuffix(".bias") + ".weight")
        if name.endswith(".bias") and matrix.dim() == 2:
            in_units = tensor.detach() * math.sqrt(matrix.shape[1])
            assert 0.9 < in_units.abs().max() <= 1, name
            found["biases." + str(len(found)) + ".unit"] = in_units
        else:
            found[name] = tensor
    return found


@pytest.mark.parametrize("tied", [True, False])
def test_the_papers_model_is_spread_as_the_plainly_written_one(tied):
    ours = models.transformer(
        vocab=VOCAB, width=WIDTH, depth=DEPTH, heads=HEADS, inner=INNER, tied=tied, source_vocab=None if tied else VOCAB
    ).eval()
    theirs = fresh(tied)
    same_spread(joined(named(ours)), joined(theirs))
    source, target = torch.randint(VOCAB, (16, 64)), torch.randint(VOCAB, (16, 129))
    with torch.no_grad():
        same_loss(ours(source, target[:, :-1]), written(theirs, source, target[:, :-1]), target[:, 1:])


def test_the_plainly_written_model_computes_what_ours_does():
    """So that the losses compared above are of one function."""
    ours = models.transformer(vocab=VOCAB, width=WIDTH, depth=DEPTH, heads=HEADS, inner=INNER).eval()
    source, target = torch.randint(VOCAB, (2, 7)), torch.randint(VOCAB, (2, 5))
    with torch.no_grad():
        logits, expected = ours(source, target), written(named(ours), source, target)
    assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max()
