"""The commands. Each only reads its arguments and calls what does the work, which it imports when it runs."""

import sys
from typing import NoReturn

from cyclopts import App, CycloptsError
from rich.console import Console

from heedful import __version__

app = App(
    name="heedful",
    help="The Transformer as small parts that can be read, run and seen.",
    help_prologue="""\
Examples:

  heedful explain --example self-attention    one worked example, number by number
""",
    help_format="plaintext",
    version=__version__,
)


@app.command(
    help_prologue="""\
Examples:

  heedful explain --example self-attention    two words, one head, every number
  heedful explain                             which examples there are
""",
    help_format="plaintext",
)
def explain(*, example: str | None = None) -> None:
    """Show a computation step by step: formula, exact numbers, and the study notes' beside them.

    Parameters
    ----------
    example
        A worked example of the study notes, by name.
    """
    from heedful.explain import EXAMPLES, show

    console = Console()
    if example is None:
        for name, known in EXAMPLES.items():
            console.print(f"{name}    {known.title} ({known.place})", highlight=False)
        return
    if example not in EXAMPLES:
        raise UsageError(f'no example "{example}"; there are: {", ".join(EXAMPLES)}')
    show(EXAMPLES[example], console)


class UsageError(Exception):
    """The command line asks for what does not exist."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Exit with 0, or 1 for a failure, 2 for a wrong command line, 130 if interrupted."""
    try:
        app(arguments, exit_on_error=False, print_error=True, result_action="return_value")
    except (CycloptsError, UsageError) as error:
        if isinstance(error, UsageError):
            print(f"heedful: {error}", file=sys.stderr)
        sys.exit(2)
    except (ValueError, OSError) as error:
        print(f"heedful: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)
