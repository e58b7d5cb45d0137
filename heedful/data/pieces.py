r"""Sentencepiece's models as a `tokenizers.Tokenizer`: the same ids, and the same text back.

    tokenizer = from_sentencepiece(Path("source.spm"))

Sentencepiece: Kudo and Richardson 2018, arXiv:1808.06226. Unigram and BPE, with byte fallback or without.

What it takes for one step is several here, for a normalizer of `tokenizers` does one thing:

    its map      each character by itself, then what belongs together joined: é from e and ´
    spaces       runs made one, "▁" for each, one more at the beginning
    own pieces   a piece that users defined is one character inside of the tokenizer, a stand-in
    unspelled    control pieces, bytes, the unknown piece: no text makes them, whatever it contains

Where the ids may differ:

    - Of segmentations that are equally likely, a unigram model takes another: it adds in 64 bits, not in 32.
    - A user-defined piece is found wherever it stands, the longest first. Where another piece overlaps it,
      sentencepiece may take that one.
    - With byte fallback, U+FDD1 and a few noncharacters after it are U+FDD0.

Where only the text may differ: bytes that are no UTF-8, which no text makes, are one U+FFFD each;
sentencepiece still reads those of their neighbours that are whole characters.
"""

from __future__ import annotations

import itertools
import math
import struct
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2
SPACE = "▁"
WHOLE_RULES = 2000  # on several characters, and of another kind than é from e and ´
MOST_STEPS = 2 * 10**6  # of reading a map; sentencepiece's own take an eighth of it
LONGEST_RULE = 100  # bytes

Fields = dict[int, list[Union[int, bytes]]]


@dataclass(frozen=True)
class Piece:
    name: str
    score: float
    kind: int


@dataclass(frozen=True)
class Proto:
    """What a .model says, as far as ids and text depend on it."""

    pieces: list[Piece]
    kind: int
    fallback: bool
    unknown: str
    map: bytes
    prefix: bool
    squeeze: bool


def from_sentencepiece(path: Path) -> Tokenizer:
    """The tokenizer of a sentencepiece `.model`. Its control pieces are special."""
    try:
        return _tokenizer(_proto(path.read_bytes()))
    except (ValueError, struct.error) as error:
        raise ValueError(f"{path} cannot be read as a sentencepiece model: {error}") from None


# The file.


def _proto(data: bytes) -> Proto:
    model = _fields(data)
    trainer, normalizer, denormalizer = (_fields(_last(model, n, b"")) for n in (2, 3, 5))
    pieces = []
    for message in model.get(1, []):
        piece = _fields(message) if isinstance(message, bytes) else {}
        (score,) = struct.unpack("<f", _last(piece, 2, bytes(4)))
        # Nine digits tell any float32, and come back from a tokenizer.json as they were.
        pieces.append(Piece(_last(piece, 1, b"").decode(), float(f"{score:.9g}"), _number(piece, 3, NORMAL)))
    proto = Proto(
        pieces=pieces,
        kind=_number(trainer, 3, UNIGRAM),
        fallback=bool(_number(trainer, 35, 0)),
        unknown=_last(trainer, 44, " ⁇ ".encode()).decode(),
        map=_last(normalizer, 2, b""),
        prefix=bool(_number(normalizer, 3, 1)),
        squeeze=bool(_number(normalizer, 4, 1)),
    )
    _check(proto)
    if proto.kind not in (UNIGRAM, BPE):
        raise ValueError("it is of words or characters; unigram and bpe are read here")
    if _number(trainer, 24, 0) or not _number(normalizer, 5, 1):
        raise ValueError("it does not write a space as ▁ before a word; only models that do are read here")
    if _last(denormalizer, 2, b""):
        raise ValueError("it changes its text after decoding; only models that do not are read here")
    return proto


