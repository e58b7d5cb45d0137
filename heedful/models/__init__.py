"""Named models, one recipe a file, over the same parts."""

from heedful.models.gpt import gpt
from heedful.models.llama import llama
from heedful.models.recipe import RECIPES, recipe
from heedful.models.transformer import marian, transformer

__all__ = ["RECIPES", "gpt", "llama", "marian", "recipe", "transformer"]
