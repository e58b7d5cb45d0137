"""What a training is told: one flat set of settings, as flags, as a TOML file, or in Python.

A run keeps its settings, resolved, in `config.toml`. The same file, given with -c, is the same run.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(kw_only=True)
class Config:
    """Settings of a training.

    Parameters
    ----------
    data
        Folder that the files below are looked for in.
    source
        File of source texts, one a line. Or a file of pairs: .tsv, .jsonl. Each may be gzipped.
    target
        File of their translations, line by line.
    text
        File of text, for a language model; a .jsonl file holds documents.
    task
        A task made by rule, in place of files: numbers-en-de, dates-fr, copy, sort, ...
    examples
        How many examples a task makes.
    valid_source
        File of source texts to measure on. Without one, 1 % of the lines is held out, at most 1,000.
    valid_target
        File of their translations.
    valid_text
        File of text to measure a language model on.
    hold_out
        In place of this 1 %, another share, such as 0.1.
    tokenizer
        bpe, unigram, bytes, characters or words: trained here. Or a tokenizer.json, or sentencepiece's .model.
    vocabulary
        How many entries a tokenizer that is trained here may have.
    longest
        Pairs with more tokens on a side are left out; a language model reads pieces of this length.
    pack
        Slots of a row that several texts share, each looking at itself alone. As many as the longest text has if not
        given; 0 pads texts of like length instead, and learns more slowly, for such batches are all of one kind.
    vectors
        Word vectors in word2vec's or GloVe's text format, to begin the embedding with (tokenizer = "words").
    fixed_vectors
        Do not train the embedding.
    recipe
        The model, by name: heedful recipes lists them.
    model
        Arguments of the recipe: --model.width 512.
    steps
        Updates in all.
    batch
        Tokens of an update: slots on the longer side, padding counted, over all processes.
    accumulate
        In how many parts a process takes its share of a batch. The update is the same; it needs less memory.
    smoothing
        Label smoothing: the share of each target that is spread over the whole vocabulary.
    optimizer
        adamw, adam or sgd.
    decay
        Weight decay, of matrices alone; 0.01 for adamw if not given, and none for the others.
    clip
        Largest norm of all gradients together; 0 leaves them.
    schedule
        How the rate goes: noam, inverse-root, constant, linear, cosine, cycles, restarts, steps, exponential.
    rate
        The highest rate. noam has the paper's if none is given.
    warmup
        Updates until the highest rate; a tenth of all, at most 4,000, if not given.
    floor
        Where the rate ends, for the schedules that fall to an end.
    every
        How many updates a cycle or a step takes, for the schedules that have them.
    factor
        What a step multiplies the rate by, or a restart its length.
    precision
        fp32, bf16, or auto: bf16 where the machine computes in it.
    compile
        Compile the model: yes, no, or auto (on a GPU, where all batches have one shape).
    seed
        Of everything that is drawn at random.
    workers
        Processes that make batches beside the training; 0 makes them in it.
    evaluate_every
        Updates between two measurements; 0 is a tenth of all.
    translate
        How many held-out texts are translated and scored in each measurement.
    tokenize
        How sacreBLEU cuts texts into words: 13a, zh, ja-mecab, char, ...
    patience
        Stop after so many measurements without a better one; 0 goes on.
    save_every
        Updates between two checkpoints; 0 is at each measurement.
    keep
        How many of the latest checkpoints stay, beside the best.
    tensorboard
        Write curves for TensorBoard, too.
    out
        Folder of the run.
    resume
        auto: go on from the latest whole checkpoint in the folder, if there is one.
    device
        cpu, cuda, ...; the GPU if there is one.
    """

    data: str = "."
    source: str | None = None
    target: str | None = None
    text: str | None = None
    task: str | None = None
    examples: int = 100_000
    valid_source: str | None = None
    valid_target: str | None = None
    valid_text: str | None = None
    hold_out: float | None = None
    tokenizer: str = "bpe"
    vocabulary: int = 8000
    longest: int = 256
    pack: int | None = None
    vectors: str | None = None
    fixed_vectors: bool = False
    recipe: str | None = None
    model: dict[str, Any] = field(default_factory=dict)
    steps: int = 5000
    batch: int = 4096
    accumulate: int = 1
    smoothing: float = 0.1
    optimizer: str = "adamw"
    decay: float | None = None
    clip: float = 1.0
    schedule: str = "cosine"
    rate: float | None = None
    warmup: int | None = None
    floor: float = 0.0
    every: int | None = None
    factor: float | None = None
    precision: str = "auto"
    compile: str = "auto"
    seed: int = 1
    workers: int = 0
    evaluate_every: int = 0
    translate: int = 100
    tokenize: str = "13a"
    patience: int = 0
    save_every: int = 0
    keep: int = 3
    tensorboard: bool = False
    out: str | None = None
    resume: str | None = None
    device: str | None = None


# What stands for None among a model's arguments.
NOTHING = "null"

# Where a run is, and whether it goes on: not what it is.
OF_THE_CALL = ("out", "resume", "device")


def to_toml(config: Config) -> str:
    """Settings as a file for -c; what is not set is left out."""
    values = dataclasses.asdict(config)
    model = values.pop("model")
    lines = [f"{name} = {_toml(value)}" for name, value in values.items() if value is not None]
    lines += ["", "[model]", *(f"{_key(name)} = {_toml(value)}" for name, value in model.items())]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value)
    # TOML has no word for nothing: it is written as on the command line.
    value = NOTHING if value is None else value
    # JSON writes whole numbers, truth values and strings as TOML reads them; a character beyond it stays itself.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _read(value: object) -> object:
    """A model's argument as it was before `_toml`."""
    if isinstance(value, dict):
        return {name: _read(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_read(inner) for inner in value]
    return None if value == NOTHING else value


def from_toml(path: Path) -> Config:
    """The settings of a file, and defaults for what it does not name."""
    return Config(**checked(path))


def checked(path: Path) -> dict[str, Any]:
    """What a file says, by name; a name that is no setting is an error."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    known = [setting.name for setting in dataclasses.fields(Config)]
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ValueError(
                f'{path}: there is no setting "{name}"'
                + (f'; did you mean "{near[0]}"?' if near else f"; there are {', '.join(known)}")
            )
    if "model" in values:
        if not isinstance(values["model"], dict):
            raise ValueError(f"{path}: model is {values['model']!r}; its arguments stand under [model]")
        values["model"] = _read(values["model"])
    return values
