"""Text and ids: tokenizers that are trained here, or loaded.

bpe          pieces of words by byte-pair encoding            Sennrich et al. 2016, arXiv:1508.07909
unigram      pieces of words by a unigram model               Kudo 2018, arXiv:1804.10959
bytes        the 256 bytes of UTF-8
characters   the characters that the corpus has; others are unknown
words        words and punctuation marks as they stand; rare ones are unknown

The first three work on bytes: every text comes back as it was, and nothing is unknown.
A tokenizer here is a `tokenizers.Tokenizer`, so a model's folder opens with that library alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.known import unknown

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD, START, END, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"
SPECIAL = [PAD, START, END]
KINDS = ("bpe", "unigram", "bytes", "characters", "words")


def trained(texts: Iterable[str], kind: str = "bpe", size: int = 8000) -> Tokenizer:
    """A tokenizer of at most `size` entries, from these texts. The three special ones come first: ids 0, 1, 2."""
    if kind not in KINDS:
        raise ValueError(unknown("tokenizer kind", kind, KINDS))
    if kind in ("bpe", "unigram", "bytes"):
        least = 256 + len(SPECIAL)
        if kind != "bytes" and size < least:
            raise ValueError(
                f"vocabulary={size}: {kind} has the 256 bytes and {len(SPECIAL)} special entries to begin with; "
                f"give {least} or more"
            )
        tokenizer = _on_bytes(texts, kind, least if kind == "bytes" else size)
    else:
        tokenizer = _on_symbols(texts, kind, size)
    return _ready(tokenizer)


def loaded(path: Path) -> Tokenizer:
    """A tokenizer from a `tokenizer.json`, or from sentencepiece's `.model`."""
    from tokenizers import Tokenizer

    if not path.is_file():
        raise ValueError(
            f"{path} is not a file; a tokenizer is a tokenizer.json, a .model, or one of {', '.join(KINDS)}"
        )
    if path.suffix == ".model":
        from heedful.data.pieces import from_sentencepiece

        return _ready(from_sentencepiece(path))
    try:
        return _ready(Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises no narrower type
        raise ValueError(f"{path} is not a tokenizer: {error}") from None


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """What a model keeps as its `generation`: the ids that pad, start and end."""
    vocabulary = tokenizer.get_vocab()
    return {"pad": vocabulary[PAD], "start": vocabulary[START], "end": vocabulary[END]}


def encoded(tokenizer: Tokenizer, texts: Iterable[str], together: int = 10_000) -> Iterator[list[int]]:
    """The ids of each text; many texts at once, so that the library can use every core."""
    held: list[str] = []
    for text in texts:
        held.append(text)
        if len(held) == together:
            yield from (encoding.ids for encoding in tokenizer.encode_batch_fast(held, add_special_tokens=False))
            held.clear()
    yield from (encoding.ids for encoding in tokenizer.encode_batch_fast(held, add_special_tokens=False))


def _ready(tokenizer: Tokenizer) -> Tokenizer:
    """With the special entries that training needs; text that a user types never becomes one of them."""
    from tokenizers import Regex, pre_tokenizers

    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True
    spelled = _spelled(tokenizer)
    if spelled:
        # Its model has the name among its words: so the name is cut before the model sees it.
        places = "|".join(f"(?<={re.escape(name[0])})(?={re.escape(name[1:])})" for name in spelled)
        cut = pre_tokenizers.Split(Regex(places), "isolated")
        before = tokenizer.pre_tokenizer
        tokenizer.pre_tokenizer = cut if before is None else pre_tokenizers.Sequence([before, cut])
        spelled = _spelled(tokenizer)
    if spelled:
        raise ValueError(f"a text that has {spelled[0]} in it becomes that entry, which would end or begin it")
    return tokenizer


def _spelled(tokenizer: Tokenizer) -> list[str]:
    """The special entries that a text can spell: alone, in a word, and beside what nothing joins with."""
    ids = special_ids(tokenizer)
    texts = {name: [name, f"a{name}a", f" {name} ", f"\x7f{name}\x7f"] for name in SPECIAL}
    found = {name: tokenizer.encode_batch_fast(texts[name], add_special_tokens=False) for name in SPECIAL}
    return [name for name in SPECIAL if any(not {*ids.values()}.isdisjoint(one.ids) for one in found[name])]


def _on_bytes(texts: Iterable[str], kind: str, size: int) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    settings: dict[str, Any] = {
        "vocab_size": size,
        "special_tokens": SPECIAL,
        "initial_alphabet": alphabet,
        "show_progress": False,
    }
    trainer: Any
    if kind == "unigram":
        tokenizer, trainer = Tokenizer(models.Unigram()), trainers.UnigramTrainer(**settings)
    else:
        tokenizer, trainer = Tokenizer(models.BPE()), trainers.BpeTrainer(**settings)
    # A word is one piece at the beginning of a text as inside of it, so every text begins with a space.
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    tokenizer.train_from_iterator(texts, trainer)
    if kind == "unigram":
        tokenizer.model = models.Unigram(_settled(tokenizer, size), None, False)
    return tokenizer


def _settled(tokenizer: Tokenizer, size: int) -> list[tuple[str, float]]:
    """A unigram vocabulary with chance taken out, which the library's trainer leaves in the last digits and the order.

    Bytes that the corpus does not have are 0.0001 likelier one than the next, in any order: here they are all alike.
    """
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    # Without a corpus there are no scores.
    scores = {piece: score or 0.0 for piece, score in vocabulary if piece not in SPECIAL}
    least = min(scores.values())
    rare = least + 256 * 0.0001
    settled = {piece: round(least if len(piece) == 1 and score < rare else score, 4) for piece, score in scores.items()}
    ordered = sorted(settled.items(), key=lambda one: (-one[1], one[0]))
    # Where bytes alone fill the vocabulary, the trainer goes on beyond its size.
    longer = {piece for piece, _ in [one for one in ordered if len(one[0]) > 1][: size - len(SPECIAL) - 256]}
    return [(name, 0.0) for name in SPECIAL] + [one for one in ordered if len(one[0]) == 1 or one[0] in longer]


def _on_symbols(texts: Iterable[str], kind: str, size: int) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    if kind == "characters":
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [*SPECIAL, UNKNOWN]
    if size <= len(special):
        raise ValueError(f"vocabulary={size}: {len(special)} entries are special; give more")
    tokenizer.train_from_iterator(
        texts, trainers.WordLevelTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    )
    return tokenizer
