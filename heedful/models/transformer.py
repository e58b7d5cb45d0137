"""The Transformer: Vaswani et al. 2017, "Attention Is All You Need", arXiv:1706.03762.

Encoder and decoder, norms after each residual, sinusoidal positions, one table for source, target and head.
"""

import math
from collections.abc import Mapping

from torch import nn

from heedful.attention.layer import Attention
from heedful.block import Block, Dropouts, FeedForward, LayerNorm, post
from heedful.embedding import Embedding
from heedful.head import vocabulary
from heedful.mask import Mask, causal, everything
from heedful.model import Decoder, Encoder, EncoderDecoder
from heedful.models.initial import normal, xavier
from heedful.models.recipe import recipe
from heedful.position.added import Sinusoidal, halved


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
    model = _translator(
        words=nn.Embedding(vocab, width),
        source_words=None if source_vocab is None else nn.Embedding(source_vocab, width),
        depths=(depth, depth if decoder_depth is None else decoder_depth),
        heads=heads,
        inner=inner,
        activation="relu",
        position=Sinusoidal(width),
        scale=math.sqrt(width),
        tied=tied,
        head_biases=False,
        drop=Dropouts.at(("branch", "embedding"), dropout, dropout_at),
    )
    xavier(model)
    return model


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
    model = _translator(
        words=nn.Embedding(vocab, width),
        source_words=None if source_vocab is None else nn.Embedding(source_vocab, width),
        depths=(depth, depth if decoder_depth is None else decoder_depth),
        heads=heads,
        inner=inner,
        activation=activation,
        position=Sinusoidal(width, layout=halved),
        scale=math.sqrt(width) if scaled else 1.0,
        tied=tied,
        head_biases=True,
        drop=Dropouts.at(("branch", "embedding"), dropout, dropout_at),
    )
    normal(model, spread)
    return model


def _translator(
    *,
    words: nn.Embedding,
    source_words: nn.Embedding | None,
    depths: tuple[int, int],
    heads: int,
    inner: int,
    activation: str,
    position: nn.Module,
    scale: float,
    tied: bool,
    head_biases: bool,
    drop: Dropouts,
) -> EncoderDecoder:
    """The diagram that both variants share."""
    width = words.embedding_dim

    def embedding(tokens: nn.Embedding) -> Embedding:
        return Embedding(tokens, position, scale=scale, dropout=drop.embedding)

    def around(branch: nn.Module) -> post:
        return post(branch, LayerNorm(width), dropout=drop.branch, after=drop.sum)

    def attention(mask: Mask = everything, reads: str = "own") -> post:
        return around(Attention(width, heads, mask=mask, reads=reads, dropout=drop.attention))

    def feedforward() -> post:
        return around(FeedForward(width, inner, activation, dropout=drop.inner))

    encoder = Encoder(
        embedding(words if source_words is None else source_words),
        [Block(attention=attention(), feedforward=feedforward()) for _ in range(depths[0])],
    )
    decoder = Decoder(
        embedding(words),
        [
            Block(attention=attention(causal), cross=attention(reads="memory"), feedforward=feedforward())
            for _ in range(depths[1])
        ],
        head=vocabulary(words, tied=tied, biases=head_biases),
    )
    return EncoderDecoder(encoder, decoder)
