"""One layer's attention, step by step, from a trace of the real layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from torch import Tensor

from heedful.explain.examples import Printed
from heedful.trace import Trace


@dataclass(frozen=True)
class Step:
    """name      of the value, as in the trace where it is there
    formula   how it comes about
    says      what that means, in a line
    value     (rows, columns)
    rows, columns
              what they stand for
    printed   what the notes print for it, if they do
    """

    name: str
    formula: str
    says: str
    value: Tensor
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    printed: Printed | None = None

    def differs(self, row: int, column: int) -> bool:
        """Whether the exact value, rounded to the digits that the notes print, is another number."""
        if self.printed is None:
            return False
        printed = Decimal(self.printed[row][column])
        return rounded(float(self.value[row, column]), printed) != printed


def rounded(exact: float, like: Decimal) -> Decimal:
    """`exact` to the digits of `like`; zeros that end a whole number do not count as digits."""
    exponent = like.as_tuple().exponent
    assert isinstance(exponent, int)
    if exponent == 0 and like != 0:
        digits = str(abs(int(like)))
        exponent = len(digits) - len(digits.rstrip("0"))
    return Decimal(repr(exact)).quantize(Decimal(1).scaleb(exponent), rounding=ROUND_HALF_UP)


def steps(
    trace: Trace, tokens: tuple[str, ...], *, at: str = "", scale: float, printed: Mapping[str, Printed] | None = None
) -> list[Step]:
    """The steps of the attention at path `at`, of the first row of the batch and its first head."""
    printed = printed or {}

    def heard(name: str) -> Tensor:
        return trace[f"{at}.{name}" if at else name][0]

    q, k, v, scores, weights = (heard(name)[0] for name in ("q", "k", "v", "scores", "weights"))
    out = heard("out")
    root = f"√{q.shape[-1]}"

    def step(name: str, formula: str, says: str, value: Tensor, columns: tuple[str, ...] | None = None) -> Step:
        numbered = tuple(str(i + 1) for i in range(value.shape[-1]))
        return Step(name, formula, says, value, tokens, columns or numbered, printed.get(name))

    return [
        step("q", "q = x W_Q", "what each word asks", q),
        step("k", "k = x W_K", "what each word answers to", k),
        step("v", "v = x W_V", "what each word has to say", v),
        step("products", "q kᵀ", "how well each question meets each answer", q @ k.mT, tokens),
        step("scores", f"q kᵀ / {root} = q kᵀ · {scale:.6f}", "the same, whatever the width", scores, tokens),
        step("exponentials", "exp(scores)", "all positive, the best far ahead", scores.exp(), tokens),
        step("weights", "exp(scores) / sum of its row", "each row is shared out: it sums to 1", weights, tokens),
        step("out", "weights v", "each word becomes a mixture of what all have to say", out),
    ]
