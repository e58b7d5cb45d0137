"""`attend` equals PyTorch's fused attention and a plain loop; `choose` says which kernel, and why."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from heedful.attention import attend, choose, kernel
from heedful.mask import causal, everything, key, nothing, query, same, window
from heedful.position import Added, Mapped

BARS = {torch.float32: 1e-6, torch.float64: 1e-12}  # of the largest output
GRADIENTS = {torch.float32: 1e-5, torch.float64: 1e-12}  # of the largest gradient in the same tensor
DTYPES = pytest.mark.parametrize("dtype", BARS, ids=["float32", "float64"])
KERNELS = pytest.mark.parametrize("kernel", ["sdpa", "reference", "auto"])


class Slope(Added):
    """A user's own bias: each head pushes distant keys away at a speed that is learned."""

    def __init__(self, heads):
        super().__init__()
        self.speed = nn.Parameter(torch.rand(heads, dtype=torch.float64))

    def values(self, distance):
        return -self.speed.view(-1, *[1] * distance.dim()) * distance.abs()


class Step(Added):
    """Another: keys that come later are worth less, in every head alike."""

    def values(self, distance):
        return torch.where(distance < 0, -0.7, 0.3)[None]


class SoftCap(Mapped):
    """A user's own map: no score beyond ± cap."""

    def __init__(self, cap):
        super().__init__()
        self.cap = cap

    def forward(self, scores):
        return self.cap * (scores / self.cap).tanh()


def random_qkv(dtype, batch=2, heads=6, kv_heads=6, queries=7, keys=7, width=5, v_width=5):
    shapes = (heads, queries, width), (kv_heads, keys, width), (kv_heads, keys, v_width)
    return tuple(torch.randn(batch, *shape, dtype=dtype, requires_grad=True) for shape in shapes)


def close(ours, theirs, bar):
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    worst, largest = (float(t.detach().abs().max()) for t in (ours - theirs, theirs))
    assert worst <= bar * largest, f"{worst:.2e} of {largest:.2e}"


def same_outputs_and_gradients(ours, theirs, leaves, dtype):
    close(ours, theirs, BARS[dtype])
    weights = torch.randn_like(ours)
    found = torch.autograd.grad((ours * weights).sum(), leaves)
    expected = torch.autograd.grad((theirs * weights).sum(), leaves)
    for a, b in zip(found, expected, strict=True):
        close(a, b, GRADIENTS[dtype])


def fused(q, k, v, **how):
    """PyTorch's own call."""
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=k.shape[1] != q.shape[1], **how)


