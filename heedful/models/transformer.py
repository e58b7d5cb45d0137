"""The Transformer: Vaswani et al. 2017, "Attention Is All You Need", arXiv:1706.03762.

Encoder and decoder, norms after each residual, sinusoidal positions, one table for source, target and head.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from heedful.attention.layer import Attention
from heedful.block import Block, Dropouts, FeedForward, LayerNorm, post
from heedful.embedding import Embedding
from heedful.head import vocabulary
from heedful.mask import causal
from heedful.model import Decoder, Encoder, EncoderDecoder
from heedful.models.recipe import recipe
from heedful.position.added import Sinusoidal, halved, interleaved


@recipe
def transformer(
    vocab: int,
    width: int = 512,
    depth: int = 6,
    heads: int = 8,
    inner: int = 2048,
    *,
    decoder_depth: int | None = None,
    source_vocab: int | None = None,
    tied: bool = True,
    dropout: float = 0.1,
    dropout_at: Mapping[str, float] | None = None,
) -> EncoderDecoder:
    """The paper's model. Base as it stands; big is width=1024, heads=16, inner=4096, dropout=0.3.

    decoder_depth   as depth if not given
    source_vocab    if given, the source has a table of its own
    tied            the head's matrix is the target's table
    dropout_at      chances by place, beside `dropout` at branch and embedding
    """
    drop = Dropouts.at(("branch", "embedding"), dropout, dropout_at)
    model = _translator(
        vocab,
        width,
        depth,
        heads,
        inner,
        decoder_depth,
        source_vocab,
        tied,
        drop,
        "relu",
        interleaved,
        math.sqrt(width),
        False,
    )
    return xavier(model)


@recipe
def marian(
    vocab: int,
    width: int = 512,
    depth: int = 6,
    heads: int = 8,
    inner: int = 2048,
    *,
    decoder_depth: int | None = None,
    source_vocab: int | None = None,
    tied: bool = True,
    activation: str = "silu",
    scaled: bool = True,
    spread: float = 0.02,
    dropout: float = 0.1,
    dropout_at: Mapping[str, float] | None = None,
) -> EncoderDecoder:
    """Marian's variant (Junczys-Dowmunt et al. 2018), as in the OPUS-MT translators.

    SiLU in the feed-forward network, sines before cosines, a bias in the head, weights N(0, spread²).

    scaled   token vectors times √width
    """
    drop = Dropouts.at(("branch", "embedding"), dropout, dropout_at)
    scale = math.sqrt(width) if scaled else 1.0
    model = _translator(
        vocab, width, depth, heads, inner, decoder_depth, source_vocab, tied, drop, activation, halved, scale, True
    )
    return normal(model, spread)


def _translator(
    vocab: int,
    width: int,
    depth: int,
    heads: int,
    inner: int,
    decoder_depth: int | None,
    source_vocab: int | None,
    tied: bool,
    drop: Dropouts,
    activation: str,
    layout: Callable[[Tensor, Tensor], Tensor],
    scale: float,
    head_biases: bool,
) -> EncoderDecoder:
    """The diagram that both variants share."""

    def embedding(tokens: nn.Embedding) -> Embedding:
        return Embedding(tokens, Sinusoidal(width, layout=layout), scale=scale, dropout=drop.embedding)

    def around(branch: nn.Module) -> post:
        return post(branch, LayerNorm(width), dropout=drop.branch, after=drop.sum)

    def attention(**looks: object) -> post:
        return around(Attention(width, heads, dropout=drop.attention, **looks))  # type: ignore[arg-type]

    def feedforward() -> post:
        return around(FeedForward(width, inner, activation, dropout=drop.inner))

    words = nn.Embedding(vocab, width)
    source_words = words if source_vocab is None else nn.Embedding(source_vocab, width)
    encoder = Encoder(
        embedding(source_words),
        [Block(attention=attention(), feedforward=feedforward()) for _ in range(depth)],
    )
    decoder = Decoder(
        embedding(words),
        [
            Block(attention=attention(mask=causal), cross=attention(reads="memory"), feedforward=feedforward())
            for _ in range(depth if decoder_depth is None else decoder_depth)
        ],
        head=vocabulary(words, tied=tied, biases=head_biases),
    )
    return EncoderDecoder(encoder, decoder)


@torch.no_grad()
def xavier(model: EncoderDecoder) -> EncoderDecoder:
    """Matrices uniform in ±√(6 / (in + out)); tables N(0, 1/width), so that a token times √width has size 1."""
    for part in model.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
    for part in model.modules():
        # After the matrices: a tied head is a table.
        if isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, std=part.embedding_dim**-0.5)
    return model


@torch.no_grad()
def normal(model: EncoderDecoder, spread: float) -> EncoderDecoder:
    """Matrices and tables N(0, spread²), biases zero."""
    for part in model.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)):
            nn.init.normal_(part.weight, std=spread)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
    return model
