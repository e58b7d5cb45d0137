"""Draw the README's picture: the end of the worked example, as the terminal shows it."""

import re
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from heedful.explain import EXAMPLES, show

LINES = 25


def main() -> None:
    shown = StringIO()
    show(EXAMPLES["self-attention"], Console(file=shown, width=88, force_terminal=True, color_system="standard"))
    console = Console(record=True, width=88, file=StringIO())
    for line in ["$ make demo", "...", *shown.getvalue().splitlines()[-LINES:]]:
        console.print(Text.from_ansi(line))
    svg = console.export_svg(title="heedful explain --example self-attention")
    # No fonts from elsewhere: a picture asks no network.
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    Path(__file__).with_name("explain.svg").write_text(svg, encoding="utf-8")


main()
