"""GPT-2: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".

A decoder alone: norms before each branch and one at the end, learned positions, the head tied to the table.
"""

import math
from collections.abc import Mapping

import torch
from torch import nn

from heedful.attention.layer import Attention
from heedful.block import Block, Dropouts, FeedForward, LayerNorm, pre
from heedful.embedding import Embedding
from heedful.head import vocabulary
from heedful.mask import causal
from heedful.model import Decoder
from heedful.models.initial import normal
from heedful.models.recipe import recipe
from heedful.position.added import Learned


@recipe
def gpt(
    vocab: int = 50257,
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    context: int = 1024,
    *,
    inner: int | None = None,
    activation: str = "gelu_tanh",
    epsilon: float = 1e-5,
    tied: bool = True,
    dropout: float = 0.1,
    dropout_at: Mapping[str, float] | None = None,
) -> Decoder:
    """GPT-2; the smallest as it stands.

    context      the longest text: positions are a learned table
    inner        width of the feed-forward network, 4 · width if not given
    epsilon      of the norms
    dropout_at   chances by place, beside `dropout` at attention, branch and embedding
    """
    drop = Dropouts.at(("attention", "branch", "embedding"), dropout, dropout_at)
    inner = 4 * width if inner is None else inner

    def around(branch: nn.Module) -> pre:
        return pre(branch, LayerNorm(width, epsilon), dropout=drop.branch, after=drop.sum)

    def block() -> Block:
        return Block(
            attention=around(Attention(width, heads, mask=causal, dropout=drop.attention)),
            feedforward=around(FeedForward(width, inner, activation, dropout=drop.inner)),
        )

    words = nn.Embedding(vocab, width)
    model = Decoder(
        Embedding(words, Learned(context, width), dropout=drop.embedding),
        [block() for _ in range(depth)],
        norm=LayerNorm(width, epsilon),
        head=vocabulary(words, tied=tied),
    )
    initialise(model, depth)
    return model


@torch.no_grad()
def initialise(model: Decoder, depth: int) -> None:
    """N(0, 0.02²), biases zero; what writes into the residual is smaller by √(2 · depth), for it is added so often."""
    normal(model, 0.02)
    for part in model.modules():
        if isinstance(part, (Attention, FeedForward)):
            last = part.out if isinstance(part, Attention) else part.down
            assert isinstance(last, nn.Linear)
            nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * depth))
