"""GPT-2's folders. Their matrices are (in, out), and q, k and v lie in one."""

from heedful.convert.table import ACTIVATIONS, Family, Row, setting

GPT2 = Family(
    recipe="gpt",
    arguments={
        "vocab": setting("vocab_size", 50257),
        "width": setting("n_embd", 768),
        "depth": setting("n_layer", 12),
        "heads": setting("n_head", 12),
        "context": setting("n_positions", 1024),
        "inner": setting("n_inner"),
        "activation": setting("activation_function", "gelu_new", ACTIVATIONS),
        "epsilon": setting("layer_norm_epsilon", 1e-5),
        "tied": setting("tie_word_embeddings", True),
        "dropout": setting("resid_pdrop", 0.1),
        "dropout_at": lambda config: {
            "attention": config.get("attn_pdrop", 0.1),
            "embedding": config.get("embd_pdrop", 0.1),
        },
    },
    rows=(
        Row("transformer.wte", "embedding.tokens"),
        Row("transformer.wpe", "embedding.position.table"),
        Row("transformer.h.{n}.ln_1", "layers.{n}.attention_norm"),
        Row(
            "transformer.h.{n}.attn.c_attn",
            "layers.{n}.attention.query",
            "layers.{n}.attention.key",
            "layers.{n}.attention.value",
            transposed=True,
        ),
        Row("transformer.h.{n}.attn.c_proj", "layers.{n}.attention.out", transposed=True),
        Row("transformer.h.{n}.ln_2", "layers.{n}.feedforward_norm"),
        Row("transformer.h.{n}.mlp.c_fc", "layers.{n}.feedforward.up", transposed=True),
        Row("transformer.h.{n}.mlp.c_proj", "layers.{n}.feedforward.down", transposed=True),
        Row("transformer.ln_f", "norm"),
        Row("lm_head", "head"),
    ),
    only={"add_cross_attention": False, "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    # Causal masks kept as buffers; the head's copy of a tied table.
    surplus=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias", "lm_head.weight"),
    prefix="transformer.",
)
