"""What a layer of a Transformer is made of, beside attention; and the block that joins its branches."""

from heedful.block.block import Block, Layers
from heedful.block.dropout import Dropouts
from heedful.block.feedforward import ACTIVATIONS, FeedForward, Gated
from heedful.block.norm import LayerNorm, RMSNorm
from heedful.block.residual import bare, post, pre

__all__ = [
    "ACTIVATIONS",
    "Block",
    "Dropouts",
    "FeedForward",
    "Gated",
    "LayerNorm",
    "Layers",
    "RMSNorm",
    "bare",
    "post",
    "pre",
]
