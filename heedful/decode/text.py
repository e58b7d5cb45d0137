"""Strings in, strings out.

    translate(model, ["Guten Tag."])                         # EncoderDecoder: beam search
    generate(model, ["Once upon a time"], length=50)         # Decoder: what follows, drawn by chance
    for piece in stream(model, "Once upon a time"):          # the same, as it comes

The model brings its tokenizer, and knows its special ids by name: begin, end, start, pad.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from heedful.decode.beam import beam
from heedful.decode.logits import Rule, never, temperature, top_k, top_p
from heedful.decode.sample import Choose, collected, drawn, greedy, sample
from heedful.decode.step import Stepper
from heedful.decode.stream import Pieces, Stops
from heedful.model import Decoder, EncoderDecoder, Shell

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer


def translate(
    model: Shell,
    texts: Sequence[str],
    *,
    beams: int = 4,
    penalty: float = 1.0,
    length: int | None = None,
    batch: int = 2000,
) -> list[str]:
    """The best translation of each text, in the order given; an empty text has an empty one.

    beams     how many candidates go on side by side; 1 is greedy
    penalty   above 0 favours long translations, below 0 short ones
    length    tokens at most; if not given, 3 for each of the source's and 50 more
    batch     how many source tokens are translated at once, padding counted
    """
    speaker, tokenizer, special = _parts(model, EncoderDecoder, "translate", "translates", "generate")
    if special.start is None or len(special.end) == 0:
        raise ValueError(
            f"this model's special ids are {model.generation}; translating needs start and end: "
            'model.generation = {"start": ..., "end": ...}'
        )
    _check_texts(texts)
    _check_counts(beams=beams, length=1 if length is None else length, batch=batch)
    sources = {n: _encoded(tokenizer, text).ids for n, text in enumerate(texts) if text.strip()}
    for source in sources.values():
        if len(source) == 0 or source[-1] not in special.end:
            source.append(special.end[0])
    said = [""] * len(texts)
    for numbers in _batches({n: len(source) for n, source in sources.items()}, batch):
        read = [sources[n] for n in numbers]
        room = [3 * len(source) + 50 if length is None else length for source in read]
        stepper = Stepper(speaker, [[special.start]] * len(read), sources=read, room=room)
        if beams == 1:
            written = collected(sample(stepper, end=special.end, rules=[never(special.never)]))
        else:
            found = beam(stepper, beams=beams, penalty=penalty, end=special.end, never=special.never)
            written = [hypotheses[0].ids for hypotheses in found]
        for n, ids in zip(numbers, written, strict=True):
            said[n] = tokenizer.decode([i for i in ids if i not in special.end], skip_special_tokens=True)
    return said


def generate(
    model: Shell,
    texts: Sequence[str],
    *,
    length: int = 200,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: Sequence[str] = (),
    seed: int = 0,
    batch: int = 8192,
) -> list[str]:
    """What follows each text, up to an end token, a stop string, or `length` tokens.

    temperature   0 takes the likeliest token each time; 1 draws from what the model says
    top_k, top_p  draw from the k likeliest, or from the likeliest that reach probability p
    stop          strings that end a text, and are left out of it
    seed          the same seed, the same text; each text has a chance of its own, by its place
    batch         how many tokens are held at once: prompts and what may follow, padding counted
    """
    speaker, tokenizer, special = _parts(model, Decoder, "generate", "continues texts", "translate")
    _check_texts(texts)
    _check_counts(length=length, batch=batch)
    rules = _rules(temperature, top_k, top_p, special)
    prompts = {n: _prompt(tokenizer, text, special) for n, text in enumerate(texts)}
    said = [""] * len(texts)
    for numbers in _batches({n: len(prompt) + length for n, prompt in prompts.items()}, batch):
        writers = [_Writer(tokenizer, prompts[n], special, stop) for n in numbers]
        stepper = Stepper(speaker, [prompts[n] for n in numbers], room=length)
        steps = sample(
            stepper,
            end=special.end,
            rules=rules,
            choose=_choose(temperature, seed, numbers),
            until=_until(writers),
        )
        for _ in steps:
            pass
        for n, writer in zip(numbers, writers, strict=True):
            writer.close()
            said[n] = "".join(writer.pieces)
    return said


def stream(
    model: Shell,
    text: str,
    *,
    length: int = 200,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: Sequence[str] = (),
    seed: int = 0,
) -> Iterator[str]:
    """What follows a text, piece by piece as it is written; the pieces are those of `generate`'s first text."""
    speaker, tokenizer, special = _parts(model, Decoder, "stream", "continues texts", "translate")
    _check_texts([text])
    _check_counts(length=length)
    rules = _rules(temperature, top_k, top_p, special)
    prompt = _prompt(tokenizer, text, special)
    writer = _Writer(tokenizer, prompt, special, stop)
    choose = _choose(temperature, seed, [0])

    # Apart, so that what is wrong above is said now, and not when the first piece is asked for.
    def pieces() -> Iterator[str]:
        stepper = Stepper(speaker, [prompt], room=length)
        steps = sample(stepper, end=special.end, rules=rules, choose=choose, until=_until([writer]))
        for _ in steps:
            yield from writer.pieces
            writer.pieces.clear()
        writer.close()
        yield from writer.pieces

    return pieces()


