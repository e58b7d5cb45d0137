"""Change a built model: find its parts by path or by class, then replace, wrap or freeze them.

    select(model, "layers.*.feedforward").freeze()
    select(model, Attention).replace(lambda old: ...)
    select(model, "layers.3.attention").wrap(lambda old: ...)

Paths and patterns are those of a trace. Wrappers are transparent: `layers.3.attention` is the attention itself.
A wrapper of your own is transparent too if it is a `heedful.Around` and keeps the old part as its `branch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import nn

from heedful.trace import Around, matches, paths


class Selection:
    """Parts of a model, each once, by the path of its first place."""

    def __init__(self, model: nn.Module, parts: dict[str, nn.Module]) -> None:
        self.model, self.parts = model, parts

    def __iter__(self) -> Iterator[tuple[str, nn.Module]]:
        return iter(self.parts.items())

    def __len__(self) -> int:
        return len(self.parts)

    def replace(self, make: Callable[[nn.Module], nn.Module]) -> Selection:
        """Put `make(part)` wherever the part stands; a shared part is replaced in all its places by one."""
        fresh = {part: make(part) for part in self.parts.values()}
        for parent in list(self.model.modules()):
            if parent in fresh.values():
                continue
            for name, child in list(parent._modules.items()):
                if child in fresh:
                    parent._modules[name] = fresh[child]
        return Selection(self.model, {path: fresh[part] for path, part in self.parts.items()})

    def wrap(self, around: Callable[[nn.Module], nn.Module]) -> Selection:
        """As `replace`, where the new part holds the old one."""
        return self.replace(around)

    def freeze(self) -> Selection:
        """Train these parts no more."""
        for part in self.parts.values():
            part.requires_grad_(False)
        return self


def select(model: nn.Module, what: str | type[nn.Module]) -> Selection:
    """Parts of `model` by path, pattern of paths, or class. Nothing found is an error."""
    found: dict[str, nn.Module] = {}
    for path, part in paths(model):
        wanted = matches(path, what) if isinstance(what, str) else isinstance(part, what)
        if isinstance(what, str) and isinstance(part, Around):
            continue  # its branch has the same path, and is what was meant
        if wanted and part is not model and not any(part is other for other in found.values()):
            found[path] = part
    if not found:
        asked = what if isinstance(what, str) else what.__name__
        known = ", ".join(sorted({path for path, _ in paths(model) if path})[:12])
        raise ValueError(f'nothing in this model is "{asked}"; its paths begin: {known}, ...')
    return Selection(model, found)
