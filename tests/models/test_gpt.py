"""GPT-2 equals `transformers`' GPT-2: logits, gradients and greedy decoding, through a folder."""

import random

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import heedful
from heedful.convert import FAMILIES
from tests.models.parity import (
    DTYPES,
    build,
    compare_decoders,
    compare_greedy_decoders,
)

OFF = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}

CONFIGURATIONS = {
    "odd-head-width": {"n_embd": 21, "n_head": 3, "n_layer": 2},
    "one-head": {"n_embd": 10, "n_head": 1, "n_layer": 3, "activation_function": "relu"},
    "heads-of-width-one": {"n_embd": 6, "n_head": 6, "n_layer": 1, "activation_function": "silu"},
    "not-tied": {"n_embd": 24, "n_head": 4, "n_layer": 2, "tie_word_embeddings": False},
    "inner-set": {"n_embd": 20, "n_head": 2, "n_layer": 2, "n_inner": 33, "activation_function": "gelu"},
    "epsilon": {"n_embd": 18, "n_head": 2, "n_layer": 4, "layer_norm_epsilon": 3e-2},
    "tanh-and-not-tied": {
        "n_embd": 36,
        "n_head": 4,
        "n_layer": 1,
        "n_inner": 7,
        "activation_function": "gelu_pytorch_tanh",
        "tie_word_embeddings": False,
    },
    "swish": {"n_embd": 14, "n_head": 2, "n_layer": 2, "activation_function": "swish", "n_inner": 28},
}


def config(vocab, context, **settings):
    return GPT2Config(vocab_size=vocab, n_positions=context, **OFF, **settings)


def drawn(seed):
    """A configuration at random."""
    pick = random.Random(seed).choice
    heads = pick([1, 2, 3, 5])
    return {
        "n_head": heads,
        "n_embd": heads * pick([1, 3, 5, 7, 8]) + heads,
        "n_layer": pick([1, 2, 3]),
        "n_inner": pick([None, 5, 31, 64]),
        "activation_function": pick(["gelu_new", "gelu", "relu", "silu", "gelu_pytorch_tanh"]),
        "layer_norm_epsilon": pick([1e-6, 1e-5, 1e-1]),
        "tie_word_embeddings": pick([True, False]),
    }


def compare(settings, seed, side, dtype, folder):
    torch.manual_seed(seed)
    vocab, length = 29 + 2 * seed, 7 + seed
    theirs = build(GPT2LMHeadModel, config(vocab, length + 3, **settings), "eager" if seed % 2 else "sdpa", dtype)
    compare_decoders(FAMILIES["gpt2"], theirs, vocab, length, side, dtype, folder)


@DTYPES
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_logits_and_gradients_equal_transformers(name, side, dtype, tmp_path):
    compare(CONFIGURATIONS[name], list(CONFIGURATIONS).index(name), side, dtype, tmp_path)


@DTYPES
@pytest.mark.parametrize("seed", range(8))
def test_drawn_configurations_equal_transformers(seed, dtype, tmp_path):
    compare(drawn(seed), seed, "left" if seed % 4 < 2 else "right", dtype, tmp_path)


@pytest.mark.parametrize("cache", [heedful.Growing, lambda: heedful.Fixed(80)], ids=["growing", "fixed"])
def test_greedy_decoding_with_a_cache_is_that_without_and_that_of_transformers(cache, tmp_path):
    torch.manual_seed(5)
    settings = {"n_embd": 24, "n_head": 3, "n_layer": 2, "tie_word_embeddings": False}
    theirs = build(GPT2LMHeadModel, config(41, 76, **settings), least=0.3, most=0.6)
    compare_greedy_decoders(theirs, cache(), tmp_path)
