"""Curves as text: for a terminal, a pipe or a log, without colours.

    print(draw({"training": (steps, losses), "validation": (some_steps, their_losses)}, title="Loss"))

Where there are several, a legend says which is which.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence

# A line of dots for the first; the others must be told from it, and from each other, by their shape alone.
MARKERS = ("braille", "•", "×", "+", "o", "*", "=", "#", "@")
LEGEND = ("⠒⠒", *(marker * 2 for marker in MARKERS[1:]))

Curve = tuple[Sequence[float], Sequence[float]]


def draw(series: Mapping[str, Curve], *, title: str, x_label: str = "step", width: int = 80, height: int = 20) -> str:
    """Curves by name, each xs and ys, in one picture of `height` lines, none longer than `width`.

    Points that are not finite are left out.
    """
    points = {name: _finite(name, *curve) for name, curve in series.items()}
    if not any(xs for xs, _ in points.values()):
        raise ValueError(f"nothing to draw of {', '.join(series) or 'no curves'}: no point is finite")
    if len(points) > len(MARKERS):
        raise ValueError(f"{len(points)} curves are too many to tell apart: at most {len(MARKERS)}")
    head = textwrap.wrap(title, width)
    if len(points) > 1:
        # A line may break between names, not inside of one.
        names = [f"{mark} {name}".replace(" ", "\xa0") for mark, name in zip(LEGEND, points, strict=False)]
        head += [line.replace("\xa0", " ") for line in textwrap.wrap("   ".join(names), width)]
    if width < 30 or height - len(head) < 8:
        raise ValueError(f"width={width}, height={height}: too small for a picture; at least 30 and {len(head) + 8}")

    import plotext

    # A figure of our own, on a terminal that sets no limits: plotext's are shared by the whole process.
    terminal = type(plotext.terminal)().limit(False, False)
    figure = type(plotext.figure)(terminal).plot_size(width, height - len(head))
    for (xs, ys), marker in zip(points.values(), MARKERS, strict=False):
        figure.draw(figure.signal(xs, ys, marker=marker).lines())
    for axis, place, count in (("x", 0, 6), ("y", 1, 5)):
        values = [value for curve in points.values() for value in curve[place]]
        low, high = _limits(values)
        figure.ruler(axis).lim(low, high).ticks(*_ticks(low, high, count, whole=all(v % 1 == 0 for v in values)))
    figure.label(x_label)
    lines = figure.build().string(colorless=True).splitlines()
    return "\n".join(line.rstrip() for line in [*head, *lines])


def _finite(name: str, xs: Sequence[float], ys: Sequence[float]) -> tuple[list[float], list[float]]:
    if len(xs) != len(ys):
        raise ValueError(f"{name} has {len(xs)} xs and {len(ys)} ys: give one y for each x")
    pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(x) and math.isfinite(y)]
    return [x for x, _ in pairs], [y for _, y in pairs]


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """From the lowest to the highest; from zero, where that is close. Around a lone value, as much as it is."""
    low, high = min(values), max(values)
    if low == high:
        return low - (abs(low) or 1), high + (abs(high) or 1)
    return (0 if 0 < low < high / 10 else low), high


def _ticks(low: float, high: float, count: int, *, whole: bool) -> tuple[list[float], list[str]]:
    """At most `count` + 1 round numbers from low to high, and how they are written."""
    step = 10.0 ** math.floor(math.log10((high - low) / count))
    step *= next((times for times in (1, 2, 5) if (high - low) / (step * times) <= count), 10)
    step = max(step, 1.0) if whole else step
    # What is left of rounding must not push a tick off the end.
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    ticks = [n * step for n in range(first, last + 1)]
    digits = max(-math.floor(math.log10(step)), 0)
    labels = [f"{tick:,.{digits}f}" for tick in ticks]
    if digits > 5 or max(map(len, labels)) > 9:
        labels = [f"{tick:g}" for tick in ticks]
    return ticks, labels
