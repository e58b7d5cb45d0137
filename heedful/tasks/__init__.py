"""Tasks made by rule: as much data as wanted, no download, and the right answer always known.

numbers-en-de    numbers in words, between English, German, Chinese and French (12 tasks)
dates-en         dates, from figures to one of the four languages
copy, reverse, sort, recall
"""

import difflib

from heedful.tasks.dates import DATES
from heedful.tasks.numbers import NUMBERS, words
from heedful.tasks.sequences import SEQUENCES
from heedful.tasks.task import Pair, Task

__all__ = ["TASKS", "Pair", "Task", "task", "words"]

TASKS: dict[str, Task] = {task.name: task for task in (*NUMBERS, *DATES, *SEQUENCES)}


def task(name: str) -> Task:
    """The task of this name."""
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS)
        try_these = f"did you mean {' or '.join(near)}?" if near else f"these are: {', '.join(TASKS)}"
        raise ValueError(f'there is no task "{name}"; {try_these}')
    return TASKS[name]