def _check(proto: Proto) -> None:
    names, kinds = Counter(piece.name for piece in proto.pieces), Counter(piece.kind for piece in proto.pieces)
    repeated = [name for name, count in names.items() if count > 1 or not name]
    if repeated:
        raise ValueError(f"the piece {repeated[0]!r} is empty, or there twice")
    if kinds[UNKNOWN] != 1 or not set(kinds) <= {NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE}:
        raise ValueError(f"it has {len(proto.pieces)} pieces, of which {kinds[UNKNOWN]} stand for the unknown, not one")
    if not kinds[NORMAL] + kinds[USER]:
        raise ValueError("it has no pieces that a text is made of")
    if not all(math.isfinite(piece.score) for piece in proto.pieces):
        raise ValueError("a score is no finite number")
    if {piece.name for piece in proto.pieces if piece.kind == BYTE} != ({*_BYTES} if proto.fallback else set()):
        raise ValueError(f"{kinds[BYTE]} pieces are bytes, not {256 if proto.fallback else 0}")
    for piece in proto.pieces:
        if piece.kind == UNUSED and proto.kind == BPE:
            raise ValueError(f"the piece {piece.name!r} is unused: a BPE model with such pieces is not read here")
        if piece.kind in (UNKNOWN, CONTROL) and len(piece.name) == 1 and proto.fallback:
            raise ValueError(f"the piece {piece.name!r} is one character, so a text could spell it")


_BYTES = [f"<0x{n:02X}>" for n in range(256)]


