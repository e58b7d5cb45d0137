"""What a run learns from: its files or its task, read, held out, cut into tokens, and ready to be batched."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from heedful.data import text
from heedful.data.batch import Corpus, Packed, Padded, Shape, Special, Windows
from heedful.data.files import hold_out, hold_out_end, read_documents, read_pairs
from heedful.data.ragged import Ragged
from heedful.tasks import Pair, task
from heedful.train.config import Config

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Texts:
    """What was read, before any tokenizer: pairs to translate, or documents to continue.

    said    what a person should know about it, a line each
    """

    training: Sequence[Pair] | Sequence[str]
    validation: Sequence[Pair] | Sequence[str]
    said: list[str]


@dataclass(frozen=True)
class Material:
    """training, validation    batches; no validation where there was too little text
    examples                held-out pairs, to be translated and scored
    """

    training: Corpus
    validation: Corpus | None
    examples: list[Pair]
    said: list[str]


def read(config: Config) -> Texts:
    """The texts of a run."""
    given = [name for name in ("source", "text", "task") if getattr(config, name) is not None]
    if len(given) != 1:
        raise ValueError(
            (f"{' and '.join(given)} are given: " if given else "nothing to learn from: ")
            + "give source and target (two files), text (one file, for a language model), or task (made by rule)"
        )
    if config.task is not None:
        rule = task(config.task)
        count = max(1, min(1000, config.examples // 100))
        training, validation = rule.training(config.examples, config.seed), rule.held_out(count, config.seed)
        said = [f"{config.task}: {len(training):,} examples, {len(validation):,} others held out by rule"]
        return Texts(training, validation, said)
    if config.text is not None:
        documents = read_documents(config.text)
        if config.valid_text is not None:
            return Texts(documents.kept, read_documents(config.valid_text).kept, [f"{config.text}: {documents}"])
        parts = hold_out_end(documents.kept, config.hold_out)
        held = sum(len(part) for part in parts[1])
        note = f"held out from its end: {held:,} characters" if held else "too short to hold anything out"
        return Texts(*parts, [f"{config.text}: {documents}", note])
    assert config.source is not None
    pairs = read_pairs(config.source, config.target)
    said = [f"{config.source}{' and ' + config.target if config.target else ''}: {pairs}"]
    if config.valid_source is not None:
        valid = read_pairs(config.valid_source, config.valid_target)
        return Texts(pairs.kept, valid.kept, [*said, f"{config.valid_source}: {valid}"])
    kept, held_out = hold_out(pairs.kept, config.seed, config.hold_out)
    note = f"held out: {len(held_out):,} pairs" if held_out else "nothing could be held out: all lines are alike"
    return Texts(kept, held_out, [*said, note])


def runs_on(file: str | os.PathLike[str] | None) -> bool:
    """Whether a file is one text that runs on; a .jsonl holds documents, each of which begins anew."""
    return file is not None and Path(str(file).lower().removesuffix(".gz")).suffix != ".jsonl"


def tokenizer_of(config: Config, texts: Texts) -> Tokenizer:
    """Trained on the training texts, both sides together; or loaded."""
    if config.tokenizer not in text.KINDS:
        return text.loaded(Path(config.tokenizer))
    strings = (string for one in texts.training for string in ((one,) if isinstance(one, str) else one))
    return text.trained(strings, config.tokenizer, config.vocabulary)


def prepare(config: Config, texts: Texts, tokenizer: Tokenizer, grid: int) -> Material:
    """Texts as ids, in the batches that the run asks for."""
    special = special_of(text.special_ids(tokenizer))
    said = list(texts.said)
    if not texts.training:
        raise ValueError("there is no text to learn from")
    one = runs_on(config.text)
    training = batched(config, texts.training, tokenizer, special, running=one, grid=grid, said=said)
    validation = None
    if texts.validation:
        one = runs_on(config.valid_text or config.text)
        validation = batched(
            config, texts.validation, tokenizer, special, running=one, grid=grid, measured=True, said=said
        )
    examples = [one for one in texts.validation if not isinstance(one, str)]
    return Material(training, validation, examples, said)


def special_of(ids: Mapping[str, int]) -> Special:
    """A model's special ids, as its `generation` names them."""
    return Special(ids.get("pad", 0), ids.get("start", 0), ids.get("end", 0))


def batched(
    config: Config,
    examples: Sequence[Pair] | Sequence[str],
    tokenizer: Tokenizer,
    special: Special,
    *,
    running: bool,
    grid: int,
    measured: bool = False,
    said: list[str] | None = None,
) -> Corpus:
    """Examples in batches: to learn from, or to be `measured` on, every token once.

    running   they are one text, and each piece goes on from the one before it
    said      what was left out is told here; if it is not given, nothing may be left out
    """
    shape = Shape(config.batch, grid)
    sides = _sides(examples)
    if running:
        (ids,) = text.encoded(tokenizer, sides[0])
        return Windows(np.array(ids, dtype=np.int32), config.longest, shape, aligned=measured)
    *source, target = (Ragged(text.encoded(tokenizer, side)) for side in sides)
    limit = min(config.longest, config.pack or config.longest)
    fits = np.all([side.lengths < limit for side in (*source, target)], axis=0)
    if not fits.all():
        what = f"{(~fits).sum():,} of {len(fits):,} texts have {limit:,} tokens or more"
        if said is None or not fits.any():
            raise ValueError(f"{what}: raise longest (or pack)")
        said.append(f"{what} and are left out")
        source, target = [side.only(fits) for side in source], target.only(fits)
    if config.pack != 0 and not measured:
        longest = 1 + max(side.lengths.max(initial=0) for side in (*source, target))
        return Packed(source[0] if source else None, target, special, shape, config.pack or rounded(longest))
    return Padded(source[0] if source else None, target, special, shape)


def rounded(slots: int) -> int:
    """To whole eights, which memory is read in."""
    return -(-slots // 8) * 8


def _sides(examples: Sequence[Pair] | Sequence[str]) -> list[list[str]]:
    """Documents as one list of texts, pairs as two: sources and targets."""
    documents = [one for one in examples if isinstance(one, str)]
    pairs = [one for one in examples if not isinstance(one, str)]
    return [documents] if documents else [[pair.source for pair in pairs], [pair.target for pair in pairs]]
