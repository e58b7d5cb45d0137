"""Mask algebra on ten times as many random expressions as the short form."""

import pytest

from tests.mask_trees import check_trees


@pytest.mark.parametrize("seed", range(100, 110))
def test_random_expressions_agree_with_asking_one_pair_after_another(seed):
    check_trees(1000, seed)