def _fields(data: bytes) -> Fields:
    """A protobuf message: the number of a field -> its values. https://protobuf.dev/programming-guides/encoding"""
    found: Fields = {}
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        value: int | bytes
        if key & 7 == 0:
            value, at = _varint(data, at)
        else:
            size, at = _varint(data, at) if key & 7 == 2 else ({1: 8, 5: 4}.get(key & 7, -1), at)
            value, at = data[at : at + size], at + size
            if size < 0 or at > len(data):
                raise ValueError("it is damaged, or something else")
        found.setdefault(key >> 3, []).append(value)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A whole number, seven bits a byte; and where it ends."""
    value = 0
    for nth, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * nth
        if byte < 128:
            return value, at + nth + 1
    raise ValueError("it is damaged, or something else")


def _last(fields: Fields, n: int, default: bytes) -> bytes:
    value = fields.get(n, [default])[-1]
    if not isinstance(value, bytes):
        raise ValueError(f"field {n} is a number where a text is expected")
    return value


def _number(fields: Fields, n: int, default: int) -> int:
    value = fields.get(n, [default])[-1]
    if not isinstance(value, int):
        raise ValueError(f"field {n} is a text where a number is expected")
    return value


# The tokenizer.


@dataclass(frozen=True)
class StandIns:
    """Characters that no text is written with, for what has to be one character on its way.

    hole      what no piece has: all of that is the same to a vocabulary
    apart     keeps two characters apart
    space     a space of a piece, which bytes never make
    unknown   what stands for the unknown
    own       user-defined pieces, the longer ones first: they win where one begins with another
    """

    hole: str
    apart: str
    space: str
    unknown: str
    own: dict[str, str]


def _tokenizer(proto: Proto) -> Tokenizer:
    from tokenizers import Regex, normalizers, pre_tokenizers

    rules = _rules(proto.map) if proto.map else {}
    stand_ins = _stand_ins(proto.pieces, {*"".join(rules)})
    names = [stand_ins.own.get(piece.name, piece.name) for piece in proto.pieces]
    spelled = {
        name: piece.score for name, piece in zip(names, proto.pieces, strict=True) if piece.kind in (NORMAL, USER)
    }
    tokenizer = _model(proto, names, spelled)
    steps = _normalizers(proto, rules, stand_ins)
    # What no piece has is unknown, or bytes, each by itself: so no text spells a name that has such a character.
    strange = Regex(f"[^{_chars(itertools.chain(*spelled))}]")
    if proto.fallback:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(strange, "isolated")
    else:
        steps.append(normalizers.Replace(strange, stand_ins.hole))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = _decoder(proto, stand_ins)
    tokenizer.add_special_tokens([piece.name for piece in proto.pieces if piece.kind == CONTROL])
    tokenizer.encode_special_tokens = True
    return tokenizer


def _stand_ins(pieces: list[Piece], mapped: set[str]) -> StandIns:
    codes = itertools.chain(range(0xFDD0, 0xFDF0), range(0x10FFFD, 0xFFFFF, -1))
    taken = mapped.union(*(piece.name for piece in pieces))
    free = (chr(code) for code in codes if chr(code) not in taken)
    own = sorted((piece.name for piece in pieces if piece.kind == USER), key=len, reverse=True)
    return StandIns(next(free), next(free), next(free), next(free), dict(zip(own, free, strict=False)))


def _model(proto: Proto, names: list[str], spelled: dict[str, float]) -> Tokenizer:
    from tokenizers import Tokenizer, models

    unknown = next(n for n, piece in enumerate(proto.pieces) if piece.kind == UNKNOWN)
    if proto.kind == UNIGRAM:
        # So unlikely that to spell the name by its characters is likelier.
        never = float(2 * math.floor(min(spelled.values()) - 1) * max(map(len, names)))
        scores = [spelled.get(name, never) for name in names]
        return Tokenizer(models.Unigram(list(zip(names, scores, strict=True)), unknown, proto.fallback))
    ids = {name: n for n, name in enumerate(names)}
    return Tokenizer(
        models.BPE(ids, _merges(spelled), unk_token=names[unknown], fuse_unk=True, byte_fallback=proto.fallback)
    )


def _merges(spelled: dict[str, float]) -> list[tuple[str, str]]:
    """Two neighbours become one wherever that is a piece; the best piece comes first."""
    ranked = sorted(spelled, key=lambda name: -spelled[name])
    splits = ((name[:at], name[at:]) for name in ranked for at in range(1, len(name)))
    return [(left, right) for left, right in splits if left in spelled and right in spelled]


def _normalizers(proto: Proto, rules: dict[str, str], stand_ins: StandIns) -> list[Any]:
    """From a text as it is typed to one that is made of pieces."""
    from tokenizers import Regex, normalizers

    replace, own = normalizers.Replace, stand_ins.own
    typed = _chars([stand_ins.apart, stand_ins.space, stand_ins.unknown, *own.values()])
    steps: list[Any] = [replace(Regex(f"[{typed}]"), stand_ins.hole)]
    if rules:
        # The map does not touch them.
        steps += [replace(name, own[name]) for name in own]
    if proto.prefix:
        steps.append(normalizers.Prepend(" "))
    if rules:
        steps += _mapping(proto.map, rules, stand_ins.apart)
    if proto.squeeze:
        steps.append(replace(Regex(" {2,}"), " "))
        if not proto.prefix:
            steps.append(replace(Regex(r"\A "), ""))
    if rules:
        steps += [replace(own[name], name) for name in own]
    steps.append(replace(" ", SPACE))
    if proto.squeeze:
        steps.append(replace(Regex(rf"{SPACE}+\z"), ""))
    return steps + [replace(name, own[name]) for name in own]


def _decoder(proto: Proto, stand_ins: StandIns) -> Any:
    from tokenizers import Regex, decoders

    replace = decoders.Replace
    unknown = next(piece.name for piece in proto.pieces if piece.kind == UNKNOWN)
    # Piece by piece; a space that bytes make, or an unknown piece at the beginning, is none to be taken away.
    steps: list[Any] = [replace(stand_in, name) for name, stand_in in stand_ins.own.items()]
    steps += [replace(Regex(rf"\A{_literal(unknown)}\z"), stand_ins.unknown), replace(SPACE, stand_ins.space)]
    if proto.fallback:
        steps.append(decoders.ByteFallback())
    # From here on, all together.
    steps.append(decoders.Fuse())
    if proto.prefix or proto.squeeze:
        steps.append(replace(Regex(rf"\A{_literal(stand_ins.space)}{'+' if proto.squeeze else ''}"), ""))
    return decoders.Sequence([*steps, replace(stand_ins.space, " "), replace(stand_ins.unknown, proto.unknown)])


# The map.


def _rules(blob: bytes) -> dict[str, str]:
    """What sentencepiece replaces, longest match first, from the compiled map: a double array, and the texts.

    Double arrays: Aoe 1989, doi:10.1109/32.31365; the layout of a unit is that of Yata's Darts-clone.
    """
    size = int.from_bytes(blob[:4], "little")
    if size == 0 or size % 1024 or 4 + size > len(blob):
        raise ValueError("its normalisation map is damaged")
    units = np.frombuffer(blob, "<u4", size // 4, 4).astype(np.int64)
    texts = blob[4 + size :]
    texts.decode()
    offsets = (units >> 10 << (units >> 6 & 8)) ^ np.arange(len(units))
    labels = units & 0x800000FF
    children = defaultdict(list)
    for at in np.flatnonzero((labels > 0) & (labels < 256)).tolist():
        children[at ^ int(labels[at])].append(at)
    rules: dict[bytes, bytes] = {}
    waiting = [(0, b"")]
    steps = 0
    while waiting:
        node, key = waiting.pop()
        base = int(offsets[node])
        steps += 1
        # Ends are shared, so a damaged map may have no end.
        if base | 255 >= len(units) or steps > MOST_STEPS or len(key) > LONGEST_RULE:
            raise ValueError("its normalisation map is damaged")
        if units[node] >> 8 & 1 and key:
            begin = int(units[base]) & 0x7FFFFFFF
            rules[key] = texts[begin : texts.index(b"\0", begin)]
        waiting += [(child, key + bytes([labels[child]])) for child in children[base]]
    return {key.decode(): value.decode() for key, value in rules.items()}


def _mapping(blob: bytes, rules: dict[str, str], apart: str) -> list[Any]:
    """Steps that replace as the rules say.

    `Precompiled` looks up a letter with all its marks at once, and then loses marks. Here a stand-in keeps them
    apart, each character is replaced alone, and the stand-in leaves where a rule on several characters says so:
    then NFC joins them. Nearly all rules on several characters are of that kind; the others go first, one by one.
    """
    from tokenizers import Regex, normalizers

    nfc = normalizers.NFC()
    single = {key: value for key, value in rules.items() if len(key) == 1}
    # How many characters become this one: all of them have to join, or none.
    alike = Counter(single.values())
    alike.update({c for key in rules for c in key if c not in single})
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for key in rules:
        if len(key) > 1:
            groups[tuple(single.get(c, c) for c in key)].append(key)
    joins: set[tuple[str, ...]] = set()
    whole: list[str] = []
    for parts, keys in sorted(groups.items(), key=lambda group: len(group[0])):
        value = nfc.normalize_str("".join(parts))
        joined = (
            len(keys) == math.prod(alike[part] for part in parts)
            and all(len(part) == 1 for part in parts)
            and all(rules[key] == value for key in keys)
            and (len(parts) == 2 or parts[:-1] in joins)
        )
        if joined:
            joins.add(parts)
        else:
            whole += keys
    # The map would go on with what they make.
    again = [key for key in whole if any(c in single for c in rules[key])]
    if again or len(whole) > WHOLE_RULES:
        key = min(again or whole)
        raise ValueError(f"its normalisation has rules that cannot be read here, such as {key!r} -> {rules[key]!r}")
    # No character alone is changed by NFC, only by the map.
    if joins and not all(unicodedata.is_normalized("NFC", single.get(c, c)) for c in map(chr, range(0x30000))):
        raise ValueError("its normalisation joins characters, but does not replace those that Unicode replaces")

    # The vowels of Thai and Lao are letters that stand with the one before them.
    marks = {c for key in rules if len(key) > 1 for c in key[1:]} | {"\u0e33", "\u0eb3"}
    begins = {part for parts in joins for part in parts[1:]}
    marks |= {c for c, value in single.items() if value[:1] in begins or unicodedata.combining(value[:1] or "a")}
    several = _chars(c for c, value in single.items() if len(value) != 1)
    literal = _literal(apart)
    steps: list[Any] = [normalizers.Replace(key, rules[key]) for key in sorted(whole, key=len, reverse=True)]
    steps.append(normalizers.Replace(Regex(rf"(?!\A)(?=[\p{{M}}\p{{C}}\p{{Sk}}{_chars(marks)}])"), apart))
    if several:
        steps.append(normalizers.Replace(Regex(f"{literal}(?=[{several}])|(?<=[{several}]){literal}"), apart * 2))
    steps.append(normalizers.Precompiled(blob))
    if joins:
        before: dict[str, set[str]] = defaultdict(set)
        for parts in sorted(joins):
            before[parts[-1]].add("".join(_literal(part) + literal for part in parts[:-1]))
        after: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for part, contexts in before.items():
            after[tuple(sorted(contexts))].append(part)
        places = [f"(?=[{_chars(parts)}])(?<={'|'.join(contexts)})" for contexts, parts in after.items()]
        steps += [normalizers.Replace(Regex(f"{literal}(?:{'|'.join(places)})"), ""), nfc]
    return [*steps, normalizers.Replace(apart, "")]


def _literal(text: str) -> str:
    """The text in a regular expression."""
    return "".join(rf"\x{{{ord(c):x}}}" for c in text)


def _chars(chars: Iterable[str]) -> str:
    """The inside of a class of characters, as ranges."""
    codes = sorted(map(ord, set(chars)))
    ranges = [list(run) for _, run in itertools.groupby(enumerate(codes), lambda pair: pair[1] - pair[0])]
    return "".join(rf"\x{{{run[0][1]:x}}}-\x{{{run[-1][1]:x}}}" for run in ranges)
