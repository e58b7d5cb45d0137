"""Beam search is that of `transformers` on 50 random models."""

import pytest

from tests.decode.test_beam import compare_with_theirs


@pytest.mark.parametrize("first", range(12, 62, 10))
def test_beams_are_those_of_transformers_on_ten_random_models(first, tmp_path):
    ended = total = 0
    for seed in range(first, first + 10):
        counts = compare_with_theirs(seed, tmp_path / str(seed))
        ended, total = ended + counts[0], total + counts[1]
    # Both happen: texts that end, and texts that fill their room.
    assert 0.1 * total < ended < 0.95 * total
