"""Law 1: every kernel equals `reference` run in float64, on random masks, biases and shapes, forward and backward."""

import itertools
import random

import pytest
import torch
from torch import Tensor

from heedful import attend
from heedful.attention.kernel import KERNELS
from heedful.mask import causal, everything, key, nothing, query, window
from tests.laws import catalog

# Cases of one seed; with the seeds below more than 500 in all.
CASES = 40


def _case(rng: random.Random, bias: str) -> tuple[dict[str, Tensor], dict[str, object]]:
    b, kv, group = rng.randint(1, 3), rng.choice([1, 2]), rng.choice([1, 2])
    nq, nk = rng.randint(1, 9), rng.randint(5, 9)
    nq = nk if rng.random() < 0.4 else nq
    d, dv = rng.choice([1, 4, 8]), rng.choice([1, 4, 8])
    heads = kv * group
    made = {
        "q": torch.randn(b, heads, nq, d, dtype=torch.float64),
        "k": torch.randn(b, kv, nk, d, dtype=torch.float64),
        "v": torch.randn(b, kv, nk, dv, dtype=torch.float64),
    }
    given = {
        "key": torch.rand(b, nk) < 0.7,
        "query": torch.rand(b, heads, nq) < 0.8,
        "kind": (torch.randint(0, 3, (b, nq)), torch.randint(0, 3, (b, nk))),
    }
    mask = catalog.random_mask(rng, 3, given)
    at = {"q_at": torch.randint(0, 9, (b, nq)), "k_at": torch.randint(0, 9, (nk,))}
    if nq == nk and rng.random() < 0.5:
        at = {}
    if rng.random() < 0.2:
        mask, at = (causal if nq == nk else everything), {}
        bias = "none" if nq != nk else bias
    tables = {"kind": given["kind"], "valid": (None, torch.rand(b, nk) < 0.7)}
    scale = rng.choice([None, 1.0, 0.3])
    return made, {"mask": mask, "tables": tables, "scale": scale, "bias": catalog.BIASES[bias](heads), **at}


def _run(made: dict[str, Tensor], options: dict[str, object], kernel: str, dtype: torch.dtype) -> list[Tensor]:
    leaves = {name: t.to(dtype).detach().requires_grad_() for name, t in made.items()}
    y = attend(**leaves, **options, kernel=kernel)  # type: ignore[arg-type]
    return _with_gradients(y, leaves)


