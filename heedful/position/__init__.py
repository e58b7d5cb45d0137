"""Where am I? Three ways of saying it: added to x, turning q and k, or adjusting their scores."""

from heedful.position.added import Learned, Sinusoidal, add, concatenate, halved, interleaved
from heedful.position.bias import Added, Mapped
from heedful.position.frequency import geometric
from heedful.position.rotary import Rotary, halves, linear, llama3, pairs

__all__ = [
    "Added",
    "Learned",
    "Mapped",
    "Rotary",
    "Sinusoidal",
    "add",
    "concatenate",
    "geometric",
    "halved",
    "halves",
    "interleaved",
    "linear",
    "llama3",
    "pairs",
]
