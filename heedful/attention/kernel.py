"""One equation, several ways to compute it:  softmax( bias( q kᵀ · scale ) where mask ) v

`reference` says what is right. Every other kernel must equal it, and is there to be fast.
`attend` is the equation for anyone, on plain tensors.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.context import Plan
from heedful.mask import Band, Mask, Tables, causal, everything, inf, sides
from heedful.position.bias import Added
from heedful.trace import current


def scores(q: Tensor, k: Tensor, plan: Plan, scale: float) -> Tensor:
    return plan.adjust((q * scale) @ per_head(k, q).mT)


def weights(scores: Tensor, plan: Plan) -> Tensor:
    masked = scores if plan.keep is None else scores.masked_fill(~plan.keep, -inf)
    share = masked.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype)
    # A query that may look at nobody gets zeros.
    return share if plan.keep is None else share.masked_fill(~plan.keep.any(-1, keepdim=True), 0)


def reference(q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float, dropout: float = 0.0) -> Tensor:
    return F.dropout(weights(scores(q, k, plan, scale), plan), dropout, training=dropout > 0) @ per_head(v, q)


def sdpa(q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float, dropout: float = 0.0) -> Tensor:
    """PyTorch's fused attention: it knows "causal" by name, and takes any other mask and bias as one tensor."""
    fused, grouped = plan.fused, k.shape[1] != q.shape[1]
    if fused is not None and fused.is_floating_point():
        fused = fused.to(q.dtype)
    if grouped and fused is not None and q.is_cuda:
        # With grouped heads and a mask together, CUDA falls back to plain maths. Copied heads stay fused.
        k, v, grouped = per_head(k, q), per_head(v, q), False
    y = F.scaled_dot_product_attention(
        q, k, v, attn_mask=fused, dropout_p=dropout, is_causal=plan.is_causal, scale=scale, enable_gqa=grouped
    )
    return y if plan.lonely is None else y.masked_fill(plan.lonely, 0)


# Keys up to which plain products were faster than the fused kernel, in half precision on a CPU.
SHORT = 512


def auto(q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float, dropout: float = 0.0) -> Tensor:
    """The fused kernel, but for short texts in half precision on a CPU: there plain products are faster."""
    return KERNELS["reference" if _is_short(k) else "sdpa"](q, k, v, plan, scale, dropout)


def _is_short(k: Tensor) -> bool:
    return k.device.type == "cpu" and k.dtype == torch.bfloat16 and k.shape[-2] <= SHORT


KERNELS = {"auto": auto, "reference": reference, "sdpa": sdpa}


