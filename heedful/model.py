"""Three shells around the same fold: what runs when a model is called.

Encoder          ids -> vectors          every slot may look at every other
Decoder          ids -> logits           each slot looks back; with cross-attention, also at a memory
EncoderDecoder   source, target -> logits

Read `forward` from top to bottom: plan, embed, fold, norm, head.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torch import Tensor, nn

from heedful.attention.cache import Cache
from heedful.attention.layer import Attention
from heedful.block.block import Layers
from heedful.context import Context
from heedful.side import Side, side
from heedful.trace import note

Recipe = tuple[str, dict[str, object]]


class Shell(nn.Module):
    """What every shell carries beside its parts."""

    def __init__(self) -> None:
        super().__init__()
        # (name, arguments): how to build this model again; set by its recipe.
        self.recipe: Recipe | None = None
        # Set by `load`, where the folder has them.
        self.tokenizer: object | None = None
        self.generation: dict[str, object] = {}


class _Stack(Shell):
    def __init__(
        self,
        embedding: nn.Module,
        layers: Iterable[nn.Module],
        norm: nn.Module | None = None,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.embedding, self.layers, self.norm, self.head = embedding, Layers(layers), norm, head

    def plan(
        self,
        ids: Tensor,
        *,
        valid: Tensor | None = None,
        document: Tensor | None = None,
        at: Tensor | None = None,
        cache: Cache | None = None,
        tables: Mapping[str, Tensor] | None = None,
    ) -> Context:
        """The context of this call, with every part's patterns lowered."""
        own = _side("ids", ids, valid, document, at, cache, tables)
        return self.prepare(Context.begin(own, cache=cache))

    def prepare(self, context: Context) -> Context:
        for part in self.modules():
            if isinstance(part, Attention):
                for pattern in part.patterns:
                    context.plan(*pattern)
        return context

    def forward(
        self,
        ids: Tensor,
        *,
        valid: Tensor | None = None,
        document: Tensor | None = None,
        at: Tensor | None = None,
        cache: Cache | None = None,
        tables: Mapping[str, Tensor] | None = None,
        context: Context | None = None,
    ) -> Tensor:
        """ids (batch, n) -> (batch, n, vocab), or hidden states where there is no head.

        valid      bool (batch, n): True for real tokens; padding may stand left, right or inside
        document   integers (batch, n): slots of one document look at each other alone
        at         positions, where they are not to be derived
        cache      what was read before; this call is added to it
        tables     further facts by name, for masks that read them
        context    all of the above, from `plan`
        """
        if context is None:
            context = self.plan(ids, valid=valid, document=document, at=at, cache=cache, tables=tables)
        else:
            _alone(valid, document, at, cache, tables)
        context.check(ids)
        x = self.embedding(ids, context)
        x = self.layers(x, context)
        if self.norm is not None:
            x = note("norm", self.norm(x))
        if self.head is not None:
            x = note("logits", self.head(x))
        context.commit()
        return x


class Encoder(_Stack):
    """Reads a text whole."""


class Decoder(_Stack):
    """Reads a text from its beginning, and says what comes next."""


class Contexts(NamedTuple):
    """Of both ends of an EncoderDecoder; `source` is None where the cache holds the memory."""

    source: Context | None
    target: Context


class EncoderDecoder(Shell):
    """Reads a source whole, then a target from its beginning, looking at the source all the while.

    `target` is what the decoder reads: already shifted, beginning with its start token.
    """

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def plan(
        self,
        source: Tensor | None,
        target: Tensor,
        *,
        source_valid: Tensor | None = None,
        source_document: Tensor | None = None,
        source_at: Tensor | None = None,
        source_tables: Mapping[str, Tensor] | None = None,
        target_valid: Tensor | None = None,
        target_document: Tensor | None = None,
        target_at: Tensor | None = None,
        target_tables: Mapping[str, Tensor] | None = None,
        cache: Cache | None = None,
    ) -> Contexts:
        read = None
        if cache is None or cache.memory_side is None:
            if source is None:
                raise ValueError("no source: give it in the first call with a cache, and in every call without one")
            own = _side("source", source, source_valid, source_document, source_at, None, source_tables)
            read = self.encoder.prepare(Context.begin(own))
            memory_side = read.own
        else:
            if any(given is not None for given in (source, source_valid, source_document, source_at, source_tables)):
                raise ValueError("the cache holds a source already: give None for it, or a fresh cache for a new one")
            memory_side = cache.memory_side
        own = _side("target", target, target_valid, target_document, target_at, cache, target_tables)
        return Contexts(read, self.decoder.prepare(Context.begin(own, cache=cache, memory_side=memory_side)))

    def forward(
        self,
        source: Tensor | None,
        target: Tensor,
        *,
        source_valid: Tensor | None = None,
        source_document: Tensor | None = None,
        source_at: Tensor | None = None,
        source_tables: Mapping[str, Tensor] | None = None,
        target_valid: Tensor | None = None,
        target_document: Tensor | None = None,
        target_at: Tensor | None = None,
        target_tables: Mapping[str, Tensor] | None = None,
        cache: Cache | None = None,
        context: Contexts | None = None,
    ) -> Tensor:
        """source (batch, m), target (batch, n) -> (batch, n, vocab). Facts as in `Decoder`, for each side.

        With a cache that holds the source already, `source` may be None.
        """
        if context is None:
            context = self.plan(
                source,
                target,
                source_valid=source_valid,
                source_document=source_document,
                source_at=source_at,
                source_tables=source_tables,
                target_valid=target_valid,
                target_document=target_document,
                target_at=target_at,
                target_tables=target_tables,
                cache=cache,
            )
        else:
            sources = (source_valid, source_document, source_at, source_tables)
            targets = (target_valid, target_document, target_at, target_tables)
            _alone(*sources, *targets, cache)
        looking = context.target
        if (source is None) != (context.source is None):
            raise ValueError("the source belongs to the context that was planned with it: give both, or neither")
        if source is not None and context.source is not None:
            looking = looking.with_memory(self.encoder(source, context=context.source))
        logits: Tensor = self.decoder(target, context=looking)
        return logits


def _alone(*given: object) -> None:
    if any(fact is not None for fact in given):
        raise ValueError("a context holds all facts of its call: give them to plan, or give no context")


def _side(
    name: str,
    ids: Tensor,
    valid: Tensor | None,
    document: Tensor | None,
    at: Tensor | None,
    cache: Cache | None,
    tables: Mapping[str, Tensor] | None,
) -> Side:
    if ids.dim() < 2:
        raise ValueError(f"{name} has shape {tuple(ids.shape)}; give (batch, length): one text is {name}[None]")
    if cache is not None and not isinstance(cache, Cache):
        raise TypeError(f"cache is {cache!r}; give one that is made: Growing() or Fixed(capacity)")
    if cache is not None and document is not None and at is None:
        raise ValueError("document with a cache: where a document began may lie in an earlier call, so give at")
    return side(ids, valid=valid, document=document, at=at, tables=tables, start=0 if cache is None else cache.next)
