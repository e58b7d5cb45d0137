"""Attention as a layer: project, rotate, look, join the heads, project back.

    head_h = softmax( q_h k_hᵀ / √d ) v_h           y = [head_1, ..., head_H] W_O

The paper calls the projections W^Q, W^K, W^V and W^O; here they are `query`, `key`, `value` and `out`.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from heedful.attention.kernel import look, pick
from heedful.context import Context, Pattern
from heedful.mask import Mask, everything
from heedful.position.rotary import Rotary
from heedful.side import Side
from heedful.trace import note


class Attention(nn.Module):
    """Multi-head attention; what a slot may look at is `mask`, where it looks is `reads`.

    width        of x, in and out
    heads        how many looks at once
    kv_heads     heads of the keys and values, each shared by heads / kv_heads queries' heads
    head_width   width / heads if not given
    mask, bias   who may look at whom, and what adjusts the scores
    rotary       position that turns q and k
    scale        1/√head_width if not given; 1.0 is the unscaled product
    dropout      of attention weights, while training
    biases       whether the projections have them
    reads        "own": self-attention; "memory": another sequence (cross-attention)
    kernel       "auto", or one by name
    query, key, value, out
                 ready modules in place of the layer's own, for other widths or none
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_width: int | None = None,
        mask: Mask = everything,
        bias: Sequence[nn.Module] = (),
        rotary: Rotary | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
        biases: bool = True,
        reads: str = "own",
        kernel: str = "auto",
        query: nn.Module | None = None,
        key: nn.Module | None = None,
        value: nn.Module | None = None,
        out: nn.Module | None = None,
    ) -> None:
        super().__init__()
        pick(mask, bias, kernel)  # says what is wrong with them, before anything runs
        if heads < 1:
            raise ValueError(f"heads={heads}: there is at least one")
        kv_heads = heads if kv_heads is None else kv_heads
        if head_width is None and query is None and width % heads:
            near = min((n for n in range(1, width + 1) if width % n == 0), key=lambda n: abs(n - heads))
            raise ValueError(f"heads={heads} does not divide width={width}; try {near}")
        if kv_heads < 1 or heads % kv_heads:
            raise ValueError(
                f"kv_heads={kv_heads} does not divide heads={heads}; each is shared by a whole number of heads"
            )
        each = width // heads if head_width is None else head_width
        if each < 1 and query is None:
            raise ValueError(f"head_width={head_width}: a head of width {each} holds nothing")
        self.query = query or nn.Linear(width, heads * each, bias=biases)
        self.key = key or nn.Linear(width, kv_heads * each, bias=biases)
        self.value = value or nn.Linear(width, kv_heads * each, bias=biases)
        self.out = out or nn.Linear(heads * each, width, bias=biases)
        self.bias, self.rotary = nn.ModuleList(bias), rotary
        self.width, self.heads, self.kv_heads = width, heads, kv_heads
        self.mask, self.scale = mask, scale
        self.dropout, self.reads, self.kernel = dropout, reads, kernel

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """What this layer looks at, for the shell to plan before the first block runs."""
        bias = tuple(self.bias)
        return (Pattern(self.mask, bias, self.reads, pick(self.mask, bias, self.kernel)),)

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        _check_width(x, self.width)
        context = Context.of(x) if context is None else context
        q = note("q", self.turned(self.split(self.query(x), self.heads), context.own))
        k, v = context.source(self.reads).keys_values(self, x, self.project)
        k, v = note("k", k), note("v", v)
        (pattern,) = self.patterns
        scale = q.shape[-1] ** -0.5 if self.scale is None else self.scale
        dropout = self.dropout if self.training else 0.0
        y = note("heads", look(q, k, v, context.plan(*pattern), scale, dropout, pattern.kernel))
        return note("out", self.out(y.transpose(1, 2).flatten(2)))

    def project(self, x: Tensor, of: Side) -> tuple[Tensor, Tensor]:
        """Keys and values of a source; keys turned to where they stand."""
        return self.turned(self.split(self.key(x), self.kv_heads), of), self.split(self.value(x), self.kv_heads)

    def turned(self, x: Tensor, of: Side) -> Tensor:
        return x if self.rotary is None or of.at is None else self.rotary(x, of.at)

    @staticmethod
    def split(x: Tensor, heads: int) -> Tensor:
        """(batch, n, heads · width) -> (batch, heads, n, width), without moving memory."""
        if x.shape[-1] % heads:
            raise ValueError(f"heads={heads} does not divide a projection's width of {x.shape[-1]}")
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    def extra_repr(self) -> str:
        heads = f"{self.heads} heads" if self.heads == self.kv_heads else f"{self.heads} heads on {self.kv_heads}"
        return f"{heads}, mask={self.mask!r}, reads={self.reads!r}"


def _check_width(x: Tensor, width: int) -> None:
    if x.dim() != 3 or x.shape[-1] != width:
        raise ValueError(f"x has shape {tuple(x.shape)}, this layer's width is {width}: give (batch, length, {width})")