def _plain(made: dict[str, Tensor], options: dict[str, object], dtype: torch.dtype) -> list[Tensor]:
    """The equation with every step in a low precision: what a kernel may be at most twice as far off as."""
    leaves = {name: t.to(dtype).detach().requires_grad_() for name, t in made.items()}
    q, k, v = leaves["q"], *(leaves[n].repeat_interleave(made["q"].shape[1] // made[n].shape[1], 1) for n in "kv")
    scale = options["scale"] or q.shape[-1] ** -0.5
    keep = _allowed(q, k, options)
    w = (q @ k.mT * scale).masked_fill(~keep, -torch.inf).softmax(-1).masked_fill(~keep.any(-1, keepdim=True), 0)
    return _with_gradients(w @ v, leaves)


def _with_gradients(y: Tensor, leaves: dict[str, Tensor]) -> list[Tensor]:
    weighting = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view_as(y)
    (y.double() * weighting).sum().backward()
    return [y.detach().double(), *(leaf.grad.double() for leaf in leaves.values())]  # type: ignore[union-attr]


def _allowed(q: Tensor, k: Tensor, options: dict[str, object]) -> Tensor:
    at_q, at_k = options.get("q_at", q.shape[-2]), options.get("k_at", k.shape[-2])
    return options["mask"].dense(at_q, at_k, tables=options["tables"]).expand(*q.shape[:-1], k.shape[-2])  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("bias", "kernel"), [(b, k) for b in catalog.BIASES for k in catalog.kernels_for(b)])
def test_equals_the_reference_in_float64(bias: str, kernel: str, seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(CASES):
        made, options = _case(rng, bias)
        truth = _run(made, options, "reference", torch.float64)
        for dtype, most in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
            for got, want in zip(_run(made, options, kernel, dtype), truth, strict=True):
                size = max(1.0, want.abs().max().item() if want.numel() else 0.0)
                torch.testing.assert_close(got, want, atol=most * size, rtol=0, msg=lambda m, o=options: f"{o}: {m}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kernel", KERNELS)
def test_low_precision_is_at_most_twice_as_far_off_as_plain_maths(kernel: str, dtype: torch.dtype) -> None:
    """Outputs and gradients, in all of many cases together: a single small case can be lucky."""
    rng = random.Random(7)
    torch.manual_seed(7)
    ours: list[list[Tensor]] = [[], [], [], []]
    plain: list[list[Tensor]] = [[], [], [], []]
    for _ in range(CASES):
        made, options = _case(rng, "none")
        truth = _run(made, options, "reference", torch.float64)
        for found, got in ((ours, _run(made, options, kernel, dtype)), (plain, _plain(made, options, dtype))):
            for kept, one, true in zip(found, got, truth, strict=True):
                kept.append((one - true).flatten())
    for mine, theirs in zip(ours, plain, strict=True):
        assert torch.cat(mine).norm() <= 2 * torch.cat(theirs).norm()
        assert torch.cat(mine).abs().max() <= 2 * torch.cat(theirs).abs().max()


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradcheck(kernel: str) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 4, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    alone = torch.tensor([[True, False, True, True], [False] * 4])
    for mask in (causal, key(alone), window(1) & key(alone)):
        assert torch.autograd.gradcheck(lambda q, k, v, m=mask: attend(q, k, v, mask=m, kernel=kernel), (q, k, v))


@pytest.mark.parametrize("dtype", catalog.DTYPES.values(), ids=catalog.DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_query_that_may_look_at_nobody_gets_zeros(kernel: str, dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 2, 5, 4).to(dtype).requires_grad_() for _ in range(3))
    lonely = torch.tensor([[True, True, False, True, False], [False] * 5])
    y = attend(q, k, v, mask=query(lonely), kernel=kernel)
    y.float().square().sum().backward()
    assert (y[~lonely[:, None].expand(2, 2, 5)] == 0).all()
    assert (y[lonely[:, None].expand(2, 2, 5)] != 0).all()
    for t in (q, k, v):
        assert t.grad is not None
        assert t.grad.isfinite().all()
    assert (q.grad[~lonely[:, None].expand(2, 2, 5)] == 0).all()  # type: ignore[index]
    assert (attend(q, k, v, mask=nothing, kernel=kernel) == 0).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_nan_in_ten_thousand_random_masks(kernel: str) -> None:
    torch.manual_seed(0)
    keep = torch.rand(10_000, 1, 3, 4) < torch.rand(10_000, 1, 1, 1)
    q, k, v = (torch.randn(10_000, 1, n, 2, requires_grad=True) for n in (3, 4, 4))
    # One table of keys for each query.
    y = torch.cat([attend(q[:, :, i : i + 1], k, v, mask=key(keep[:, 0, i]), kernel=kernel) for i in range(3)], 2)
    y.square().sum().backward()
    assert y.isfinite().all()
    assert all(t.grad.isfinite().all() for t in (q, k, v))  # type: ignore[union-attr]
    assert (y[~keep.any(-1)] == 0).all()


@pytest.mark.parametrize(("dtype", "huge"), [(torch.float32, 1e30), (torch.bfloat16, 1e30), (torch.float16, 1e4)])
@pytest.mark.parametrize("kernel", KERNELS)
def test_masked_keys_and_values_are_inert(kernel: str, dtype: torch.dtype, huge: float) -> None:
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 2, 6, 4).to(dtype) for _ in range(3))
    seen = torch.tensor([[True, True, False, True, False, True], [False, True, True, True, True, False]])
    loud_k, loud_v = (t.masked_fill(~seen[:, None, :, None], huge) for t in (k, v))
    for mask in (key(seen), key(seen) & causal):
        quiet = attend(q, k, v, mask=mask, kernel=kernel)
        assert torch.equal(attend(q, loud_k, loud_v, mask=mask, kernel=kernel), quiet)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kernel", KERNELS)
