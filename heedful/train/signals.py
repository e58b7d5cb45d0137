"""Ctrl-C and SIGTERM while training: the step is finished and saved, and then it ends."""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType


@dataclass
class Asked:
    """The signal that asked the training to stop; 0 if none has."""

    signal: int = 0


class Stopped(Exception):  # noqa: N818  nothing is wrong
    """The training was asked to stop, and has saved where it stood. The exit code is 128 + signal."""

    def __init__(self, number: int, folder: Path) -> None:
        super().__init__(f"stopped and saved; go on with: heedful train --out {shlex.quote(str(folder))} --resume auto")
        self.signal = number


@contextmanager
def stopping() -> Iterator[Asked]:
    """Within, a first signal only leaves word; a second Ctrl-C interrupts at once."""
    asked = Asked()
    if threading.current_thread() is not threading.main_thread():
        # Python lets only the main thread hear signals.
        yield asked
        return

    def heard(number: int, frame: FrameType | None) -> None:
        if asked.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.signal = number

    before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
