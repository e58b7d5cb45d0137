"""A hundred thousand texts come back as they were."""

import pytest

from heedful.data.text import trained
from tests.data.test_text import BYTES, MARKUP, NUMBERS, comes_back


@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize("size", [300, 2000])
def test_every_text_comes_back(kind, size):
    comes_back(trained(NUMBERS + MARKUP, kind, size), 100_000, seed=1)
