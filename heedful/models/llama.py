"""LLaMA: Touvron et al. 2023, arXiv:2302.13971; grouped heads as in LLaMA 2, stretching as in LLaMA 3.1.

A decoder with rotary positions, RMS norms before each branch, a gated feed-forward network and no biases.
"""

from collections.abc import Mapping

from torch import nn

from heedful.attention.layer import Attention
from heedful.block import Block, Dropouts, Gated, RMSNorm, pre
from heedful.embedding import Embedding
from heedful.head import vocabulary
from heedful.mask import causal
from heedful.model import Decoder
from heedful.models.initial import normal
from heedful.models.recipe import recipe
from heedful.position.frequency import geometric
from heedful.position.rotary import Rotary, linear, llama3

STRETCHES = {"linear": linear, "llama3": llama3}


@recipe
def llama(
    vocab: int = 32000,
    width: int = 4096,
    depth: int = 32,
    heads: int = 32,
    kv_heads: int | None = None,
    inner: int = 11008,
    *,
    head_width: int | None = None,
    base: float = 10000.0,
    stretch: Mapping[str, object] | None = None,
    activation: str = "silu",
    attention_biases: bool = False,
    feedforward_biases: bool = False,
    epsilon: float = 1e-6,
    tied: bool = False,
    spread: float = 0.02,
    dropout: float = 0.0,
    dropout_at: Mapping[str, float] | None = None,
) -> Decoder:
    """LLaMA; 7B as it stands.

    kv_heads     as heads if not given
    head_width   width / heads if not given
    base         of the rotary frequencies
    stretch      {"kind": "linear", "factor": 4.0}, or {"kind": "llama3", ...} with what `position.llama3` takes
    spread       weights are N(0, spread²)
    dropout_at   chances by place, beside `dropout` at attention
    """
    drop = Dropouts.at(("attention",), dropout, dropout_at)
    frequencies = geometric(width // heads if head_width is None else head_width, base)
    if stretch is not None:
        how = dict(stretch)
        kind = how.pop("kind", None)
        if kind not in STRETCHES:
            raise ValueError(f"stretch kind={kind!r}; there are {', '.join(STRETCHES)}")
        frequencies = STRETCHES[str(kind)](frequencies, **how)  # type: ignore[arg-type]
    rotary = Rotary(frequencies)

    def around(branch: nn.Module) -> pre:
        return pre(branch, RMSNorm(width, epsilon), dropout=drop.branch, after=drop.sum)

    def block() -> Block:
        return Block(
            attention=around(
                Attention(
                    width,
                    heads,
                    kv_heads=kv_heads,
                    head_width=head_width,
                    mask=causal,
                    rotary=rotary,
                    biases=attention_biases,
                    dropout=drop.attention,
                )
            ),
            feedforward=around(Gated(width, inner, activation, biases=feedforward_biases, dropout=drop.inner)),
        )

    words = nn.Embedding(vocab, width)
    model = Decoder(
        Embedding(words, dropout=drop.embedding),
        [block() for _ in range(depth)],
        norm=RMSNorm(width, epsilon),
        head=vocabulary(words, tied=tied),
    )
    normal(model, spread)
    return model
