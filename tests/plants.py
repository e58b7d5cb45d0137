"""Bugs to plant, each with the law that must turn red: laws that nothing can break would be no laws."""

from collections.abc import Callable
from typing import NamedTuple

PLANTS: dict[str, "Plant"] = {}


class Plant(NamedTuple):
    plant: Callable[[], None]
    law: str
