"""The attention layer equals nn.MultiheadAttention where that can do the same, and a plain loop elsewhere."""

import math

import pytest
import torch
from torch import nn

import heedful
from heedful import Attention
from heedful.context import Context
from heedful.mask import causal, key
from heedful.side import side

BARS = {torch.float32: 1e-6, torch.float64: 1e-12}  # of the largest output
DTYPES = pytest.mark.parametrize("dtype", BARS, ids=["float32", "float64"])
KERNELS = pytest.mark.parametrize("kernel", ["sdpa", "reference"])


def close(ours, theirs, dtype):
    assert ours.dtype == theirs.dtype == dtype
    assert ours.shape == theirs.shape
    worst, largest = (float(t.detach().abs().max()) for t in (ours - theirs, theirs))
    assert worst <= BARS[dtype] * largest, f"{worst:.2e} of {largest:.2e}"


def around(x, valid=None, memory=None, memory_valid=None):
    """The context of one call, with padding on either side."""
    begun = Context.begin(
        side(x, valid=valid), memory_side=None if memory is None else side(memory, valid=memory_valid)
    )
    return begun if memory is None else begun.with_memory(memory)


class Columns(nn.Module):
    """A projection of some columns of its input."""

    def __init__(self, start, stop, width, biases=True):
        super().__init__()
        self.start, self.stop = start, stop
        self.linear = nn.Linear(stop - start, width, bias=biases)

    def forward(self, x):
        return self.linear(x[..., self.start : self.stop])


@torch.no_grad()
def same_weights(layer, theirs):
    """Copy all of nn.MultiheadAttention's weights into the layer, after shaking them."""
    for parameter in theirs.parameters():
        parameter += 0.3 * torch.randn_like(parameter)
    if theirs.in_proj_weight is not None:
        matrices = theirs.in_proj_weight.chunk(3)
    else:
        matrices = theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight
    biases = (None,) * 3 if theirs.in_proj_bias is None else theirs.in_proj_bias.chunk(3)
    projections = [
        part if isinstance(part, nn.Linear) else part.linear for part in (layer.query, layer.key, layer.value)
    ]
    copies = [
        *zip(projections, matrices, biases, strict=True),
        (layer.out, theirs.out_proj.weight, theirs.out_proj.bias),
    ]
    for ours, matrix, bias in copies:
        ours.weight.copy_(matrix)
        assert (ours.bias is None) == (bias is None)
        if bias is not None:
            ours.bias.copy_(bias)


def beside(layer, theirs, x, context, q, k, v, **how):
    """Outputs and weights of both: (ours, theirs), (our weights, their weights)."""
    with heedful.listen(layer) as trace:
        heard = layer(x, context)
    assert torch.equal(heard, layer(x, context))
    outputs, weights = theirs(q, k, v, average_attn_weights=False, **how)
    return (heard, outputs), (trace["weights"], weights)


@DTYPES
@KERNELS
@pytest.mark.parametrize("biases", [True, False], ids=["biases", "no-biases"])
@pytest.mark.parametrize(("width", "heads"), [(12, 3), (10, 1), (7, 7), (1, 1), (15, 3)])
def test_self_attention_equals_pytorchs(width, heads, biases, kernel, dtype):
    layer = Attention(width, heads, biases=biases, kernel=kernel).to(dtype)
    theirs = nn.MultiheadAttention(width, heads, bias=biases, batch_first=True).to(dtype)
    same_weights(layer, theirs)
    x = torch.randn(3, 6, width, dtype=dtype)
    for ours, expected in beside(layer, theirs, x, None, x, x, x):
        close(ours, expected, dtype)