def looped(q, k, v, *, keep=None, bias=(), scale=None, q_at=None, k_at=None):
    """The equation in float64, one query of one head of one row at a time. keep(b, h, i, j) -> whether i looks at j."""
    dtype, (batch, heads, queries, width) = q.dtype, q.shape
    q, k, v = q.double(), k.double(), v.double()
    keys, group = k.shape[2], heads // k.shape[1]
    q_at = list(range(queries)) if q_at is None else q_at
    k_at = list(range(keys)) if k_at is None else k_at
    rows = []
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                scores = [
                    q[b, h, i] @ k[b, h // group, j] * (1 / math.sqrt(width) if scale is None else scale)
                    for j in range(keys)
                ]
                for term in bias:
                    if isinstance(term, Added):
                        added = [term.values(torch.tensor([q_at[i] - k_at[j]])) for j in range(keys)]
                        scores = [s + a[h if len(a) > 1 else 0, 0] for s, a in zip(scores, added, strict=True)]
                    else:
                        scores = [term(s) for s in scores]
                allowed = [j for j in range(keys) if keep is None or keep(b, h, i, j)]
                if not allowed:
                    rows.append(torch.zeros(v.shape[-1], dtype=torch.float64) * v.sum())
                    continue
                share = torch.stack([scores[j] for j in allowed]).softmax(0)
                rows.append(sum(share[n] * v[b, h // group, j] for n, j in enumerate(allowed)))
    return torch.stack(rows).view(batch, heads, queries, -1).to(dtype)


@DTYPES
@KERNELS
@pytest.mark.parametrize("kv_heads", [6, 3, 1])
def test_everything_and_causal_equal_pytorchs(kv_heads, kernel, dtype):
    q, k, v = random_qkv(dtype, kv_heads=kv_heads, v_width=9)
    for mask, is_causal in ((everything, False), (causal, True)):
        ours, theirs = attend(q, k, v, mask=mask, kernel=kernel), fused(q, k, v, is_causal=is_causal)
        same_outputs_and_gradients(ours, theirs, (q, k, v), dtype)


@DTYPES
@KERNELS
@pytest.mark.parametrize("kv_heads", [6, 2])
@pytest.mark.parametrize("keys", [7, 4])
def test_a_mask_equals_pytorchs_bool_mask(keys, kv_heads, kernel, dtype):
    q, k, v = random_qkv(dtype, kv_heads=kv_heads, keys=keys)
    valid = torch.rand(2, keys) < 0.6
    valid[:, 0] = True  # nobody is left without a key: that has a test of its own
    own = torch.rand(2, 6, keys) < 0.5
    own[:, :, 0] = True
    tables = {"valid": (None, valid), "own": (None, own)}
    first = torch.arange(keys) < torch.tensor([[2], [4]])
    for mask, dense in (
        (key("valid"), valid[:, None, None]),
        (key("valid") & key("own"), (valid[:, None] & own)[:, :, None]),
        (key(lengths=[2, 4]), first[:, None, None]),
        (key(lengths=torch.tensor([2, 4])), first[:, None, None]),
    ):
        ours, theirs = attend(q, k, v, mask=mask, tables=tables, kernel=kernel), fused(q, k, v, attn_mask=dense)
        same_outputs_and_gradients(ours, theirs, (q, k, v), dtype)


@DTYPES
@KERNELS
@pytest.mark.parametrize("kv_heads", [6, 2])
@pytest.mark.parametrize("keys", [7, 4])
def test_a_users_own_bias_equals_pytorchs_float_mask(keys, kv_heads, kernel, dtype):
    q, k, v = random_qkv(dtype, kv_heads=kv_heads, keys=keys)
    slope, step = Slope(6), Step()
    q_at, k_at = torch.arange(10, 17), torch.arange(8, 8 + keys)
    distance = q_at[:, None] - k_at
    for mask in (everything, causal):
        dense = (slope.values(distance) + step.values(distance)).to(dtype)
        if mask == causal:
            dense = dense.masked_fill(distance < 0, -math.inf)
        ours = attend(q, k, v, mask=mask, bias=(slope, step), q_at=q_at, k_at=k_at, kernel=kernel)
        theirs = fused(q, k, v, attn_mask=dense[None])
        same_outputs_and_gradients(ours, theirs, (q, k, v, slope.speed), dtype)


@DTYPES
@KERNELS
def test_a_bias_alone_needs_no_positions_where_slots_are_positions(kernel, dtype):
    q, k, v = random_qkv(dtype)
    slope = Slope(6)
    distance = torch.arange(7)[:, None] - torch.arange(7)
    ours = attend(q, k, v, bias=(slope,), kernel=kernel)
    theirs = fused(q, k, v, attn_mask=slope.values(distance)[None].to(dtype))
    same_outputs_and_gradients(ours, theirs, (q, k, v, slope.speed), dtype)


LOOPS = {
    "everything": ({}, None),
    "causal": ({"mask": causal}, lambda b, h, i, j: j <= i),
    "window": ({"mask": window(1)}, lambda b, h, i, j: abs(i - j) <= 1),
    "lengths": ({"mask": key(lengths=[2, 4])}, lambda b, h, i, j: j < (2, 4)[b]),
    "unscaled": ({"scale": 1.0}, None),
    "documents": (
        {"mask": causal & same("document"), "tables": {"document": torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])}},
        lambda b, h, i, j: j <= i and ((0, 0, 1, 1), (0, 1, 1, 1))[b][i] == ((0, 0, 1, 1), (0, 1, 1, 1))[b][j],
    ),
    "global": (
        {"mask": window(0) | key("global") | query("global"), "tables": {"global": torch.arange(4) == 2}},
        lambda b, h, i, j: i == j or j == 2 or i == 2,
    ),
    "nobody": ({"mask": causal & ~window(0)}, lambda b, h, i, j: j < i),
    "bias": ({"mask": causal, "bias": (Step(),)}, lambda b, h, i, j: j <= i),
}


@DTYPES
@KERNELS
@pytest.mark.parametrize("name", LOOPS)
def test_attend_equals_a_plain_loop(name, kernel, dtype):
    how, keep = LOOPS[name]
    q, k, v = random_qkv(dtype, heads=4, kv_heads=2, queries=4, keys=4, width=3, v_width=6)
    expected = looped(q, k, v, keep=keep, bias=how.get("bias", ()), scale=how.get("scale"))
    same_outputs_and_gradients(attend(q, k, v, **how, kernel=kernel), expected, (q, k, v), dtype)


@DTYPES
@pytest.mark.parametrize("kernel", ["reference", "auto"])
def test_a_users_own_soft_cap_equals_a_plain_loop(kernel, dtype):
    """It stands where it is given among the biases, and the mask comes last."""
    q, k, v = random_qkv(dtype, heads=4, kv_heads=2, queries=4, keys=4)
    for bias in ((SoftCap(0.5),), (Slope(4), SoftCap(0.5)), (SoftCap(0.5), Slope(4))):
        ours = attend(q, k, v, mask=causal, bias=bias, kernel=kernel)
        expected = looped(q, k, v, keep=lambda b, h, i, j: j <= i, bias=bias)
        same_outputs_and_gradients(ours, expected, (q, k, v), dtype)


def test_a_soft_cap_reads_no_positions():
    """So it needs none, however many queries and keys there are."""
    q, k, v = random_qkv(torch.float64, heads=2, kv_heads=2, queries=3, keys=5)
    close(attend(q, k, v, bias=(SoftCap(0.5),)), looped(q, k, v, bias=(SoftCap(0.5),)), 1e-12)


def test_the_sdpa_kernel_refuses_a_soft_cap_and_says_what_works():
    q, k, v = random_qkv(torch.float32)
    with pytest.raises(
        ValueError, match=r'SoftCap maps scores, which "sdpa" cannot do: use kernel="reference" or "auto"'
    ):
        attend(q, k, v, bias=(Step(), SoftCap(1.0)), kernel="sdpa")


def test_an_unknown_kernel_is_refused_by_name():
    q, k, v = random_qkv(torch.float32)
    for ask in (lambda: choose(kernel="flash"), lambda: attend(q, k, v, kernel="flash")):
        with pytest.raises(ValueError, match=r'kernel="flash"; there are \'auto\', \'reference\', \'sdpa\''):
            ask()


@pytest.mark.parametrize(
    ("arguments", "kernel", "why"),
    [
        ({}, "sdpa", "fused; every look is allowed"),
        ({"mask": causal}, "sdpa", "fused; causal is known by name, and needs no tensor where positions are the slots"),
        ({"mask": window(3)}, "sdpa", "fused; window(3) travels as one tensor"),
        ({"mask": causal & key("valid")}, "sdpa", 'fused; causal & key("valid") travels as one tensor'),
        ({"mask": nothing}, "sdpa", "fused; nothing travels as one tensor"),
        ({"bias": (Step(),)}, "sdpa", "fused; everything and the biases travel as one tensor"),
        ({"mask": causal, "bias": (Step(), Step())}, "sdpa", "fused; causal and the biases travel as one tensor"),
        ({"bias": (SoftCap(1.0),)}, "reference", "SoftCap maps scores, and no fused kernel here does"),
        ({"bias": (Step(), SoftCap(1.0))}, "reference", "SoftCap maps scores, and no fused kernel here does"),
        ({"k": torch.zeros(1, 1, 512, 8)}, "sdpa", "fused; every look is allowed"),
        (
            {"k": torch.zeros(1, 1, 512, 8, dtype=torch.bfloat16)},
            "reference",
            "plain products; 512 keys in half precision on a CPU are faster so",
        ),
        ({"k": torch.zeros(1, 1, 513, 8, dtype=torch.bfloat16)}, "sdpa", "fused; every look is allowed"),
        ({"kernel": "reference"}, "reference", "asked for"),
        ({"mask": causal, "bias": (Step(),), "kernel": "sdpa"}, "sdpa", "asked for"),
        ({"bias": (SoftCap(1.0),), "kernel": "reference"}, "reference", "asked for"),
    ],
)
def test_choose_says_which_kernel_and_why(arguments, kernel, why):
    assert choose(**arguments) == (kernel, why)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("keys", [5, 513])
def test_auto_runs_the_kernel_that_choose_names(dtype, keys, monkeypatch):
    ran = []

    def spied(name, real):
        def counted(*args):
            ran.append(name)
            return real(*args)

        return counted

    for name in ("reference", "sdpa"):
        monkeypatch.setitem(kernel.KERNELS, name, spied(name, kernel.KERNELS[name]))
    q = k = v = torch.randn(1, 2, keys, 8, dtype=dtype)
    attend(q, k, v)
    assert ran == [choose(k=k).kernel]


def of(*shape, **how):
    return torch.zeros(*shape, **how)


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        (of(2, 3, 4), of(2, 3, 4), of(2, 3, 4), r"takes \(batch, heads, length, width\), not q \(2, 3, 4\).*\[None\]"),
        (
            of(1, 2, 3, 4),
            of(1, 2, 3, 5),
            of(1, 2, 3, 5),
            r"q and k must have one width.*\(1, 2, 3, 4\).*\(1, 2, 3, 5\)",
        ),
        (
            of(1, 2, 3, 4),
            of(1, 2, 3, 4),
            of(1, 2, 5, 4),
            r"each key needs one value.*k \(1, 2, 3, 4\), v \(1, 2, 5, 4\)",
        ),
        (of(1, 2, 3, 4), of(1, 2, 3, 4), of(1, 1, 3, 4), r"each key needs one value"),
        (of(3, 2, 3, 4), of(1, 2, 3, 4), of(1, 2, 3, 4), r"one batch size.*k\.expand\(3, -1, -1, -1\)"),
        (of(1, 6, 3, 4), of(1, 4, 3, 4), of(1, 4, 3, 4), r"kv_heads=4 does not divide heads=6"),
        (of(1, 2, 3, 4), of(1, 0, 3, 4), of(1, 0, 3, 4), r"kv_heads=0 does not divide heads=2"),
        (of(1, 2, 3, 0), of(1, 2, 3, 0), of(1, 2, 3, 4), r"a width of 0 has no product"),
        (of(1, 2, 3, 4), of(1, 2, 3, 4).double(), of(1, 2, 3, 4), r"k torch\.float64.*k\.to\(q\.dtype\)"),
        (of(1, 2, 3, 4).long(), of(1, 2, 3, 4).long(), of(1, 2, 3, 4).long(), r"torch\.int64.*try q\.float\(\)"),
        (of(1, 2, 3, 4), of(1, 2, 3, 4, device="meta"), of(1, 2, 3, 4), r"q is on cpu, k on meta, v on cpu"),
        (of(1, 2, 3, 4, device="meta"), of(1, 2, 3, 4), of(1, 2, 3, 4), r"move them to one device"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_with_what_would(q, k, v, message):
    with pytest.raises(ValueError, match=message):
        attend(q, k, v)


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"mask": causal}, r"causal "),
        ({"mask": window(2) | key("valid")}, r'(window\(2\) \| key\("valid"\)|key\("valid"\) \| window\(2\)) '),
        ({"mask": ~window(2)}, r"band\(-inf, -3\) \| band\(3, inf\) "),
        ({"bias": (Step(),)}, r"Step "),
        ({"mask": key(lengths=[3, 3]), "bias": (SoftCap(1.0), Step())}, r"Step "),
    ],
)
@pytest.mark.parametrize("given", [{}, {"q_at": torch.arange(2, 5)}, {"k_at": 5}], ids=["none", "q_at", "k_at"])
def test_positions_are_never_guessed(how, named, given):
    """Where 3 queries stand among 5 keys is not known: what asks for it is named, and what to give is said."""
    q, k, v = random_qkv(torch.float32, queries=3, keys=5)
    tables = {"valid": (None, torch.ones(5, dtype=torch.bool))}
    with pytest.raises(ValueError, match=r"3 queries meet 5 keys.*q_at=torch\.arange\(2, 5\), k_at=5") as refusal:
        attend(q, k, v, tables=tables, **how, **given)
    assert re.match(named, str(refusal.value))
    assert attend(q, k, v, tables=tables, **how, q_at=torch.arange(2, 5), k_at=5).shape == q.shape


