"""An explanation in the terminal: each step with its formula, the exact numbers, and the notes' beside them."""

from collections.abc import Sequence

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from heedful.explain.examples import Example
from heedful.explain.steps import Step, steps
from heedful.trace import listen

MARK = "≠"


def explain(example: Example) -> list[Step]:
    """Run the example through its real layer, and read what happened."""
    layer = example.layer()
    with torch.no_grad(), listen(layer) as trace:
        layer(example.inputs())
    return steps(trace, example.tokens, scale=trace["q"].shape[-1] ** -0.5, printed=example.printed)


def show(example: Example, console: Console) -> None:
    console.print(Text(example.title, style="bold"))
    console.print(
        f"The notes' worked example ({example.place}), computed by heedful's own layer in float64.", soft_wrap=True
    )
    console.print("Left the exact numbers, right what the notes print.")
    console.print(Text.assemble("Where the two differ at the printed precision stands ", (MARK, "bold red"), "."))
    console.print()
    _print_inputs(example, console)
    made = explain(example)
    for number, step in enumerate(made, 1):
        _print_step(number, step, console)
    console.print(_summary(made), soft_wrap=True)


def _print_inputs(example: Example, console: Console) -> None:
    console.print(Text("Given", style="bold"))
    given = (("x", example.x), ("W_Q", example.query), ("W_K", example.key), ("W_V", example.value))
    table = Table.grid(padding=(0, 3))
    table.add_row(*(Text(f"{name}  {len(matrix)} × {len(matrix[0])}") for name, matrix in given))
    for row in range(max(len(matrix) for _, matrix in given)):
        table.add_row(*("  ".join(f"{x:g}" for x in m[row]) if row < len(m) else "" for _, m in given))
    console.print(table)
    console.print()


def _print_step(number: int, step: Step, console: Console) -> None:
    rows, columns = step.value.shape
    console.print(
        Text.assemble((f"{number}. {step.formula}", "bold"), f"    {step.says}    ({rows} × {columns})"), soft_wrap=True
    )
    table = Table.grid(padding=(0, 2))
    table.add_column()
    for _ in range(2 * columns + 1):
        table.add_column(justify="right")
    said = step.printed is not None
    heads = ["", *step.columns, "", *(["the notes", *[""] * (columns - 1)] if said else [""] * columns)]
    table.add_row(*(Text(head, style="dim") for head in heads))
    for row in range(rows):
        exact = [Text(number_text(float(step.value[row, column]))) for column in range(columns)]
        theirs = [_printed(step, row, column) for column in range(columns)] if said else []
        table.add_row(Text(step.rows[row], style="dim"), *exact, Text("|", style="dim"), *theirs)
    console.print(table)
    console.print()


def _printed(step: Step, row: int, column: int) -> Text:
    assert step.printed is not None
    differs = step.differs(row, column)
    return Text(
        f"{MARK} {step.printed[row][column]}" if differs else step.printed[row][column],
        style="bold red" if differs else "",
    )


def number_text(x: float) -> str:
    """Whole numbers as they are, others with six decimals."""
    return f"{x:.0f}" if x == round(x) else f"{x:.6f}"


def _summary(made: Sequence[Step]) -> Text:
    cells = [
        (s, r, c)
        for s in made
        if s.printed is not None
        for r in range(s.value.shape[0])
        for c in range(s.value.shape[1])
    ]
    wrong = [(s, r, c) for s, r, c in cells if s.differs(r, c)]
    text = Text(f"{len(cells)} numbers in the notes, {len(wrong)} differ at the printed precision")
    for step, row, column in wrong:
        assert step.printed is not None
        exact = number_text(float(step.value[row, column]))
        text.append(
            f"\n  {step.name}, {step.rows[row]} · {step.columns[column]}: {step.printed[row][column]}, exactly {exact}"
        )
    return text
