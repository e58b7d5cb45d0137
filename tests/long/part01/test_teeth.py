"""Laws with teeth: a planted bug turns the law that is named beside it red, and without it the law is green."""

import os
import subprocess
import sys

import pytest

from tests.plants import PLANTS


def _run(law: str, plant: str | None) -> subprocess.CompletedProcess[str]:
    file, _, name = law.partition("::")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        file,
        *(["-k", name] if name else []),
    ]
    environment = {n: v for n, v in os.environ.items() if n != "HEEDFUL_PLANT" and not n.startswith("PYTEST_XDIST")}
    if plant is not None:
        environment["HEEDFUL_PLANT"] = plant
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_turns_its_law_red(plant: str) -> None:
    done = _run(PLANTS[plant].law, plant)
    # 1: tests were run, and one failed. Anything else is no verdict of a law.
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-2000:]
    assert "1 failed" in done.stdout
    # By its verdict on values: a plant that no longer fits the code it patches would fail by a TypeError.
    assert "AssertionError" in done.stdout
    assert "TypeError" not in done.stdout


@pytest.mark.parametrize("law", sorted({plant.law for plant in PLANTS.values()}))
def test_without_it_the_law_is_green(law: str) -> None:
    done = _run(law, None)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
