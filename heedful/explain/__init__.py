"""What a trace means, as a person would work it out by hand."""

from heedful.explain.examples import EXAMPLES, Example
from heedful.explain.steps import Step, steps
from heedful.explain.terminal import show

__all__ = ["EXAMPLES", "Example", "Step", "show", "steps"]
