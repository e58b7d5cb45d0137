"""The laws again, with every tensor made on the GPU."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _on_the_gpu() -> Iterator[None]:
    with torch.device("cuda"):
        yield
