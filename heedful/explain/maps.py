"""Attention weights as a picture in the terminal: rows look, columns are looked at."""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from torch import Tensor

SHADES = " ░▒▓█"


def drawn(weights: Tensor, rows: Sequence[str], columns: Sequence[str]) -> str:
    """(rows, columns) of shares as shades, each with its percent; what rounds to nothing stays empty."""
    if weights.shape != (len(rows), len(columns)):
        raise ValueError(f"weights are {tuple(weights.shape)}, the labels {len(rows)} and {len(columns)}")
    margin = max(map(cell_len, rows), default=0)
    widths = [max(5, cell_len(column)) for column in columns]

    def line(label: str, cells: Sequence[str]) -> str:
        sized = [set_cell_size(cell, width) for cell, width in zip(cells, widths, strict=True)]
        return "  ".join([set_cell_size(label, margin), *sized]).rstrip()

    shown = [[_cell(share) for share in row] for row in weights.tolist()]
    return "\n".join([line("", columns), *(line(label, cells) for label, cells in zip(rows, shown, strict=True))])


def _cell(share: float) -> str:
    percent = round(100 * share)
    return f"{SHADES[min(4, 1 + percent // 25)] * 2}{percent:>3}" if percent else ""
