"""Curves as text: what stands where, how wide, and that nothing of it stays behind."""

import math
import re

import plotext
import pytest

from heedful.train.curves import MARKERS, draw
from heedful.train.schedule import cosine, cycles, noam, restarts, step_decay

STEPS = range(1, 1001)
RATES = {
    "noam": noam(512, 100),
    "cosine": cosine(1e-3, 100, 1000),
    "cycles": cycles(1e-3, 100, 200),
    "restarts": restarts(1e-3, 100, 200),
    "steps": step_decay(3e-4, 100, 200, 0.5),
}
SMALL = {"training": ([1, 2, 3, 4], [4.0, 3.0, 2.5, 2.25])}


def curve(rate):
    return STEPS, [rate(step) for step in STEPS]


def inside(picture):
    """The rows between the frame's left and right, of a picture with one line of head."""
    return [re.fullmatch(r"[^│┤]*[│┤](.*)│", line)[1] for line in picture.splitlines()[2:-3]]


def dots(cell):
    """Of a Braille character, its rows of two dots, from above."""
    bits = ord(cell) - 0x2800 if cell >= "\u2800" else 0
    return [(bits >> left & 1, bits >> right & 1) for left, right in ((0, 3), (1, 4), (2, 5), (6, 7))]


@pytest.mark.parametrize("name", RATES)
def test_every_point_stands_where_it_belongs(name):
    """The dots, read back as numbers, are the curve."""
    rows = inside(draw({name: curve(RATES[name])}, title="rate"))
    high = max(curve(RATES[name])[1])
    read = {}
    for y, row in enumerate(rows):
        for x, cell in enumerate(row):
            for part, pair in enumerate(dots(cell)):
                for half in (0, 1):
                    if pair[half]:
                        read.setdefault(2 * x + half, []).append(1 - (4 * y + part) / (4 * len(rows) - 1))
    across = 2 * len(rows[0]) - 1
    places = {round(step / 1000 * across) for step in STEPS}
    assert set(read) <= places
    assert len(set(read)) > 0.95 * len(places)
    for place, heights in read.items():
        # A dot is as wide as several steps; a jump goes all the way between two of them.
        near = range(math.floor((place - 3) / across * 1000), math.ceil((place + 3) / across * 1000) + 1)
        values = [RATES[name](min(max(step, 1), 1000)) / high for step in near]
        assert min(values) - 0.06 <= min(heights)
        assert max(heights) <= max(values) + 0.06


@pytest.mark.parametrize(("width", "height"), [(80, 20), (80, 9), (30, 12), (200, 50)])
def test_size(width, height):
    lines = draw(SMALL, title="Loss", width=width, height=height).splitlines()
    assert len(lines) == height
    assert max(map(len, lines)) == width
    assert all(line == line.rstrip() for line in lines)


def test_what_is_written():
    picture = draw({"cosine": curve(RATES["cosine"])}, title="cosine, 1,000 steps", x_label="update")
    lines = picture.splitlines()
    assert lines[0] == "cosine, 1,000 steps"
    assert lines[-1].strip() == "update"
    assert lines[-2].split() == ["0", "200", "400", "600", "800", "1,000"]
    labels = [line.split("┤")[0] for line in lines if "┤" in line]
    assert labels == ["0.0010", "0.0008", "0.0006", "0.0004", "0.0002", "0.0000"]
    assert "training" not in draw(SMALL, title="Loss"), "one curve needs no legend"


def test_ticks_are_round_whatever_the_range():
    def labels(xs, ys):
        lines = draw({"one": (xs, ys)}, title="t").splitlines()
        return lines[-2].split(), [line.split("┤")[0].strip() for line in lines if "┤" in line]

    assert labels([1, 2, 3], [1.0, 2.5, 3.25]) == (["1", "2", "3"], ["3.0", "2.5", "2.0", "1.5", "1.0"])
    assert labels([1, 70_000], [1e-7, 4e-7])[1] == ["4e-07", "3e-07", "2e-07", "1e-07"]
    assert labels([1, 70_000], [1, 2])[0] == ["0", "20,000", "40,000", "60,000"]
    assert labels([1, 40_000_000], [1, 2])[0] == ["0", "1e+07", "2e+07", "3e+07", "4e+07"]
    assert labels([5], [3.0]) == (["0", "2", "4", "6", "8", "10"], ["6", "4", "2", "0"])
    # In floating point 3e-4 / 1e-4 is a little less than 3, and 0.07 / 0.01 a little more than 7.
    assert labels([0, 1], [0.07, 0.115])[1] == ["0.11", "0.10", "0.09", "0.08", "0.07"]
    assert labels([1, 70_000], [0.0, 3e-4])[1] == ["0.0003", "0.0002", "0.0001", "0.0000"]
    assert labels([0, 1], [-2.0, -2.0])[1] == ["0", "-1", "-2", "-3", "-4"]
    assert labels([0, 1], [0.0, 0.0])[1] == ["1", "0", "-1"]