def test_what_compares_no_positions_needs_none():
    q, k, v = random_qkv(torch.float64, heads=2, kv_heads=2, queries=3, keys=5)
    for mask, keep in (
        (everything, None),
        (key(lengths=[2, 5]), lambda b, h, i, j: j < (2, 5)[b]),
        (same("label"), lambda b, h, i, j: i % 2 == j % 2),
    ):
        ours = attend(q, k, v, mask=mask, tables={"label": (torch.arange(3) % 2, torch.arange(5) % 2)})
        close(ours, looped(q, k, v, keep=keep), 1e-12)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"q_at": torch.arange(4), "k_at": 5}, r"q_at has 4 positions, this call has 3 queries"),
        ({"q_at": 3, "k_at": torch.arange(6)}, r"k_at has 6 positions, this call has 5 keys"),
        ({"q_at": torch.rand(3), "k_at": 5}, r"q_at is torch\.float32; positions are integers"),
        ({"q_at": torch.zeros(2, 2, 3, dtype=torch.long), "k_at": 5}, r"q_at has shape \(2, 2, 3\)"),
        ({"q_at": torch.arange(3, device="meta"), "k_at": 5}, r"q_at is on meta, q on cpu: move it there"),
    ],
)
def test_positions_that_do_not_fit_are_refused(given, message):
    q, k, v = random_qkv(torch.float32, queries=3, keys=5)
    with pytest.raises(ValueError, match=message):
        attend(q, k, v, mask=causal, **given)