@DTYPES
@KERNELS
def test_causal_attention_with_padding_equals_pytorchs(kernel, dtype):
    layer = Attention(12, 3, mask=causal, kernel=kernel).to(dtype)
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).to(dtype)
    same_weights(layer, theirs)
    x = torch.randn(4, 7, 12, dtype=dtype)
    # The first slot is real, or PyTorch would have queries without keys, and NaN.
    valid = torch.rand(4, 7) < 0.6
    valid[:, 0] = True
    later = torch.ones(7, 7, dtype=torch.bool).triu(1)
    context = around(x, valid)
    for ours, expected in beside(layer, theirs, x, context, x, x, x, key_padding_mask=~valid, attn_mask=later):
        close(ours, expected, dtype)


@DTYPES
@KERNELS
@pytest.mark.parametrize("length", [1, 4, 11])
def test_cross_attention_equals_pytorchs(length, kernel, dtype):
    """The memory has a length of its own, and padding of its own."""
    layer = Attention(10, 2, reads="memory", kernel=kernel).to(dtype)
    theirs = nn.MultiheadAttention(10, 2, batch_first=True).to(dtype)
    same_weights(layer, theirs)
    x, memory = torch.randn(3, 5, 10, dtype=dtype), torch.randn(3, length, 10, dtype=dtype)
    valid = torch.rand(3, length) < 0.5
    valid[torch.arange(3), torch.randint(length, (3,))] = True
    context = around(x, memory=memory, memory_valid=valid)
    for ours, expected in beside(layer, theirs, x, context, x, memory, memory, key_padding_mask=~valid):
        close(ours, expected, dtype)


@DTYPES
@KERNELS
@pytest.mark.parametrize("biases", [True, False], ids=["biases", "no-biases"])
def test_keys_and_values_of_two_sources_and_widths_equal_pytorchs(biases, kernel, dtype):
    """Their kdim and vdim: here both sources are columns of one memory, and ready modules choose theirs."""
    layer = Attention(
        12,
        4,
        reads="memory",
        kernel=kernel,
        biases=biases,
        key=Columns(0, 5, 12, biases),
        value=Columns(5, 12, 12, biases),
    ).to(dtype)
    theirs = nn.MultiheadAttention(12, 4, kdim=5, vdim=7, bias=biases, batch_first=True).to(dtype)
    same_weights(layer, theirs)
    x, k, v = (torch.randn(2, n, width, dtype=dtype) for n, width in ((6, 12), (9, 5), (9, 7)))
    context = Context.of(x, torch.cat([k, v], -1))
    for ours, expected in beside(layer, theirs, x, context, x, k, v):
        close(ours, expected, dtype)


def looped(layer, x, memory=None, mask=None):
    """The definition, one row, one head and one query at a time."""
    memory = x if memory is None else memory
    q, k, v = layer.query(x), layer.key(memory), layer.value(memory)
    d, d_v = q.shape[-1] // layer.heads, v.shape[-1] // layer.kv_heads
    scale = 1 / math.sqrt(d) if layer.scale is None else layer.scale
    rows = []
    for b in range(x.shape[0]):
        joined = []
        for i in range(x.shape[1]):
            heads = []
            for h in range(layer.heads):
                g = h * layer.kv_heads // layer.heads
                at, at_v = slice(h * d, (h + 1) * d), slice(g * d_v, (g + 1) * d_v)
                scores = k[b][:, g * d : (g + 1) * d] @ q[b, i, at] * scale
                if mask is not None:
                    scores = scores.masked_fill(~mask[i], -math.inf)
                heads.append(scores.softmax(-1) @ v[b][:, at_v])
            joined.append(torch.cat(heads))
        rows.append(torch.stack(joined))
    return layer.out(torch.stack(rows))


