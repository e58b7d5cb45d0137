"""Put each token's vector on one scale, whatever came before.

LayerNorm   (x - mean) / √(variance + ε) · weight + bias      Ba et al. 2016, arXiv:1607.06450
RMSNorm     x / √(mean of x² + ε) · weight                    Zhang and Sennrich 2019, arXiv:1910.07467

Both look at one token alone: not at its neighbours, and not at the batch.
The variance divides by the width, not by the width less one.
They are PyTorch's own, fused where it has a kernel.
"""

from torch.nn import LayerNorm, RMSNorm

__all__ = ["LayerNorm", "RMSNorm"]
