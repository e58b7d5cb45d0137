"""The application that every command joins. Its help begins with examples."""

from collections.abc import Callable
from typing import Any

from cyclopts import App

from heedful import __version__
from heedful.cli.settings import layered

# In the order in which a newcomer meets them, and help lists them.
VERBS = ("demo", "train", "translate", "generate", "evaluate", "average", "schedule", "recipes", "explain")

app = App(
    name="heedful",
    help="The Transformer as small parts that can be read, run and seen.",
    help_prologue="""\
Examples:

  heedful demo                                          # a translator, now
  heedful train --source a.en --target a.de --out RUN   # one of your own
  heedful translate RUN "Good morning."                 # use it
  heedful evaluate RUN --source b.en --target b.de      # measure it
  heedful explain --example self-attention              # attention by hand
""",
    help_format="plaintext",
    version=__version__,
    config=layered,
)


def command(name: str, examples: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function the command of this name, its help led by these examples."""
    return app.command(
        name=name,
        sort_key=VERBS.index(name),
        help_prologue=f"Examples:\n\n{examples}",
        help_format="plaintext",
    )
