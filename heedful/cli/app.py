"""The application that every command joins. Its help begins with examples."""

from collections.abc import Callable
from typing import Any

from cyclopts import App

from heedful import __version__
from heedful.cli.settings import from_files

app = App(
    name="heedful",
    help="The Transformer as small parts that can be read, run and seen.",
    help_prologue="""\
Examples:

  heedful demo                                          train a translator here and now
  heedful train --source a.en --target a.de --out RUN   train your own
  heedful translate RUN "Good morning."                 use it
  heedful explain --example self-attention              see every number of one
""",
    help_format="plaintext",
    version=__version__,
    config=from_files,
)


def command(name: str, examples: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function the command of this name, its help led by these examples."""
    return app.command(name=name, help_prologue=f"Examples:\n\n{examples}", help_format="plaintext")
