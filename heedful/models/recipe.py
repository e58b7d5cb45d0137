"""A recipe is a function: its keywords are the configuration, its body the diagram, its docstring the citation.

`@recipe` makes the built model carry `recipe = (name, arguments)`, defaults resolved.
That is what `config.json` stores, so arguments are plain values: numbers, strings, booleans, None, lists, dicts.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from heedful.model import Shell

Model = TypeVar("Model", bound=Shell)

RECIPES: dict[str, Callable[..., Shell]] = {}


def recipe(build: Callable[..., Model]) -> Callable[..., Model]:
    """Mark a function as a recipe; heedful's own are in RECIPES by name."""

    @functools.wraps(build)
    def built(*args: Any, **arguments: Any) -> Model:
        bound = inspect.signature(build).bind(*args, **arguments)
        bound.apply_defaults()
        model = build(**bound.arguments)
        model.recipe = (build.__name__, dict(bound.arguments))
        return model

    if build.__module__.startswith("heedful."):
        RECIPES[build.__name__] = built
    return built
