"""heedful: the Transformer as small parts that can be read, run and seen.

Public names, in the order in which data flows. Each is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names, for editors and type checkers
    from heedful import attention as attention
    from heedful import block as block
    from heedful import decode as decode
    from heedful import embedding as embedding
    from heedful import explain as explain
    from heedful import head as head
    from heedful import mask as mask
    from heedful import model as model
    from heedful import models as models
    from heedful import position as position
    from heedful import surgery as surgery
    from heedful import tasks as tasks
    from heedful import train as train
    from heedful.attention.cache import Fixed as Fixed
    from heedful.attention.cache import Growing as Growing
    from heedful.attention.kernel import attend as attend
    from heedful.attention.layer import Attention as Attention
    from heedful.decode import generate as generate
    from heedful.decode import stream as stream
    from heedful.decode import translate as translate
    from heedful.embedding import Embedding as Embedding
    from heedful.folder import load as load
    from heedful.folder import save as save
    from heedful.model import Decoder as Decoder
    from heedful.model import Encoder as Encoder
    from heedful.model import EncoderDecoder as EncoderDecoder
    from heedful.models.recipe import recipe as recipe
    from heedful.surgery import select as select
    from heedful.trace import Around as Around
    from heedful.trace import listen as listen
    from heedful.trace import note as note

__version__ = "0.1.0"

# name -> the module it lives in
_SHELF = {
    "embedding": "heedful.embedding",
    "position": "heedful.position",
    "mask": "heedful.mask",
    "attention": "heedful.attention",
    "block": "heedful.block",
    "head": "heedful.head",
    "model": "heedful.model",
    "models": "heedful.models",
    "surgery": "heedful.surgery",
    "tasks": "heedful.tasks",
    "decode": "heedful.decode",
    "train": "heedful.train",
    "explain": "heedful.explain",
    "Embedding": "heedful.embedding",
    "Attention": "heedful.attention.layer",
    "attend": "heedful.attention.kernel",
    "Growing": "heedful.attention.cache",
    "Fixed": "heedful.attention.cache",
    "Encoder": "heedful.model",
    "Decoder": "heedful.model",
    "EncoderDecoder": "heedful.model",
    "recipe": "heedful.models.recipe",
    "load": "heedful.folder",
    "save": "heedful.folder",
    "translate": "heedful.decode",
    "generate": "heedful.decode",
    "stream": "heedful.decode",
    "Around": "heedful.trace",
    "note": "heedful.trace",
    "listen": "heedful.trace",
    "select": "heedful.surgery",
}

__all__ = ["__version__", *_SHELF]


def __getattr__(name: str) -> Any:
    if name not in _SHELF:
        raise AttributeError(f"heedful has no {name!r}; it has: {', '.join(_SHELF)}")
    module = importlib.import_module(_SHELF[name])
    return module if _SHELF[name] == f"heedful.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return list(__all__)