def test_points_are_joined():
    rows = inside(draw({"one": ([0, 1000], [0.0, 1.0])}, title="t"))
    assert all(any(row[column] != " " for row in rows) for column in range(len(rows[0])))
    assert all(row.strip() for row in rows)


def test_several_curves_are_told_apart():
    series = {name: curve(rate) for name, rate in RATES.items()}
    picture = draw(series, title="Five schedules")
    lines = picture.splitlines()
    assert lines[1] == "⠒⠒ noam   •• cosine   ×× cycles   ++ restarts   oo steps"
    drawn = "".join(lines[3:-3])
    assert all(marker in drawn for marker in MARKERS[1:5])
    assert not any(marker in drawn for marker in MARKERS[5:])


def test_a_long_head_breaks_between_names():
    series = {f"a curve with number {n}": SMALL["training"] for n in range(6)}
    lines = draw(series, title="a title that is " + "long " * 10, width=40).splitlines()
    assert len(lines) == 20
    assert max(map(len, lines)) == 40
    assert " ".join(lines[:2]).split() == ["a", "title", "that", "is", *["long"] * 10]
    assert lines[2:8] == [f"{m} a curve with number {n}" for n, m in enumerate(["⠒⠒", "••", "××", "++", "oo", "**"])]


def test_text_and_nothing_else():
    for series in (SMALL, {name: curve(rate) for name, rate in RATES.items()}):
        picture = draw(series, title="Loss")
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\xa0]", picture)
        assert picture == draw(series, title="Loss")


def test_nothing_stays_behind(monkeypatch):
    """plotext's figure and terminal belong to the process: somebody's own picture lives on, and none reaches ours."""
    alone = draw(SMALL, title="Loss")
    figure = plotext.figure.clear()
    empty = figure.build().string(colorless=True)
    figure.title("mine").draw(figure.signal([1, 2], [3, 4]))
    mine, terminal = figure.build().string(colorless=True), repr(plotext.terminal)
    assert draw(SMALL, title="Loss") == alone
    assert figure.build().string(colorless=True) == mine
    assert repr(plotext.terminal) == terminal
    figure.clear()
    assert figure.build().string(colorless=True) == empty
    # The size asked for counts, and not the terminal's.
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("LINES", "5")
    assert draw(SMALL, title="Loss") == alone


def test_what_is_not_finite_is_left_out():
    xs, ys = [1, 2, 3, 4, 5, 6], [4.0, 3.0, math.nan, 2.5, math.inf, 2.25]
    kept = {"training": ([1, 2, 4, 6], [4.0, 3.0, 2.5, 2.25])}
    assert draw({"training": (xs, ys)}, title="Loss") == draw(kept, title="Loss")
    beside = {**SMALL, "validation": ([4], [math.nan])}
    assert "•• validation" in draw(beside, title="Loss")


@pytest.mark.parametrize(
    ("series", "size", "says"),
    [
        ({}, {}, "nothing to draw of no curves"),
        ({"training": ([], [])}, {}, "nothing to draw of training: no point is finite"),
        ({"training": ([1], [math.nan])}, {}, "nothing to draw of training"),
        ({"training": ([1, 2], [1.0])}, {}, "training has 2 xs and 1 ys: give one y for each x"),
        ({str(n): ([1], [1.0]) for n in range(10)}, {}, "10 curves are too many to tell apart: at most 9"),
        (SMALL, {"width": 29}, "width=29, height=20: too small for a picture; at least 30 and 9"),
        (SMALL, {"height": 8}, "width=80, height=8: too small"),
    ],
)
def test_what_is_refused(series, size, says):
    with pytest.raises(ValueError, match=says):
        draw(series, title="Loss", **size)
