"""Hugging Face's models, and heedful's with the same weights."""

from __future__ import annotations

import tempfile
from typing import Any

import torch

import heedful
from heedful.model import Shell


def marian(vocab: int, width: int, depth: int, heads: int, inner: int, dropout: float = 0.0) -> Any:
    """Hugging Face's Marian, its attention fused; id 0 pads and starts, id 2 ends as heedful's tokenizers have it."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=vocab, d_model=width, encoder_layers=depth, decoder_layers=depth, encoder_ffn_dim=inner,
        decoder_ffn_dim=inner, encoder_attention_heads=heads, decoder_attention_heads=heads, dropout=dropout,
        attention_dropout=0.0, activation_dropout=0.0, activation_function="swish", scale_embedding=True,
        pad_token_id=0, decoder_start_token_id=1, eos_token_id=2, forced_eos_token_id=None,
        max_position_embeddings=512,
    )  # fmt: skip
    return MarianMTModel._from_config(config, attn_implementation="sdpa")


def same(theirs: Any, dtype: torch.dtype | None = None) -> Shell:
    """heedful's model with the other's weights, through a folder on disk."""
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return heedful.load(folder, dtype=dtype)


def quiet() -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
