"""The worked example: real tensors through the real layer, and the notes' numbers beside them."""

from decimal import Decimal
from io import StringIO

import pytest
import torch
from rich.console import Console

from heedful.explain import EXAMPLES, show
from heedful.explain.steps import rounded
from heedful.explain.terminal import explain

EXAMPLE = EXAMPLES["self-attention"]


def shown(width: int = 100, *, color: bool = False) -> str:
    console = Console(file=StringIO(), width=width, force_terminal=color)
    show(EXAMPLE, console)
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


def test_the_steps_are_those_of_a_calculation_by_hand() -> None:
    """Each value again from the one before it, in plain arithmetic."""
    made = {step.name: step.value for step in explain(EXAMPLE)}
    x = EXAMPLE.inputs()[0]
    for name, matrix in (("q", EXAMPLE.query), ("k", EXAMPLE.key), ("v", EXAMPLE.value)):
        torch.testing.assert_close(made[name], x @ torch.tensor(matrix, dtype=torch.float64), atol=0, rtol=0)
    torch.testing.assert_close(made["products"], made["q"] @ made["k"].T)
    torch.testing.assert_close(made["scores"], made["products"] / 3**0.5)
    torch.testing.assert_close(made["exponentials"], made["scores"].exp())
    torch.testing.assert_close(made["weights"], made["exponentials"] / made["exponentials"].sum(-1, keepdim=True))
    torch.testing.assert_close(made["out"], made["weights"] @ made["v"])


def test_three_of_the_notes_numbers_differ_at_the_printed_precision() -> None:
    wrong = {
        (step.name, step.printed[r][c])
        for step in explain(EXAMPLE)
        if step.printed
        for r in range(step.value.shape[0])
        for c in range(step.value.shape[1])
        if step.differs(r, c)
    }
    assert wrong == {("exponentials", "320.5"), ("exponentials", "31.8"), ("out", "7.976")}
    text = shown()
    assert "40 numbers in the notes, 3 differ at the printed precision" in text
    for number in ("≠ 320.5", "≠ 31.8", "≠ 7.976", "7.975206", "0.030351", "0.996901"):
        assert number in text


@pytest.mark.parametrize(
    ("exact", "printed", "same"),
    [
        (2.309401, "2.31", True),
        (0.096, "0.09", False),
        (10276.39, "10300", True),
        (10249.0, "10300", False),
        (321.662446, "320.5", False),
        (7.975206, "7.976", False),
        (4.0, "4", True),
        (0.0, "0", True),
        (-0.416, "-0.42", True),
    ],
)
def test_rounding_is_to_the_digits_that_are_printed(exact: float, printed: str, same: bool) -> None:
    assert (rounded(exact, Decimal(printed)) == Decimal(printed)) is same


def test_plain_where_it_is_no_terminal_and_marked_in_red_where_it_is() -> None:
    assert "\x1b[" not in shown()
    assert "\x1b[1;31m≠ 7.976" in shown(color=True)
