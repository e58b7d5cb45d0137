"""The language of the tables: which of their tensors is which of ours, and which of their settings.

A row names a module on each side, and stands for its weight and its bias:

    Row("transformer.h.{n}.attn.c_attn", "layers.{n}.attention.query", ..., transposed=True)

`{n}` runs over the layers. Several names of ours share one tensor of theirs, in equal parts.
Our names are paths as in a trace; nothing here knows how modules nest.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

Config = Mapping[str, Any]

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}


@dataclass(frozen=True)
class Row:
    theirs: str
    ours: tuple[str, ...]
    transposed: bool
    whole: bool
    also: str | None

    def __init__(
        self, theirs: str, *ours: str, transposed: bool = False, whole: bool = False, also: str | None = None
    ) -> None:
        """One line of a table.

        transposed   their matrix is (in, out)
        whole        the names are tensors, not modules, and their shapes may differ
        also         another name that theirs may have
        """
        fields = {"theirs": theirs, "ours": ours, "transposed": transposed, "whole": whole, "also": also}
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def names(self, n: int, leaf: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Their tensor's possible names, and ours: for layer n and `weight` or `bias`."""
        end = "" if self.whole else f".{leaf}"
        theirs = (self.theirs,) if self.also is None else (self.theirs, self.also)
        return tuple(name.format(n=n) + end for name in theirs), tuple(name.format(n=n) + end for name in self.ours)


def setting(name: str, default: Any = None, names: Mapping[Any, Any] | None = None) -> Callable[[Config], Any]:
    """Read one of their settings; `names` translates its values."""

    def read(config: Config) -> Any:
        value = config.get(name, default)
        if names is None:
            return value
        if value not in names:
            raise ValueError(f"config.json: {name}={value!r} is not known here; known: {', '.join(map(str, names))}")
        return names[value]

    return read


@dataclass(frozen=True)
class Family:
    """recipe      which of our recipes builds it
    arguments   each argument of the recipe, from their config
    rows        which tensor is which
    only        settings for which one value alone is known here
    surplus     globs of tensors in their files that carry nothing: copies, masks, tables computed anew
    prefix      their names may come without it
    """

    recipe: str
    arguments: Mapping[str, Callable[[Config], Any]]
    rows: tuple[Row, ...]
    only: Mapping[str, Any] = field(default_factory=dict)
    surplus: tuple[str, ...] = ()
    prefix: str = ""

    def build_arguments(self, config: Config) -> dict[str, Any]:
        for name, known in self.only.items():
            if config.get(name, known) != known:
                raise ValueError(f"config.json: {name}={config[name]!r}; only {known!r} is known here")
        try:
            return {name: read(config) for name, read in self.arguments.items()}
        except KeyError as error:
            raise ValueError(f"config.json: {error} is missing") from None

    def read(
        self, theirs: Mapping[str, Callable[[], Tensor]], shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, Tensor]:
        """Their tensors under our names. `shapes` are ours; `theirs` are functions that read a tensor."""
        theirs = {self._full(name): read for name, read in theirs.items()}
        found: dict[str, Tensor] = {}
        used: set[str] = set()
        missing: list[str] = []
        misshaped: list[str] = []
        for their_names, our_names, row in self._expected(shapes):
            their_name = next((name for name in their_names if name in theirs), None)
            if their_name is None:
                missing.append(their_names[0])
                continue
            used.add(their_name)
            for name, part in zip(our_names, _parts(theirs[their_name](), row, len(our_names)), strict=True):
                if row.whole and part.numel() == _count(shapes[name]):
                    part = part.reshape(shapes[name])
                if tuple(part.shape) != shapes[name]:
                    misshaped.append(f"{their_name}: {name} is {shapes[name]} here, {tuple(part.shape)} there")
                else:
                    found[name] = part.contiguous()
        unexpected = [
            name for name in theirs if name not in used and not any(fnmatch.fnmatchcase(name, g) for g in self.surplus)
        ]
        complain(missing, unexpected, misshaped)
        return found

    def _full(self, name: str) -> str:
        if name.startswith(self.prefix) or not self.prefix:
            return name
        starts = {
            row.theirs.removeprefix(self.prefix).split(".")[0]
            for row in self.rows
            if row.theirs.startswith(self.prefix)
        }
        return self.prefix + name if name.split(".")[0] in starts else name

    def _expected(
        self, shapes: Mapping[str, tuple[int, ...]]
    ) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], Row]]:
        """Every tensor of theirs that a model with these tensors of ours needs."""
        layers = 1 + max((_layer(name) for name in shapes), default=0)
        for row in self.rows:
            rows = {row.names(n, leaf) for n in range(layers) for leaf in ("weight", "bias")}
            for theirs, ours in sorted(rows):
                if ours[0] in shapes:
                    yield theirs, ours, row


def _layer(name: str) -> int:
    return max((int(part) for part in name.split(".") if part.isdigit()), default=0)


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def _parts(tensor: Tensor, row: Row, count: int) -> tuple[Tensor, ...]:
    if row.transposed and tensor.dim() == 2:
        tensor = tensor.T
    # A number cannot be split; what reads it says that its shape is wrong.
    return tensor.tensor_split(count, 0) if count > 1 and tensor.dim() else (tensor,) * count


def complain(missing: list[str], unexpected: list[str], misshaped: list[str]) -> None:
    """One error for all that does not fit, with the nearest name beside each."""
    if not (missing or unexpected or misshaped):
        return
    lines = ["the weights do not fit the model:"]
    for name in missing[:10]:
        near = difflib.get_close_matches(name, unexpected, n=1)
        lines.append(f"  missing     {name}" + (f"   (nearest: {near[0]})" if near else ""))
    for name in unexpected[:10]:
        near = difflib.get_close_matches(name, missing, n=1)
        lines.append(f"  unexpected  {name}" + (f"   (nearest: {near[0]})" if near else ""))
    lines += [f"  mis-shaped  {line}" for line in misshaped[:10]]
    more = sum(max(len(names) - 10, 0) for names in (missing, unexpected, misshaped))
    raise ValueError("\n".join(lines + ([f"  and {more} more"] if more else [])))
