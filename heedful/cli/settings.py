"""Settings of a training from a file, where the command line says nothing else.

-c FILE            a file of one's own, or one that comes with heedful, by name
--resume auto      the run's own config.toml
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.config import Dict

from heedful.train.config import checked

if TYPE_CHECKING:
    from cyclopts import App, ArgumentCollection

# A switch that is off until it is named.
Flag = Annotated[bool, Parameter(negative="")]

TRAININGS = Path(__file__).parents[1] / "trainings"


class UsageError(Exception):
    """The command line asks for what does not exist."""


def trainings() -> Iterator[Path]:
    """The files that come with heedful."""
    return iter(sorted(TRAININGS.glob("*.toml")))


def found(name: str) -> Path:
    """The file of this path, or heedful's own of this name."""
    path = Path(name)
    if path.exists() or path.suffix:
        return path
    known = {own.stem: own for own in trainings()}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise UsageError(
            f"{name}: no such file, and no training of this name; there are {', '.join(known)}"
            + (f'; did you mean "{near[0]}"?' if near else "")
        )
    return known[name]


def file_of(given: str | None, resume: str | None, out: str | None) -> Path | None:
    """Which file the settings come from, if any."""
    if given is not None:
        return found(given)
    own = Path(out or "") / "config.toml"
    return own if resume == "auto" and out is not None and own.exists() else None


def from_files(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """A layer under the command line: what a flag does not say, the file says."""
    if commands != ("train",):
        return
    said = {argument.name: argument.tokens[0].value for argument in arguments if argument.tokens}
    path = file_of(said.get("--config"), said.get("--resume"), said.get("--out"))
    if path is None:
        return
    # The model's arguments are joined one by one, by the command.
    values = {name: value for name, value in checked(path).items() if name != "model"}
    Dict({"train": values}, source=str(path))(app, commands, arguments)