@DTYPES
@KERNELS
@pytest.mark.parametrize(
    ("width", "heads", "kv_heads", "head_width"),
    [(12, 6, 2, None), (12, 6, 3, None), (12, 4, 1, None), (10, 3, 1, 5), (9, 2, 2, 7), (8, 4, 2, 1), (5, 1, 1, 3)],
)
def test_grouped_heads_and_head_widths_equal_a_loop(width, heads, kv_heads, head_width, kernel, dtype):
    layer = Attention(width, heads, kv_heads=kv_heads, head_width=head_width, mask=causal, kernel=kernel).to(dtype)
    each = head_width or width // heads
    assert layer.query.weight.shape == (heads * each, width)
    assert layer.key.weight.shape == layer.value.weight.shape == (kv_heads * each, width)
    x = torch.randn(2, 5, width, dtype=dtype)
    close(layer(x), looped(layer, x, mask=torch.ones(5, 5, dtype=torch.bool).tril()), dtype)


@DTYPES
@KERNELS
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_values_may_be_wider_or_narrower_than_keys(kv_heads, kernel, dtype):
    """Ready modules bring the widths: keys of 3, values of 5, and an output of its own."""
    layer = Attention(
        12,
        4,
        kv_heads=kv_heads,
        kernel=kernel,
        query=nn.Linear(12, 4 * 3),
        key=nn.Linear(12, kv_heads * 3),
        value=nn.Linear(12, kv_heads * 5),
        out=nn.Linear(4 * 5, 7),
    ).to(dtype)
    x = torch.randn(2, 6, 12, dtype=dtype)
    y = layer(x)
    assert y.shape == (2, 6, 7)
    close(y, looped(layer, x), dtype)


@KERNELS
def test_without_projections_it_is_ordinary_attention(kernel):
    """A query of its own, and keys and values that are one tensor: nothing is learned."""
    nothing = nn.Identity()
    layer = Attention(
        6, 1, reads="memory", kernel=kernel, query=nothing, key=nothing, value=nothing, out=nothing
    ).double()
    assert not list(layer.parameters())
    x, memory = torch.randn(2, 3, 6, dtype=torch.float64), torch.randn(2, 5, 6, dtype=torch.float64)
    expected = (x @ memory.mT / math.sqrt(6)).softmax(-1) @ memory
    close(layer(x, Context.of(x, memory)), expected, torch.float64)


@KERNELS
@pytest.mark.parametrize("scale", [1.0, 0.25, 0.0, -2.0])
def test_a_scale_takes_the_place_of_the_root(scale, kernel):
    """1.0 is the product as it is; 0 looks at all alike."""
    layer = Attention(8, 2, scale=scale, kernel=kernel).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    close(layer(x), looped(layer, x), torch.float64)
    with heedful.listen(layer) as trace:
        layer(x)
    assert torch.allclose(trace["scores"], trace["q"] @ trace["k"].mT * scale, rtol=1e-12, atol=0)
    if scale == 0:
        assert torch.equal(trace["weights"], torch.full((2, 2, 5, 5), 0.2, dtype=torch.float64))


@KERNELS
def test_dropout_is_of_weights_and_while_training_alone(kernel):
    layer = Attention(6, 2, dropout=0.5, kernel=kernel)
    plain = Attention(6, 2, kernel=kernel)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(1, 4, 6).expand(4000, -1, -1)
    with torch.no_grad():
        assert torch.equal(layer.eval()(x), plain(x))
        with heedful.listen(layer.train(), only=["weights", "heads"]) as trace:
            layer(x)
        before, after = trace["weights"], trace["heads"]
        with heedful.listen(plain, only=["weights", "heads"]) as expected:
            plain(x)
    # Heard are the weights before any was dropped; what was dropped is made good by the others, on average.
    assert torch.allclose(before, expected["weights"], atol=1e-6)
    assert not torch.equal(after, expected["heads"])
    spread = after.std(0) / math.sqrt(len(x))
    assert ((after.mean(0) - expected["heads"][0]).abs() < 5 * spread).all()


def test_dropped_weights_are_zero_and_the_others_are_scaled():
    """Values that are unit vectors show the weights."""
    layer = Attention(4, 1, dropout=0.25, kernel="reference", value=nn.Identity(), out=nn.Identity()).train()
    x = torch.eye(4).expand(500, -1, -1)
    with heedful.listen(layer, only=["weights"]) as trace:
        y = layer(x)
    kept = y != 0
    assert torch.allclose(y[kept], (trace["weights"][:, 0] / 0.75)[kept])
    assert 0.72 < kept.float().mean() < 0.78