class _Special(NamedTuple):
    """A model's special ids; `never` are those that no text holds."""

    begin: int | None
    end: list[int]
    start: int | None
    never: list[int]


class _Writer:
    """One row's text: pieces up to the first stop string."""

    def __init__(self, tokenizer: Tokenizer, prompt: list[int], special: _Special, stop: Sequence[str]) -> None:
        self.decoding, self.stops, self.end = Pieces(tokenizer, prompt), Stops(stop), special.end
        self.pieces: list[str] = []

    def add(self, token: int) -> bool:
        """Whether the text ends here. The end token is no text, even where its tokenizer does not call it special."""
        if token not in self.end:
            self._say(self.stops.add(self.decoding.add(token)))
        return self.stops.stopped

    def close(self) -> None:
        self._say(self.stops.add(self.decoding.rest()) + self.stops.rest())

    def _say(self, piece: str) -> None:
        if piece:
            self.pieces.append(piece)


def _until(writers: list[_Writer]) -> Callable[[int, int], bool]:
    return lambda row, token: writers[row].add(token)


def _parts(
    model: Shell, kind: type[Shell], name: str, does: str, other: str
) -> tuple[Decoder | EncoderDecoder, Tokenizer, _Special]:
    if not isinstance(model, kind) or not isinstance(model, (Decoder, EncoderDecoder)):
        other = f"use {other}" if isinstance(model, (Decoder, EncoderDecoder)) else "it does not write texts"
        article = "an" if type(model).__name__[0] in "AEIOU" else "a"
        raise ValueError(f"{name} is for what {does}; this is {article} {type(model).__name__}: {other}")
    if model.tokenizer is None:
        raise ValueError(
            "the model has no tokenizer, so it cannot read text: its folder needs a tokenizer.json, "
            "or set model.tokenizer = tokenizers.Tokenizer.from_file(...)"
        )
    ids = {key: _special_ids(model, key) for key in ("begin", "end", "start", "pad")}
    begin, start = next(iter(ids["begin"]), None), next(iter(ids["start"]), None)
    unsaid = [i for i in {*ids["pad"], *ids["start"]} if i not in ids["end"]]
    return model, cast("Tokenizer", model.tokenizer), _Special(begin, ids["end"], start, unsaid)


def _special_ids(model: Shell, key: str) -> list[int]:
    value = model.generation.get(key)
    if value is None:
        return []
    ids = [i for i in (value if isinstance(value, list) and key == "end" else [value]) if type(i) is int]
    if len(ids) != (len(value) if isinstance(value, list) else 1):
        raise ValueError(f'model.generation["{key}"] is {value!r}; it is an id, or for "end" a list of ids')
    return ids


def _check_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise TypeError(f"texts is one string; give a list of them: [{texts[:40]!r}]")
    for n, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"text {n} is a {type(text).__name__}, {text!r}; it must be a string")


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name}={count}: it is at least 1")


def _encoded(tokenizer: Tokenizer, text: str) -> Encoding:
    encoding = tokenizer.encode(text)
    if encoding.overflowing:
        raise ValueError(
            f"the tokenizer cuts a text to {len(encoding.ids)} tokens: call model.tokenizer.no_truncation(), "
            "or shorten the text"
        )
    # A tokenizer may pad by itself.
    encoding.truncate(sum(encoding.attention_mask))
    return encoding


def _prompt(tokenizer: Tokenizer, text: str, special: _Special) -> list[int]:
    encoding = _encoded(tokenizer, text)
    ids = encoding.ids
    # A tokenizer that closes its texts would have this one end before it goes on.
    while len(ids) > 0 and ids[-1] in special.end and encoding.special_tokens_mask[len(ids) - 1]:
        ids.pop()
    if len(ids) > 0:
        return ids
    if special.begin is None:
        raise ValueError('the text is empty, and the model has no "begin" id to start from: give it a first word')
    return [special.begin]


def _rules(t: float, k: int | None, p: float | None, special: _Special) -> list[Rule]:
    rules = [never(special.never)]
    if t != 0:
        rules.append(temperature(t))
    if k is not None:
        rules.append(top_k(k))
    if p is not None:
        rules.append(top_p(p))
    return rules


def _choose(t: float, seed: int, numbers: Sequence[int]) -> Choose:
    return greedy if t == 0 else drawn(seed, numbers)


def _batches(lengths: dict[int, int], budget: int) -> Iterator[list[int]]:
    """Numbers of texts of like length, longest first; each batch holds `budget` tokens, or one text."""
    batch: list[int] = []
    for n in sorted(lengths, key=lambda n: -lengths[n]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > budget:
            yield batch
            batch = []
        batch.append(n)
    if batch:
        yield batch
