"""From logits to texts: the likeliest token each time, one by chance, or the best of several texts side by side."""

from heedful.decode.beam import Hypothesis, beam
from heedful.decode.logits import never, temperature, top_k, top_p
from heedful.decode.sample import collected, drawn, greedy, sample
from heedful.decode.step import Stepper
from heedful.decode.stream import Pieces, Stops
from heedful.decode.text import generate, stream, translate

__all__ = [
    "Hypothesis",
    "Pieces",
    "Stepper",
    "Stops",
    "beam",
    "collected",
    "drawn",
    "generate",
    "greedy",
    "never",
    "sample",
    "stream",
    "temperature",
    "top_k",
    "top_p",
    "translate",
]
