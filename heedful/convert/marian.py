"""Marian's folders (OPUS-MT): the sinusoids are computed anew, the head's bias has a name of its own."""

from collections.abc import Callable
from typing import Any

from heedful.convert.table import ACTIVATIONS, Config, Family, Row, setting


def _alike(name: str, default: Any) -> Callable[[Config], Any]:
    """A setting that their encoder and decoder may each have, and ours share."""

    def read(config: Config) -> Any:
        encoder, decoder = (config.get(f"{side}_{name}", default) for side in ("encoder", "decoder"))
        if encoder != decoder:
            raise ValueError(
                f"config.json: encoder_{name}={encoder} and decoder_{name}={decoder}; they must be equal here"
            )
        return encoder

    return read


def _one_vocabulary(config: Config) -> bool:
    return bool(config.get("share_encoder_decoder_embeddings", True))


def _vocab(config: Config) -> Any:
    one = _one_vocabulary(config)
    return config["vocab_size"] if one else config.get("decoder_vocab_size") or config["vocab_size"]


def _source_vocab(config: Config) -> Any:
    """None where source and target have one table; without tying, one vocabulary still has two."""
    one_table = _one_vocabulary(config) and config.get("tie_word_embeddings", True)
    return None if one_table else config["vocab_size"]


def _attention(side: str, theirs: str, ours: str) -> tuple[Row, ...]:
    their, our = f"model.{side}.layers.{{n}}.{theirs}", f"{side}.layers.{{n}}.{ours}"
    return (
        Row(f"{their}.q_proj", f"{our}.query"),
        Row(f"{their}.k_proj", f"{our}.key"),
        Row(f"{their}.v_proj", f"{our}.value"),
        Row(f"{their}.out_proj", f"{our}.out"),
        Row(f"{their}_layer_norm", f"{our}_norm"),
    )


def _feedforward(side: str) -> tuple[Row, ...]:
    their, our = f"model.{side}.layers.{{n}}", f"{side}.layers.{{n}}.feedforward"
    return (
        Row(f"{their}.fc1", f"{our}.up"),
        Row(f"{their}.fc2", f"{our}.down"),
        Row(f"{their}.final_layer_norm", f"{our}_norm"),
    )


MARIAN = Family(
    recipe="marian",
    arguments={
        "vocab": _vocab,
        "source_vocab": _source_vocab,
        "width": setting("d_model", 1024),
        "depth": setting("encoder_layers", 12),
        "decoder_depth": setting("decoder_layers", 12),
        "heads": _alike("attention_heads", 16),
        "inner": _alike("ffn_dim", 4096),
        "tied": setting("tie_word_embeddings", True),
        "activation": setting("activation_function", "gelu", ACTIVATIONS),
        "scaled": setting("scale_embedding", False),
        "spread": setting("init_std", 0.02),
        "dropout": setting("dropout", 0.1),
        "dropout_at": lambda config: {
            "attention": config.get("attention_dropout", 0.0),
            "inner": config.get("activation_dropout", 0.0),
        },
    },
    rows=(
        Row("model.encoder.embed_tokens", "encoder.embedding.tokens", also="model.shared"),
        Row("model.decoder.embed_tokens", "decoder.embedding.tokens", also="model.shared"),
        *_attention("encoder", "self_attn", "attention"),
        *_feedforward("encoder"),
        *_attention("decoder", "self_attn", "attention"),
        *_attention("decoder", "encoder_attn", "cross"),
        *_feedforward("decoder"),
        Row("lm_head.weight", "decoder.head.weight", whole=True),
        Row("final_logits_bias", "decoder.head.bias", whole=True),
    ),
    only={"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "normalize_before": False, "add_final_layer_norm": False},
    # Tables computed anew; copies of one that is shared.
    surplus=(
        "model.*coder.embed_positions.weight",
        "model.*coder.embed_tokens.weight",
        "model.shared.weight",
        "lm_head.weight",
    ),
)
