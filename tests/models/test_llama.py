"""LLaMA equals `transformers`' LLaMA: logits, gradients and greedy decoding, through a folder."""

import random

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import heedful
from heedful.convert import FAMILIES
from tests.models.parity import (
    DTYPES,
    build,
    compare_decoders,
    compare_greedy_decoders,
)

# A head width is even, for rotary turns pairs of columns; nothing else here is round.
CONFIGURATIONS = {
    "grouped": {"hidden_size": 36, "num_attention_heads": 6, "num_key_value_heads": 2, "num_hidden_layers": 2},
    "one-kv-head": {"hidden_size": 30, "num_attention_heads": 3, "num_key_value_heads": 1, "num_hidden_layers": 3},
    "as-many-kv-heads": {"hidden_size": 12, "num_attention_heads": 6, "num_hidden_layers": 1, "hidden_act": "gelu"},
    "head-width-apart": {
        "hidden_size": 21,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "num_hidden_layers": 2,
        "head_dim": 10,
    },
    "biases": {
        "hidden_size": 20,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_hidden_layers": 2,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "tied": {
        "hidden_size": 28,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-2,
        "hidden_act": "relu",
    },
    "linear": {
        "hidden_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 500.0},
        "attention_bias": True,
    },
    "llama3": {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_hidden_layers": 2,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 700.0,
            "factor": 6.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 60,
        },
        "mlp_bias": True,
    },
    "base-and-head-width-apart": {
        "hidden_size": 18,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "num_hidden_layers": 4,
        "head_dim": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 17.0},
        "tie_word_embeddings": True,
    },
}


def config(vocab, inner=27, **settings):
    return LlamaConfig(vocab_size=vocab, intermediate_size=inner, max_position_embeddings=128, **settings)


def drawn(seed):
    """A configuration at random."""
    pick = random.Random(seed).choice
    heads, each = pick([2, 4, 6]), pick([2, 6, 10])
    stretch = {"rope_type": pick(["default", "linear", "llama3"]), "rope_theta": pick([10.0, 300.0, 10000.0])}
    if stretch["rope_type"] != "default":
        stretch["factor"] = pick([2.0, 7.0])
    if stretch["rope_type"] == "llama3":
        stretch |= {"low_freq_factor": 1.0, "high_freq_factor": 3.0, "original_max_position_embeddings": 40}
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": pick([1, heads // 2, heads]),
        "hidden_size": heads * each,
        "head_dim": pick([None, 4, 14]),
        "num_hidden_layers": pick([1, 2, 3]),
        "hidden_act": pick(["silu", "gelu", "gelu_new", "relu"]),
        "rms_norm_eps": pick([1e-6, 1e-5, 1e-1]),
        "attention_bias": pick([True, False]),
        "mlp_bias": pick([True, False]),
        "tie_word_embeddings": pick([True, False]),
        "rope_parameters": stretch,
    }


def compare(settings, seed, side, dtype, folder):
    torch.manual_seed(seed)
    vocab, length = 31 + 2 * seed, 8 + seed
    # Their eager attention makes NaN in float64: its masks do not fit into the float32 of its softmax.
    attention = "eager" if seed % 2 and dtype == torch.float32 else "sdpa"
    theirs = build(LlamaForCausalLM, config(vocab, 19 + 5 * seed, **settings), attention, dtype)
    compare_decoders(FAMILIES["llama"], theirs, vocab, length, side, dtype, folder)


@DTYPES
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_logits_and_gradients_equal_transformers(name, side, dtype, tmp_path):
    compare(CONFIGURATIONS[name], list(CONFIGURATIONS).index(name), side, dtype, tmp_path)


@DTYPES
@pytest.mark.parametrize("seed", range(8))
def test_drawn_configurations_equal_transformers(seed, dtype, tmp_path):
    compare(drawn(seed), seed, "left" if seed % 4 < 2 else "right", dtype, tmp_path)


def test_the_llama3_configuration_has_fast_slow_and_mixed_pairs():
    """Otherwise the comparison above would not tell one kind of stretching from another."""
    stretch = {"factor": 6.0, "low": 1.0, "high": 4.0, "original": 60}
    plain = heedful.position.geometric(16, 700.0)
    shares = [s / f for s, f in zip(heedful.position.llama3(plain, **stretch), plain, strict=True)]
    assert shares[0] == 1
    assert any(1 / 6 < share < 1 for share in shares)
    assert shares[-1] == pytest.approx(1 / 6)


@pytest.mark.parametrize("cache", [heedful.Growing, lambda: heedful.Fixed(80)], ids=["growing", "fixed"])
def test_greedy_decoding_with_a_cache_is_that_without_and_that_of_transformers(cache, tmp_path):
    torch.manual_seed(2)
    theirs = build(LlamaForCausalLM, config(41, **CONFIGURATIONS["grouped"]), least=0.3, most=0.6)
    compare_greedy_decoders(theirs, cache(), tmp_path)