@KERNELS
@pytest.mark.parametrize("heads", [(2, 2), (4, 1)])
def test_gradients_are_those_of_the_function(heads, kernel):
    layer = Attention(4, heads[0], kv_heads=heads[1], mask=causal & key("valid"), kernel=kernel).double()
    names = [name for name, _ in layer.named_parameters()]
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    valid = torch.tensor([[True, True, True], [False, True, True]])

    def f(x, *tensors):
        context = around(x, valid)
        return torch.func.functional_call(layer, dict(zip(names, tensors, strict=True)), (x, context))

    assert torch.autograd.gradcheck(f, (x, *(p.detach().requires_grad_() for p in layer.parameters())))


@KERNELS
def test_what_stands_in_padding_leaks_into_no_real_slot(kernel):
    """Not even NaN. (Padded queries are computed, and are the caller's to ignore.)"""
    layer = Attention(6, 2, mask=causal, kernel=kernel)
    x, valid = torch.randn(2, 5, 6), torch.tensor([[True] * 5, [False, False, True, True, True]])
    context = around(x, valid)
    spoilt = torch.where(valid[..., None], x, math.nan)
    assert torch.equal(layer(spoilt, context)[valid], layer(x, context)[valid])


@KERNELS
def test_what_stands_in_a_memorys_padding_leaks_into_nothing(kernel):
    layer = Attention(6, 2, reads="memory", kernel=kernel)
    x, memory, valid = (
        torch.randn(2, 3, 6),
        torch.randn(2, 4, 6),
        torch.tensor([[True] * 4, [True, False, False, True]]),
    )
    spoilt = torch.where(valid[..., None], memory, math.nan).requires_grad_()
    expected = layer(x, around(x, memory=memory, memory_valid=valid))
    y = layer(x, around(x, memory=spoilt, memory_valid=valid))
    assert torch.equal(y, expected)
    y.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in (spoilt, *layer.parameters()))
    assert not spoilt.grad[~valid].any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 512, "heads": 7}, r"heads=7 does not divide width=512; try 8"),
        ({"width": 10, "heads": 4}, r"heads=4 does not divide width=10; try 5"),
        ({"width": 12, "heads": 6, "kv_heads": 4}, r"kv_heads=4 does not divide heads=6"),
        ({"width": 12, "heads": 6, "kv_heads": 12}, r"kv_heads=12 does not divide heads=6"),
        ({"width": 12, "heads": 6, "kv_heads": 0}, r"kv_heads=0 does not divide heads=6"),
        ({"width": 12, "heads": 0}, r"heads=0"),
        ({"width": 12, "heads": 2, "kernel": "flash"}, r'kernel="flash"; there are \'auto\', \'reference\', \'sdpa\''),
        ({"width": 12, "heads": 2, "reads": "neighbours"}, r'a layer reads "own" or "memory", not "neighbours"'),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(arguments, message):
    with pytest.raises(ValueError, match=message):
        Attention(**arguments)(torch.randn(1, 2, arguments["width"]))


def test_a_ready_module_of_a_wrong_width_is_refused():
    with pytest.raises(ValueError, match=r"heads=4 does not divide a projection's width of 10"):
        Attention(12, 4, query=nn.Linear(12, 10))(torch.randn(1, 2, 12))
    with pytest.raises(ValueError, match=r"q .* k .*one width|one width.*q .* k "):
        Attention(12, 4, query=nn.Linear(12, 8))(torch.randn(1, 2, 12))


def test_cross_attention_without_a_memory_is_refused():
    with pytest.raises(
        ValueError, match=r"memory \(cross-attention\) and the call has none: give the encoder's output"
    ):
        Attention(6, 2, reads="memory")(torch.randn(1, 2, 6))
