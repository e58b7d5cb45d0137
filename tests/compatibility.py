"""The table of what combines with what, written from the outcome of `tests/laws/test_combinations.py`."""

from collections.abc import Sequence
from pathlib import Path

Outcome = tuple[str, str, str, object]

INTRO = """# What combines with what

Written by `make docs` from the outcome of `tests/laws/test_combinations.py`; not by hand.

Each cell ran a small decoder of two layers on left-padded rows, with every kernel ({kernels})
in every dtype ({dtypes}), and compared its real tokens with the plain reference in float64.

- **✓** every kernel and dtype is within its tolerance of the largest logit: {tolerances}.
- **refused** the combination raises an error that says why.
- **✗** the test failed.

中文：每一格都在左填充的批次上运行一个两层的小解码器，并与 float64 的参考实现逐词比较。
✓ 表示所有内核和数据类型都在误差范围内；refused 表示会报错并说明原因；✗ 表示测试失败。
"""

WITH = {
    "none": "## Without a cache, the whole text at once",
    "growing": "## Stepping through a growing cache",
    "fixed": "## Stepping through a fixed cache",
}


def write(outcomes: Sequence[Outcome], file: Path) -> None:
    from heedful.attention.kernel import KERNELS
    from tests.laws import catalog
    from tests.laws.test_combinations import CACHES, TOLERANCE

    found = {(position, mask, cache): outcome for position, mask, cache, outcome in outcomes}
    intro = INTRO.format(
        kernels=", ".join(f"`{name}`" for name in KERNELS),
        dtypes=", ".join(catalog.DTYPES),
        tolerances=", ".join(f"{name} {most:g}" for name, most in TOLERANCE.items()),
    )
    lines = [intro]
    for cache in CACHES:
        lines += [WITH[cache], "", _row(["position", *catalog.MASKS]), _row(["---"] * (1 + len(catalog.MASKS)))]
        for position in catalog.POSITIONS:
            cells = [_cell(found.get((position, mask, cache))) for mask in catalog.MASKS]
            lines.append(_row([position, *cells]))
        lines.append("")
    lines += ["## The masks", "", _row(["name", "expression"]), _row(["---", "---"])]
    # A bar inside a table would end its cell.
    lines += [_row([name, f"`{mask!r}`".replace("|", "\\|")]) for name, mask in catalog.MASKS.items()]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(outcome: object) -> str:
    if outcome is None:
        return "✗"
    return "refused" if outcome == "refused" else "✓"
