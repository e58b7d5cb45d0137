"""Training: `train(Config(source=..., target=..., out=...))`, or `heedful train`.

Imported when they are first used: settings are light, and the training itself brings torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names, for editors and type checkers
    from heedful.train.config import Config as Config
    from heedful.train.evaluation import evaluate as evaluate
    from heedful.train.loop import Outcome as Outcome
    from heedful.train.loop import train as train

_HOMES = {"Config": "config", "Outcome": "loop", "evaluate": "evaluation", "train": "loop"}

__all__ = ["Config", "Outcome", "evaluate", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"heedful.train has no {name!r}; it has: {', '.join(_HOMES)}")
    return getattr(importlib.import_module(f"heedful.train.{_HOMES[name]}"), name)