def per_head(t: Tensor, q: Tensor) -> Tensor:
    """Keys or values, once for each of q's heads: neighbouring heads share one."""
    return t if t.shape[1] == q.shape[1] else t.repeat_interleave(q.shape[1] // t.shape[1], dim=1)


class Choice(NamedTuple):
    kernel: str
    why: str


def pick(mask: Mask, bias: Sequence[nn.Module], kernel: str) -> str:
    """The kernel that computes this mask and bias; what cannot be computed is an error."""
    if not isinstance(mask, Mask):
        kind = type(mask).__name__
        raise TypeError(
            f"mask is a {kind}; it must be an expression: everything, causal, key(table), causal & key(table)"
        )
    if isinstance(bias, nn.Module):
        raise TypeError(f"bias is one {type(bias).__name__}; give a tuple: bias=(it,)")
    if kernel not in KERNELS:
        raise ValueError(f'kernel="{kernel}"; there are {", ".join(map(repr, KERNELS))}')
    mapped = [type(term).__name__ for term in bias if not isinstance(term, Added)]
    if kernel == "sdpa" and mapped:
        raise ValueError(f'{mapped[0]} maps scores, which "sdpa" cannot do: use kernel="reference" or "auto"')
    return "reference" if kernel == "auto" and mapped else kernel


def choose(
    mask: Mask = everything, bias: Sequence[nn.Module] = (), kernel: str = "auto", k: Tensor | None = None
) -> Choice:
    """Which kernel computes this mask and bias, and why; of keys `k` if they are given, else of long ones."""
    picked = pick(mask, bias, kernel)
    if kernel != "auto":
        return Choice(picked, "asked for")
    if picked == "reference":
        mapped = next(type(term).__name__ for term in bias if not isinstance(term, Added))
        return Choice(picked, f"{mapped} maps scores, and no fused kernel here does")
    if k is not None and _is_short(k):
        return Choice("reference", f"plain products; {k.shape[-2]} keys in half precision on a CPU are faster so")
    if len(bias) > 0:
        return Choice("sdpa", f"fused; {mask!r} and the biases travel as one tensor")
    if mask == everything:
        return Choice("sdpa", "fused; every look is allowed")
    if mask == causal:
        return Choice("sdpa", "fused; causal is known by name, and needs no tensor where positions are the slots")
    return Choice("sdpa", f"fused; {mask!r} travels as one tensor")


def look(q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float, dropout: float, kernel: str) -> Tensor:
    """Run a kernel; beside it, make the scores and weights that a listener asks for."""
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q is {q.shape[-1]} wide a head, k {k.shape[-1]}: they need one width, to be multiplied")
    if plan.heads != 1 and plan.heads != q.shape[1]:
        raise ValueError(f"{plan.mask!r} and its biases speak of {plan.heads} heads, q has {q.shape[1]}")
    y = KERNELS[kernel](q, k, v, plan, scale, dropout)
    trace = current()
    if trace is None:
        return y
    if not (trace.wants("scores") or trace.wants("weights")):
        return y
    with torch.set_grad_enabled(torch.is_grad_enabled() and (trace.answers("scores") or trace.answers("weights"))):
        made = scores(q, k, plan, scale)
        heard = trace.hear("scores", made, heads=True)
        share = weights(heard, plan)
    used = trace.hear("weights", share, heads=True)
    # What the kernel computed stands, unless somebody answered with something else.
    if heard is not made or used is not share:
        y = F.dropout(used, dropout, training=dropout > 0) @ per_head(v, q)
    return y


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask = everything,
    bias: Sequence[nn.Module] = (),
    scale: float | None = None,
    dropout: float = 0.0,
    q_at: Tensor | int | None = None,
    k_at: Tensor | int | None = None,
    tables: Tables | None = None,
    kernel: str = "auto",
) -> Tensor:
    """softmax( bias( q kᵀ · scale ) where mask ) v                              Vaswani et al. 2017, section 3.2

    q            (batch, heads, queries, width)
    k, v         (batch, kv_heads, keys, width); kv_heads divides heads, v's width is free
    scale        1/√width if not given
    q_at, k_at   positions: (n,), (batch, n) or a length n; the slots if not given
    tables       name -> one tensor for both sides, or (query side, key side)

    A query that may look at nobody gets zeros.
    """
    _check(q, k, v)
    queries, keys = q.shape[-2], k.shape[-2]
    kernel = pick(mask, bias, kernel)
    reader = _reader(mask, bias)
    if (q_at is None or k_at is None) and queries != keys and reader is not None:
        raise ValueError(
            f"{reader} compares positions, and {queries} queries meet {keys} keys: where do they stand? "
            f"Give q_at and k_at, for example q_at=torch.arange({keys - queries}, {keys}), k_at={keys}"
        )
    at_q, at_k = sides(
        queries if q_at is None else q_at, keys if k_at is None else k_at, tables, batch=q.shape[0], device=q.device
    )
    for name, side, n in (("q_at", at_q, queries), ("k_at", at_k, keys)):
        if side.length != n:
            raise ValueError(
                f"{name} has {side.length} positions, this call has {n} {'queries' if name[0] == 'q' else 'keys'}"
            )
        if side.device != q.device:
            raise ValueError(f"{name} is on {side.device}, q on {q.device}: move it there")
    plan = Plan(mask, bias, at_q, at_k, kernel)
    return look(q, k, v, plan, q.shape[-1] ** -0.5 if scale is None else scale, dropout, kernel)


def _reader(mask: Mask, bias: Sequence[nn.Module]) -> str | None:
    """What compares positions, if anything here does."""
    if any(isinstance(atom, Band) for atom in mask.atoms):
        return repr(mask)
    return next((type(term).__name__ for term in bias if isinstance(term, Added)), None)


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(f"attend takes (batch, heads, length, width), not {shapes}: add the missing axes with [None]")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q and k must have one width, to be multiplied: {shapes}")
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(f"each key needs one value: {shapes}")
    if q.shape[0] != k.shape[0]:
        raise ValueError(f"q and k must have one batch size: {shapes}; try k.expand({q.shape[0]}, -1, -1, -1)")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"kv_heads={k.shape[1]} does not divide heads={q.shape[1]}: {shapes}")
    if q.shape[-1] == 0:
        raise ValueError(f"a width of 0 has no product: {shapes}")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q is {q.dtype}, k {k.dtype}, v {v.dtype}: give one dtype, for example k.to(q.dtype)")
    if not q.is_floating_point():
        raise ValueError(f"q is {q.dtype}; attention needs floating point: try q.float()")
    if not q.device == k.device == v.device:
        raise ValueError(f"q is on {q.device}, k on {k.device}, v on {v.device}: move them to one device")
