"""The map from the notes: every row is whole, and every path, command and place in it exists."""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTES = ROOT / "docs" / "notes.md"
COLUMNS = ["place", "heading / 标题", "what it is about", "中文", "file", "command", "test", "contradicts"]
MISSING = "not yet"
NONE = "—"


def cells(line):
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def tables(text):
    """Each table as a list of its lines, split into cells; the first is its header."""
    lines, found = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            lines.append(cells(line))
        elif lines:
            found.append(lines)
            lines = []
    return found


def rows(text):
    return [dict(zip(COLUMNS, line, strict=False)) for table in tables(text) for line in table[2:]]


def quoted(cell):
    """What stands in backticks; nothing else may stand in the cell but commas."""
    assert not re.sub(r"`[^`]+`", "", cell).strip(", "), f"neither in backticks nor {MISSING!r}: {cell}"
    return re.findall(r"`([^`]+)`", cell)


def listed(cell):
    return [] if cell == NONE else cell.split("; ")


TEXT = NOTES.read_text(encoding="utf-8")
PART_ONE, PART_TWO = (rows(part) for part in re.split(r"^## Part two", TEXT, flags=re.MULTILINE))
ROWS = PART_ONE + PART_TWO
PLACES = {row["place"].rsplit(", L", 1)[0]: row for row in PART_ONE}


def test_every_row_has_all_columns():
    for table in tables(TEXT):
        assert table[0] == COLUMNS
        assert len(table) > 2, "a table without rows"
        for line in table[2:]:
            assert len(line) == len(COLUMNS), line
            assert all(line), line


def test_every_place_is_named_once_and_has_its_line():
    assert len(PLACES) == len(PART_ONE)
    for row in PART_ONE:
        assert re.fullmatch(r"00[0-4].*, L\d+", row["place"]), row["place"]


@pytest.mark.parametrize("column", ["file", "test"])
def test_every_path_exists(column):
    named = {path for row in ROWS if row[column] != MISSING for path in quoted(row[column])}
    assert named
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []


def test_every_command_exists():
    """Verb, flags and their values: as the command line reads them."""
    from heedful.cli.app import app

    named = {command for row in ROWS if row["command"] != MISSING for command in quoted(row["command"])}
    assert named
    for command in sorted(named):
        program, verb, *arguments = shlex.split(command)
        if program == "make":
            assert re.search(rf"^{re.escape(verb)}\s*:", (ROOT / "Makefile").read_text(), re.MULTILINE), command
        else:
            assert program == "heedful", command
            app.parse_args([verb, *arguments], exit_on_error=False, print_error=False)


def test_all_five_notes_are_there():
    assert {place[:3] for place in PLACES} == {"000", "001", "002", "003", "004"}


@pytest.mark.parametrize(
    ("prefix", "count"), [("001 Q", 33), ("001 Q15.", 8), ("001 Q18.", 16), ("002 reason ", 6), ("003 property ", 5)]
)
def test_the_numbered_ones_are_all_there(prefix, count):
    """The questions, the ways to treat long texts, the families of attention, the reasons and properties."""
    assert [n for n in range(1, count + 1) if f"{prefix}{n}" not in PLACES] == []
    assert f"{prefix}{count + 1}" not in PLACES


def test_worked_examples_and_listings_are_there():
    examples = ["003 single-head", "003 two heads", "002 table", "002 made-up table", "001 Q33 example"]
    listings = ["000 §3", "001 Q19 code", "001 Q23 code", "001 Q25 code", "001 Q26 code", "004 cell 1", "004 cell 2"]
    assert [name for name in examples + listings if name not in PLACES] == []


def test_part_two_names_places_of_part_one():
    for row in PART_TWO:
        assert [name for name in listed(row["place"]) if name not in PLACES] == []
        assert row["contradicts"] == NONE


def test_contradictions_are_mutual():
    assert any(row["contradicts"] != NONE for row in PART_ONE)
    for here, row in PLACES.items():
        for there in listed(row["contradicts"]):
            assert there in PLACES, f"{here} names {there}, which has no row"
            assert here in listed(PLACES[there]["contradicts"]), f"{there} does not name {here}"
