"""Public checkpoint folders, read by one table a family."""

from heedful.convert.gpt2 import GPT2
from heedful.convert.llama import LLAMA
from heedful.convert.marian import MARIAN
from heedful.convert.table import Family

# what config.json calls "model_type" -> how to read it
FAMILIES: dict[str, Family] = {"gpt2": GPT2, "llama": LLAMA, "marian": MARIAN}

__all__ = ["FAMILIES", "Family"]
