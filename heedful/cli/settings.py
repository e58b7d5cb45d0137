"""What the command line says, and under it, of a training, what a file of settings says.

-c FILE            a file of one's own, or one that comes with heedful, by name
--resume auto      the run's own config.toml
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, get_args

from cyclopts import Parameter
from cyclopts.config import Dict

from heedful import known as known_names
from heedful.train.config import checked

if TYPE_CHECKING:
    from cyclopts import App, Argument, ArgumentCollection

# A switch that is off until it is named.
Flag = Annotated[bool, Parameter(negative="", show_default=False)]

TRAININGS = Path(__file__).parents[1] / "trainings"

# A flag that takes back what the file says.
NOTHING = ("none", "null")


class UsageError(Exception):
    """The command line asks for what does not exist."""


def unknown(kind: str, name: str, known: Collection[str]) -> UsageError:
    """There is none of this name; these there are, and this one is the nearest."""
    return UsageError(known_names.unknown(kind, name, known))


def trainings() -> dict[str, Path]:
    """The files that come with heedful, by name."""
    return {path.stem: path for path in sorted(TRAININGS.glob("*.toml"))}


def found(name: str) -> Path:
    """The file of this path, or heedful's own of this name; of a run's folder, its settings."""
    path, known = Path(name), trainings()
    if path.is_file():
        return path
    # A folder of data may well have the name of the training on it.
    if name in known:
        return known[name]
    if (path / "config.toml").is_file():
        return path / "config.toml"
    raise unknown("file of settings, or training,", name, known)


def file_of(given: str | None, resume: str | None, out: str | None) -> Path | None:
    """Which file the settings come from, if any."""
    if given is not None:
        return found(given)
    own = Path(out or "") / "config.toml"
    return own if resume == "auto" and out is not None and own.exists() else None


def layered(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """What a flag does not say, the file says; called with what the command line holds, before it is converted."""
    if commands == ("train",):
        _under(app, commands, arguments)
    for argument in arguments:
        _check_whole(argument)


def _under(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    said = {argument.name: argument.tokens[0].value for argument in arguments if argument.tokens}
    path = file_of(said.get("--config"), said.get("--resume"), said.get("--out"))
    values = {} if path is None else checked(path)
    # The model's arguments are joined one by one, by the command.
    values.pop("model", None)
    for argument in arguments:
        if said.get(argument.name) in NOTHING and NoneType in get_args(argument.hint):
            argument.tokens.clear()
            values.pop(argument.name.removeprefix("--").replace("-", "_"), None)
    Dict({"train": values}, source=str(path))(app, commands, arguments)


def _check_whole(argument: Argument) -> None:
    """2.5 would be rounded."""
    if int not in (argument.hint, *get_args(argument.hint)):
        return
    for token in argument.tokens:
        try:
            int(token.value)
        except ValueError:
            where = "" if token.source == "cli" else f" in {token.source}"
            raise UsageError(f"{argument.name} {token.value}{where}: give a whole number") from None
