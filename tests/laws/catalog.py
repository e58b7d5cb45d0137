"""All that exists, one small example of each, for laws that are generated over everything.

A new mask atom, position, kernel, cache or recipe fails `test_catalog.py` until it stands here;
then every law holds it to account.
"""

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn

from heedful import models
from heedful.attention import Attention, Fixed, Growing
from heedful.attention.cache import Cache
from heedful.attention.kernel import KERNELS
from heedful.block import Block, FeedForward, LayerNorm, pre
from heedful.embedding import Embedding
from heedful.head import vocabulary
from heedful.mask import Mask, band, causal, everything, key, nothing, query, same, window
from heedful.model import Decoder, Encoder, EncoderDecoder
from heedful.position import (
    Added,
    Learned,
    Mapped,
    Rotary,
    Sinusoidal,
    concatenate,
    geometric,
    halved,
    linear,
    llama3,
    pairs,
)

VOCAB, WIDTH, HEADS, LONGEST = 23, 16, 2, 48
HEAD = WIDTH // HEADS

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}

# Patterns over names, as a layer owns them. `kind` and `seen` are tables that the batch gives.
MASKS: dict[str, Mask] = {
    "everything": everything,
    "causal": causal,
    "causal window": causal & window(3),
    "window": window(2),
    "far": band(2, 9),
    "causal, same kind": causal & same("kind"),
    "causal or seen key": causal & (window(1) | key("seen")),
    "causal, asking query": causal & (query("seen") | ~same("kind")),
    "nothing": nothing,
}

# How a place gets into a model: what the embedding adds, and what the layers turn.
POSITIONS: dict[str, Callable[[], dict[str, object]]] = {
    "none": dict,
    "sinusoidal": lambda: {"position": Sinusoidal(WIDTH)},
    "sinusoidal, halved": lambda: {"position": Sinusoidal(WIDTH, layout=halved)},
    "sinusoidal, beside": lambda: {"position": Sinusoidal(6), "join": concatenate, "beside": 6},
    "learned": lambda: {"position": Learned(LONGEST, WIDTH)},
    "rotary": lambda: {"rotary": Rotary(geometric(HEAD))},
    "rotary, pairs": lambda: {"rotary": Rotary(geometric(HEAD), layout=pairs)},
    "rotary, half the width": lambda: {"rotary": Rotary(geometric(HEAD // 2))},
    "rotary, linear": lambda: {"rotary": Rotary(linear(geometric(HEAD), factor=4))},
    "rotary, llama3": lambda: {"rotary": Rotary(llama3(geometric(HEAD), factor=4, original=32))},
}

CACHES: dict[str, Callable[[], Cache]] = {"growing": Growing, "fixed": lambda: Fixed(LONGEST)}

RECIPES: dict[str, Callable[[], Encoder | Decoder | EncoderDecoder]] = {
    "gpt": lambda: models.gpt(VOCAB, WIDTH, 2, HEADS, LONGEST),
    "llama": lambda: models.llama(VOCAB, WIDTH, 2, 4, 2, 24),
    "transformer": lambda: models.transformer(VOCAB, WIDTH, 2, HEADS, 24),
    "marian": lambda: models.marian(VOCAB, WIDTH, 2, HEADS, 24),
}


class Slope(Added):
    """Less for the distant: the smallest Added."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.linspace(0.1, 0.7, heads))

    def values(self, distance: Tensor) -> Tensor:
        return -self.slope.view(-1, *[1] * distance.dim()) * distance.abs()


class Cap(Mapped):
    """The smallest Mapped."""

    def forward(self, scores: Tensor) -> Tensor:
        return 2 * torch.tanh(scores / 2)


BIASES: dict[str, Callable[[int], tuple[nn.Module, ...]]] = {
    "none": lambda heads: (),
    "added": lambda heads: (Slope(heads),),
    "added twice": lambda heads: (Slope(heads), Slope(heads)),
    "mapped": lambda heads: (Cap(),),
    "added, mapped": lambda heads: (Slope(heads), Cap()),
}


def kernels_for(bias: str) -> list[str]:
    return ["reference"] if "mapped" in bias else list(KERNELS)


def decoder(position: str = "none", mask: Mask = causal, kernel: str = "auto", depth: int = 2) -> Decoder:
    """A small decoder with any position, mask and kernel; weights wide enough that nothing is nearly uniform."""
    given = POSITIONS[position]()
    width = WIDTH + int(given.pop("beside", 0))  # type: ignore[call-overload]
    heads = HEADS if width == WIDTH else 1
    rotary = given.pop("rotary", None)

    def block() -> Block:
        attention = Attention(width, heads, mask=mask, rotary=rotary, kernel=kernel)  # type: ignore[arg-type]
        return Block(
            attention=pre(attention, LayerNorm(width)),
            feedforward=pre(FeedForward(width, 2 * width, "gelu"), LayerNorm(width)),
        )

    words = nn.Embedding(VOCAB, WIDTH)
    head = vocabulary(nn.Embedding(VOCAB, width), tied=False)
    model = Decoder(Embedding(words, **given), [block() for _ in range(depth)], LayerNorm(width), head)  # type: ignore[arg-type]
    return spread(model).eval()


def spread(model: nn.Module) -> nn.Module:
    """Every parameter at random, biases and norms too, so that none can be forgotten unnoticed."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model


def random_mask(rng: random.Random, depth: int, tables: dict[str, Tensor]) -> Mask:
    """A random expression over every atom; `tables` are given tensors by role: key, query, same."""
    if depth == 0 or rng.random() < 0.25:
        lo, hi = sorted((rng.randint(-4, 6), rng.randint(-4, 6)))
        atoms = [
            everything,
            causal,
            window(rng.randint(0, 4)),
            band(lo, hi),
            key("valid"),
            key(tables["key"]),
            query(tables["query"]),
            same("kind"),
            key(lengths=[rng.randint(0, 5) for _ in range(len(tables["key"]))]),
        ]
        return rng.choice(atoms)
    one = random_mask(rng, depth - 1, tables)
    kind = rng.random()
    if kind < 0.2:
        return ~one
    two = random_mask(rng, depth - 1, tables)
    return one & two if kind < 0.6 else one | two