@KERNELS
def test_each_row_may_have_positions_of_its_own(kernel):
    q, k, v = random_qkv(torch.float64, heads=2, kv_heads=1, queries=3, keys=5)
    q_at, k_at = torch.tensor([[2, 3, 4], [0, 9, 1]]), torch.tensor([[0, 1, 2, 3, 4], [7, 0, 1, 1, 8]])
    ours = attend(q, k, v, mask=causal, q_at=q_at, k_at=k_at, kernel=kernel)
    expected = looped(q, k, v, keep=lambda b, h, i, j: bool(q_at[b, i] >= k_at[b, j]))
    same_outputs_and_gradients(ours, expected, (q, k, v), torch.float64)


@DTYPES
@KERNELS
@pytest.mark.parametrize("bias", [(), (Step(),), (SoftCap(2.0),)], ids=["plain", "bias", "soft-cap"])
@pytest.mark.parametrize("kv_heads", [6, 2])
def test_a_query_that_may_look_at_nobody_gets_zeros_and_gives_no_gradient(kv_heads, bias, kernel, dtype):
    if kernel == "sdpa" and isinstance((*bias, None)[0], Mapped):
        return
    q, k, v = random_qkv(dtype, kv_heads=kv_heads)
    alone = torch.zeros(2, 7, dtype=torch.bool)
    alone[0, 3], alone[1] = True, True
    y = attend(q, k, v, mask=~query("alone"), bias=bias, tables={"alone": alone}, kernel=kernel)
    y.square().sum().backward()
    assert torch.equal(y.transpose(1, 2)[alone], torch.zeros(8, 6, 5, dtype=dtype))
    assert torch.equal(q.grad.transpose(1, 2)[alone], torch.zeros(8, 6, 5, dtype=dtype))
    assert all(t.grad.isfinite().all() for t in (q, k, v))
    # The second row's queries all look at nobody, so nothing reaches its keys.
    assert not k.grad[1].any()
    assert not v.grad[1].any()
    others = ~alone[0]
    same = attend(q, k, v, bias=bias, kernel=kernel)
    assert (y[0][:, others] - same[0][:, others]).abs().max() <= BARS[dtype] * same.abs().max()


