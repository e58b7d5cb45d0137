"""Decoding with a cache is decoding without one, on 100 random models."""

import pytest

from tests.decode.test_step import MARGIN, compare_with_no_cache


@pytest.mark.parametrize("first", range(20, 120, 10))
def test_a_batch_with_a_cache_is_each_text_alone_without_one_on_ten_random_models(first):
    margins = [compare_with_no_cache(seed) for seed in range(first, first + 10)]
    # Most models decide clearly, so equal tokens say that the logits were right.
    assert sum(margin > MARGIN for margin in margins) >= 7
