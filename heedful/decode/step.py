"""One stepper for every model that writes: the prompt is read once, then a token a step.

    stepper = Stepper(model, prompts, room=20)                       # Decoder
    stepper = Stepper(model, starts, sources=sources, room=20)       # EncoderDecoder
    stepper.step(stepper.logits.argmax(-1))

What was read stands in a fixed cache, which has exactly the room that is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from heedful.attention.cache import Cache, Fixed
from heedful.embedding import Embedding
from heedful.model import Decoder, Encoder, EncoderDecoder
from heedful.position.added import Learned

Ids = Sequence[Sequence[int]]


class Stepper:
    """A batch of texts being written, a token of each row at a time.

    logits    (rows, vocab) in float32: what the latest step says comes next
    rows      how many rows there are
    room      of each prompt: how many tokens may follow it; learned positions may end it sooner than asked
    """

    @torch.no_grad()
    def __init__(
        self,
        model: Decoder | EncoderDecoder,
        prompts: Ids,
        *,
        sources: Ids | None = None,
        room: int | Sequence[int],
    ) -> None:
        """Read the prompts: ids that the text goes on from, and of an EncoderDecoder what its decoder begins with.

        sources   ids of each row's source, its end included
        """
        _check(model, sources)
        decoder = model.decoder if isinstance(model, EncoderDecoder) else model
        if decoder.head is None:
            raise ValueError("this model has no head, so it says no words: decoding needs logits")
        device = next(model.parameters()).device
        ids, valid = _padded("prompt", prompts, decoder, left=True)
        self.model, self.rows = model, len(ids)
        self.room = _room(prompts, room, _reach(decoder))
        # The last token of all is said and not read.
        self.cache = Fixed(ids.shape[1] + max(self.room) - 1)
        # Which of the given rows each row goes on from.
        self._origin = torch.arange(self.rows, device=device)
        # Of a prompt only the last slot is asked what comes next; a head is wide.
        hook = decoder.head.register_forward_pre_hook(_last_slot)
        try:
            if isinstance(model, EncoderDecoder):
                assert sources is not None
                source, source_valid = _padded("source", sources, model.encoder, left=False)
                if len(source) != len(ids):
                    raise ValueError(f"{len(ids)} prompts and {len(source)} sources: each row has one of both")
                logits = model(
                    source.to(device),
                    ids.to(device),
                    source_valid=_moved(source_valid, device),
                    target_valid=_moved(valid, device),
                    cache=self.cache,
                )
            else:
                logits = model(ids.to(device), valid=_moved(valid, device), cache=self.cache)
        finally:
            hook.remove()
        self.logits: Tensor = logits[:, -1].float()
        if bool(self.logits.isnan().any()):
            raise ValueError("the model says NaN: its weights are damaged, or its training went wrong")

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        """Read one more token of each row; return what comes next."""
        ids = tokens[:, None]
        translates = isinstance(self.model, EncoderDecoder)
        logits = self.model(None, ids, cache=self.cache) if translates else self.model(ids, cache=self.cache)
        self.logits = logits[:, -1].float()
        return self.logits

    @torch.no_grad()
    def select(self, rows: Tensor) -> None:
        """Go on with these rows in this order, repeated where asked; `logits` are those of the next step."""
        origin = self._origin[rows]
        if not torch.equal(origin, self._origin):
            self.cache.select(rows)
        elif not torch.equal(rows, torch.arange(self.rows, device=rows.device)):
            _select_own(self.cache, rows)
        self._origin, self.rows = origin, len(rows)


def _select_own(cache: Cache, rows: Tensor) -> None:
    """Beams that change places within one source: the memory of each stays, and is not moved."""
    side, cache.memory_side = cache.memory_side, None
    memories = [room.memory for room in cache.rooms.values()]
    for room in cache.rooms.values():
        room.memory = {}
    cache.select(rows)
    cache.memory_side = side
    for room, memory in zip(cache.rooms.values(), memories, strict=True):
        room.memory = memory


def _last_slot(head: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    return (given[0][:, -1:],)


def _moved(t: Tensor | None, device: torch.device) -> Tensor | None:
    return None if t is None else t.to(device)


def _padded(name: str, texts: Ids, reader: Encoder | Decoder, *, left: bool) -> tuple[Tensor, Tensor | None]:
    """Texts of ids side by side, and which are real; None where all are."""
    if len(texts) == 0:
        raise ValueError(f"no {name}s: give a list of ids for each row")
    lengths = [len(text) for text in texts]
    longest, reach = max(lengths), _reach(reader)
    if min(lengths) == 0:
        raise ValueError(f"{name} {lengths.index(0)} is empty: a model needs an id to begin with")
    if reach is not None and longest > reach:
        raise ValueError(
            f"a {name} has {longest} tokens, the model's learned positions end after {reach}: "
            "shorten it, or use a model with a longer table"
        )
    pads = [[0] * (longest - n) for n in lengths]
    ids = torch.tensor(
        [[*pad, *text] if left else [*text, *pad] for pad, text in zip(pads, texts, strict=True)], device="cpu"
    )
    if isinstance(reader.embedding, Embedding):
        # Here, where looking is free: on a GPU such an id would end the process.
        vocab, least, most = reader.embedding.tokens.num_embeddings, int(ids.min()), int(ids.max())
        if least < 0 or most >= vocab:
            wrong = most if most >= vocab else least
            raise ValueError(
                f"id {wrong} is outside of the vocabulary, 0..{vocab - 1}: do tokenizer and model belong together?"
            )
    if min(lengths) == longest:
        return ids, None
    slots, real = torch.arange(longest, device="cpu")[None], torch.tensor(lengths, device="cpu")[:, None]
    return ids, slots >= longest - real if left else slots < real


def _reach(reader: Encoder | Decoder) -> int | None:
    """How many positions there are, if they are learned."""
    return min((part.length for part in reader.modules() if isinstance(part, Learned)), default=None)


def _room(prompts: Ids, room: int | Sequence[int], reach: int | None) -> list[int]:
    asked = [room] * len(prompts) if isinstance(room, int) else list(room)
    if len(asked) != len(prompts):
        raise ValueError(f"room is {len(asked)} numbers for {len(prompts)} prompts: give one, or one for each")
    if min(asked) < 1:
        raise ValueError(f"room={min(asked)}: at least one token must be allowed to follow")
    if reach is None:
        return asked
    # What is said last is not read, so it needs no position.
    return [min(n, reach - len(prompt) + 1) for n, prompt in zip(asked, prompts, strict=True)]


def _check(model: nn.Module, sources: Ids | None) -> None:
    if not isinstance(model, (Decoder, EncoderDecoder)):
        raise ValueError(f"a {type(model).__name__} does not write: give a Decoder or an EncoderDecoder")
    if isinstance(model, EncoderDecoder) and sources is None:
        raise ValueError("an EncoderDecoder writes about a source: give sources=[ids, ...], one for each prompt")
    if isinstance(model, Decoder) and sources is not None:
        raise ValueError("a Decoder reads no source: give the ids as prompts")
    if model.training:
        raise ValueError("the model is in training mode, where dropout is on: call model.eval() first")
