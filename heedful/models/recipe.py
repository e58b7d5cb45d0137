"""A recipe is a function: its keywords are the configuration, its body the diagram, its docstring the citation.

`@recipe` makes the built model carry `recipe = (name, arguments)`, defaults resolved.
That is what `config.json` stores, so arguments are plain values: numbers, strings, booleans, None, lists, dicts.
"""

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from heedful.model import Shell

Model = TypeVar("Model", bound=Shell)

RECIPES: dict[str, Callable[..., Shell]] = {}
# Recipes of one's own, for `save` to compare with; `load` takes one of these only if it is handed over.
YOURS: dict[str, Callable[..., Shell]] = {}


def recipe(build: Callable[..., Model]) -> Callable[..., Model]:
    """Mark a function as a recipe; heedful's own are in RECIPES by name."""
    signature = inspect.signature(build)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for parameter in signature.parameters.values():
        if parameter.kind not in named:
            raise TypeError(
                f"{build.__name__}({parameter}): a recipe names each of its arguments, for config.json to store"
            )

    @functools.wraps(build)
    def built(*args: Any, **arguments: Any) -> Model:
        bound = signature.bind(*args, **arguments)
        bound.apply_defaults()
        # Copied: what the caller does with a dict later is no change to this model.
        given = copy.deepcopy(dict(bound.arguments))
        model = build(**bound.arguments)
        model.recipe = (build.__name__, given)
        return model

    if build.__module__.startswith("heedful."):
        RECIPES[build.__name__] = built
    elif build.__name__ in RECIPES:
        raise ValueError(f'heedful has a recipe "{build.__name__}" already: give yours another name')
    else:
        YOURS[build.__name__] = built
    return built
