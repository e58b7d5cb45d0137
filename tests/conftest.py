"""What every test shares."""

import os

import pytest
import torch

from tests import plants


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def pytest_configure(config: pytest.Config) -> None:
    """Tests of the tests plant a bug, and expect a named law to turn red."""
    plant = os.environ.get("HEEDFUL_PLANT")
    if plant is not None:
        plants.PLANTS[plant].plant()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and there is none"))
