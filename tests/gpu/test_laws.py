"""Laws 1 and 3 on CUDA: the very tests of `tests/laws`, collected again where tensors are made on the GPU.

Float32 in all of them; bfloat16 and float16 in the combinations and in the low-precision tests.
"""

import pytest
import torch

from tests.laws.test_caches import *  # noqa: F403
from tests.laws.test_combinations import *  # noqa: F403
from tests.laws.test_kernels import *  # noqa: F403

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device, and there is none", allow_module_level=True)
