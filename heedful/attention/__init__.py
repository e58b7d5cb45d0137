"""softmax( bias( q kᵀ · scale ) where mask ) v: the equation, its kernels, the layer around it, and its caches."""

from heedful.attention.cache import Fixed, Growing
from heedful.attention.kernel import attend, choose, reference, sdpa
from heedful.attention.layer import Attention

__all__ = ["Attention", "Fixed", "Growing", "attend", "choose", "reference", "sdpa"]
