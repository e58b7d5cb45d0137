"""Position (or anything else) that adjusts scores, between q kᵀ · scale and the mask.

Two kinds. A bias is an object in the tuple `bias=(a, b, ...)`; they apply in order, the mask last.

Added     scores + values(distance)     reads no q and no k, so layers can share the result
Mapped    f(scores)                     for example a soft cap
"""

from torch import Tensor, nn


class Added(nn.Module):
    """A term for each head and distance, added to the scores."""

    def values(self, distance: Tensor) -> Tensor:
        """distance = q_at - k_at, of any shape -> (heads, *distance.shape)."""
        raise NotImplementedError(
            f"{type(self).__name__} must say what it adds: values(distance) -> (heads, *distance.shape)"
        )


class Mapped(nn.Module):
    """A function of each score; `forward(scores) -> scores`."""
