r"""Ids to text as they come, in pieces that are never taken back.

    pieces = Pieces(tokenizer)
    stops = Stops(["\n\n"])
    for token in tokens:
        print(stops.add(pieces.add(token)), end="")
    print(stops.add(pieces.rest()) + stops.rest())

A piece is what the latest ids add to the decoding of all. It never ends in half a character.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# What a decoder writes for bytes that are no character, or not yet: of one character at most three are missing.
UNKNOWN, PENDING = "\ufffd", 3
# How many ids are decoded together: enough to know what stands before a new one, and no more as texts grow.
WINDOW, KEPT, LONGEST = 24, 8, 96


class Pieces:
    """Text from ids, one after another; all pieces together are the decoding of all ids.

    before   ids that stand before, and are not said again: what an id means may depend on its left neighbour

    The same time for every id, however long the text: only a window of the latest is decoded.
    One exception to the sum: a decoder with byte fallback reads a run of bytes whole, so it may come to spoil
    characters that were said already. They stay said.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        self.tokenizer, self.window = tokenizer, list(before)
        self.said = self._decoded(self.window)
        self._forget(self.said)

    def add(self, token: int) -> str:
        self.window.append(token)
        text = self._decoded(self.window)
        spoilt = not text.startswith(self.said)
        if spoilt and text.endswith(UNKNOWN) and len(self.window) < LONGEST:
            return ""
        waiting = len(text) - len(text.rstrip(UNKNOWN))
        end = max(len(text) - min(waiting, PENDING), len(self.said))
        piece, self.said = text[len(self.said) : end], text[:end]
        self._forget(text)
        return piece

    def rest(self) -> str:
        """What was held back because more might have come."""
        text = self._decoded(self.window)
        piece, self.said = text[len(self.said) :], text
        return piece

    def _decoded(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def _forget(self, text: str) -> None:
        """Cut the window where its end decodes as it did with all before it: between two characters."""
        if len(self.window) < WINDOW:
            return
        held = len(text) - len(self.said)
        for kept in range(KEPT, WINDOW):
            tail = self._decoded(self.window[-kept:])
            if len(tail) > held and text.endswith(tail):
                break
        else:
            if len(self.window) < LONGEST:
                return
            kept, tail = KEPT, self._decoded(self.window[-KEPT:])
        self.window, self.said = self.window[-kept:], tail[: len(tail) - held]


class Stops:
    """Text up to the first of these strings; that string and what follows it is not said.

    The first is the one that is complete first, so it does not matter how the text is cut into pieces.
    What may still become one of them is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str):
            raise TypeError(f"stop is one string, {stops!r}; give a list: [{stops!r}]")
        if "" in stops:
            raise ValueError('"" is in every text, so it cannot stop one: leave it out')
        self.stops, self.held, self.stopped = list(stops), "", False

    def add(self, piece: str) -> str:
        if self.stopped:
            return ""
        text = self.held + piece
        begins = [(text.find(stop) + len(stop), text.find(stop)) for stop in self.stops if stop in text]
        if begins:
            self.stopped, self.held = True, ""
            return text[: min(begins)[1]]
        keep = max((_begun(text, stop) for stop in self.stops), default=0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def rest(self) -> str:
        """What was held back and has become no stop."""
        piece, self.held = self.held, ""
        return piece


def _begun(text: str, stop: str) -> int:
    """How much of `stop` the end of `text` may be the beginning of."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
