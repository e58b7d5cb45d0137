"""What every test shares."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import compatibility, plants


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compatibility", help="write the table of what combines with what to this file")


def pytest_configure(config: pytest.Config) -> None:
    # Workers share the cores with each other, not with PyTorch's threads: seven times faster on two cores.
    torch.set_num_threads(1)
    # Tests of the tests plant a bug, and expect a named law to turn red.
    plant = os.environ.get("HEEDFUL_PLANT")
    if plant is not None:
        plants.PLANTS[plant].plant()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    file = config.getoption("--compatibility")
    if file is None:
        return
    passed = terminalreporter.stats.get("passed", [])
    outcomes = [value for report in passed for name, value in report.user_properties if name == "combination"]
    compatibility.write(outcomes, Path(file))
    terminalreporter.write_line(f"{len(outcomes)} combinations written to {file}")
