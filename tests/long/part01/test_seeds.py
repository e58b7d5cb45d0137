"""The laws of `make test` on many more random cases."""

import pytest

from tests.laws import catalog
from tests.laws.test_kernels import test_equals_the_reference_in_float64 as kernel_law


@pytest.mark.parametrize("seed", range(100, 130))
@pytest.mark.parametrize(("bias", "kernel"), [(b, k) for b in catalog.BIASES for k in catalog.kernels_for(b)])
def test_kernels_equal_the_reference_on_many_seeds(bias: str, kernel: str, seed: int) -> None:
    kernel_law(bias, kernel, seed)