@KERNELS
def test_no_keys_at_all_give_zeros(kernel):
    q, k, v = random_qkv(torch.float64, keys=0)
    y = attend(q, k, v, kernel=kernel)
    assert torch.equal(y, torch.zeros_like(q))
    y.sum().backward()
    assert torch.equal(q.grad, torch.zeros_like(q))


@pytest.mark.parametrize("kernel", ["sdpa", "reference"])
def test_dropout_leaves_the_mean_as_it_is(kernel):
    q, k, v = (t[:1].expand(3000, -1, -1, -1) for t in random_qkv(torch.float32, heads=2, kv_heads=1))
    with torch.no_grad():
        dropped, plain = attend(q, k, v, dropout=0.4, kernel=kernel), attend(q[:1], k[:1], v[:1])
    assert ((dropped.mean(0) - plain[0]).abs() < 5 * dropped.std(0) / math.sqrt(3000)).all()
    assert not torch.equal(dropped[0], dropped[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@KERNELS
def test_half_precision_comes_back_as_it_came_and_softmax_is_wider(kernel, dtype):
    """512 equal scores: each weight is 1/512, and their sum is exact only where softmax is in float32."""
    q = torch.zeros(1, 1, 1, 8, dtype=dtype)
    k, v = torch.zeros(1, 1, 512, 8, dtype=dtype), torch.ones(1, 1, 512, 8, dtype=dtype)
    y = attend(q, k, v, kernel=kernel)
    assert y.dtype == dtype
    assert torch.equal(y, torch.ones_like(y))
