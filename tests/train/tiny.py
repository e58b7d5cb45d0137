"""What tests of training share: a run that takes a moment, something to do in the middle of it, and what it leaves."""

import json

from heedful.train import Config
from heedful.train.report import Report

MODEL = {"width": 16, "depth": 1, "heads": 2, "inner": 32, "dropout": 0.1}
WRITER = {"width": 16, "depth": 1, "heads": 2, "dropout": 0.1}


def config(out, **settings):
    """Settings of a run of 12 steps, 4 to an epoch, measured every 3 and saved every 5."""
    writes = "text" in settings
    given = {
        "model": WRITER if writes else MODEL,
        "tokenizer": "characters",
        "steps": 12,
        "batch": 128,
        "pack": 0,
        "rate": 1e-2,
        "evaluate_every": 3,
        "save_every": 5,
        "translate": 1,
        "keep": 100,
        "precision": "fp32",
        "device": "cpu",
        "out": str(out),
    }
    if not writes and "source" not in settings:
        given |= {"task": "copy", "examples": 24}
    return Config(**(given | settings))


class Quiet(Report):
    """Says nothing, and does something at some steps: `Quiet({4: function})`.

    model    what is trained, once it has begun
    lines    what was said
    """

    def __init__(self, at=None):
        super().__init__(show=False)
        self.at, self.model, self.lines, self.places = at or {}, None, [], []

    def say(self, line):
        self.lines.append(line)

    def begin(self, config, model, device, state):
        super().begin(config, model, device, state)
        self.model = model
        if 0 in self.at:
            self.at[0]()

    def step(self, line, state, took):
        super().step(line, state, took)
        self.places.append((state.epoch, state.position))
        if state.step in self.at:
            self.at[state.step]()


def metrics(run, *, timed=False):
    """The lines of a run, without how long they took."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if timed or name != "tokens_per_s"} for line in lines]


def left(run, name="latest"):
    """All that a run leaves of a checkpoint, without how long it took: bytes, state and links."""
    folder = run / name
    state = json.loads((folder / "trainer_state.json").read_text())
    tensors = {file: (folder / file).read_bytes() for file in ("model.safetensors", "optimizer.safetensors")}
    links = {link: (run / link).readlink() for link in ("latest", "best")}
    return tensors, {name: value for name, value in state.items() if name != "seconds"}, metrics(run), links