def test_scores_of_ten_thousand_stay_finite(kernel: str, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    # 64 columns of 35.4: a product of 80,000, beyond float16, and a score of 10,000.
    q, k = (35.4 * torch.randn(1, 1, 8, 1).sign().expand(1, 1, 8, 64).to(dtype) for _ in range(2))
    v = torch.randn(1, 1, 8, 4).to(dtype)
    q, k, v = (t.contiguous().requires_grad_() for t in (q, k, v))
    assert (q.double() @ k.double().mT / 8).abs().max() >= 9_900
    y = attend(q, k, v, mask=causal, kernel=kernel)
    y.float().sum().backward()
    assert y.isfinite().all()
    assert all(t.grad.isfinite().all() for t in (q, k, v))  # type: ignore[union-attr]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("b", "heads", "nq", "nk", "d"), list(itertools.product((0, 1), (1, 2), (0, 1, 2), (0, 1, 2), (1, 3)))
)
def test_the_smallest_sizes_have_a_defined_result(b: int, heads: int, nq: int, nk: int, d: int, kernel: str) -> None:
    q, k, v = torch.randn(b, heads, nq, d), torch.randn(b, heads, nk, d), torch.randn(b, heads, nk, 2)
    y = attend(q, k, v, kernel=kernel)
    assert y.shape == (b, heads, nq, 2)
    if nk == 0:
        assert (y == 0).all()
    if nk == 1:
        assert torch.equal(y, v.expand(b, heads, nq, 2))
    if nq == nk:
        assert attend(q, k, v, mask=causal & key(torch.ones(nk, dtype=torch.bool)), kernel=kernel).isfinite().all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_memory_need_not_be_contiguous(kernel: str) -> None:
    torch.manual_seed(3)
    x = torch.randn(2, 5, 3, 4, 2)
    q, k, v = (t.transpose(1, 2)[..., 0] for t in (x, x + 1, x - 1))
    assert not q.is_contiguous()
    want = attend(q.contiguous(), k.contiguous(), v.contiguous(), mask=causal, kernel="reference")
    torch.testing.assert_close(attend(q, k, v, mask=causal, kernel=kernel), want, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_positions_decide_never_a_corner(kernel: str) -> None:
    """Three late queries among seven keys: the last rows of the square, wherever they stand in memory."""
    torch.manual_seed(4)
    q, k, v = (torch.randn(1, 2, 7, 4) for _ in range(3))
    whole = attend(q, k, v, mask=causal & window(3), kernel=kernel)
    last = attend(q[:, :, 4:], k, v, mask=causal & window(3), q_at=torch.arange(4, 7), k_at=7, kernel=kernel)
    torch.testing.assert_close(last, whole[:, :, 4:], atol=1e-6, rtol=0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_ring_of_keys_is_read_by_position_for_bands_and_by_slot_for_tables(kernel: str) -> None:
    """Keys turned round in memory with their positions and tables: nothing changes.

    A table read by position, or a band read by slot, would.
    """
    torch.manual_seed(5)
    q, k, v = (torch.randn(1, 2, 6, 4) for _ in range(3))
    seen, kind = torch.tensor([[True, True, False, True, True, True]]), torch.tensor([[0, 0, 1, 0, 1, 0]])
    at = torch.arange(6)
    tables = {"seen": (None, seen), "kind": (kind, kind)}
    mask = causal & key("seen") & window(4) & (catalog.same("kind") | key("seen"))
    want = attend(q, k, v, mask=mask, q_at=at, k_at=at, tables=tables, kernel=kernel)

    def turn(t: Tensor, axis: int) -> Tensor:
        return t.roll(2, axis)

    tables = {"seen": (None, turn(seen, 1)), "kind": (kind, turn(kind, 1))}
    got = attend(q, turn(k, 2), turn(v, 2), mask=mask, q_at=at, k_at=turn(at, 0), tables=tables, kernel=kernel)
    torch.testing.assert_close(got, want, atol=1e-6, rtol=0)
