"""LLaMA's folders: rotary pairs in halves, grouped heads, no biases unless they say so."""

from typing import Any

from heedful.convert.table import ACTIVATIONS, Config, Family, Row, setting


def _rope(config: Config) -> dict[str, Any]:
    """Rotary settings, which have lived under three names."""
    return dict(config.get("rope_parameters") or config.get("rope_scaling") or {})


def _base(config: Config) -> float:
    return float(_rope(config).get("rope_theta") or config.get("rope_theta") or 10000.0)


def _stretch(config: Config) -> dict[str, Any] | None:
    rope = _rope(config)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return {"kind": "linear", "factor": rope["factor"]}
    if kind == "llama3":
        return {
            "kind": "llama3",
            "factor": rope["factor"],
            "low": rope["low_freq_factor"],
            "high": rope["high_freq_factor"],
            "original": rope["original_max_position_embeddings"],
        }
    raise ValueError(f"config.json: rope_type={kind!r} is not known here; known: default, linear, llama3")


LLAMA = Family(
    recipe="llama",
    arguments={
        "vocab": setting("vocab_size", 32000),
        "width": setting("hidden_size", 4096),
        "depth": setting("num_hidden_layers", 32),
        "heads": setting("num_attention_heads", 32),
        "kv_heads": setting("num_key_value_heads"),
        "inner": setting("intermediate_size", 11008),
        "head_width": setting("head_dim"),
        "base": _base,
        "stretch": _stretch,
        "activation": setting("hidden_act", "silu", ACTIVATIONS),
        "attention_biases": setting("attention_bias", False),
        "feedforward_biases": setting("mlp_bias", False),
        "epsilon": setting("rms_norm_eps", 1e-6),
        "tied": setting("tie_word_embeddings", False),
        "spread": setting("initializer_range", 0.02),
        "dropout": setting("attention_dropout", 0.0),
    },
    rows=(
        Row("model.embed_tokens", "embedding.tokens"),
        Row("model.layers.{n}.input_layernorm", "layers.{n}.attention_norm"),
        Row("model.layers.{n}.self_attn.q_proj", "layers.{n}.attention.query"),
        Row("model.layers.{n}.self_attn.k_proj", "layers.{n}.attention.key"),
        Row("model.layers.{n}.self_attn.v_proj", "layers.{n}.attention.value"),
        Row("model.layers.{n}.self_attn.o_proj", "layers.{n}.attention.out"),
        Row("model.layers.{n}.post_attention_layernorm", "layers.{n}.feedforward_norm"),
        Row("model.layers.{n}.mlp.gate_proj", "layers.{n}.feedforward.gate"),
        Row("model.layers.{n}.mlp.up_proj", "layers.{n}.feedforward.up"),
        Row("model.layers.{n}.mlp.down_proj", "layers.{n}.feedforward.down"),
        Row("model.norm", "norm"),
        Row("lm_head", "head"),
    ),
    # Frequencies are computed anew; the head's copy of a tied table.
    surplus=("model.layers.*.self_attn.rotary_emb.inv_freq", "lm_head.weight"),
)
