"""What is said to a name that is none: which ones there are, and which is the nearest."""

import difflib
from collections.abc import Collection


def unknown(kind: str, name: str, known: Collection[str]) -> str:
    """The message; whose error it is, the caller knows."""
    near = difflib.get_close_matches(name, known, n=1)
    return f'no {kind} "{name}"; there are {", ".join(known)}' + (f'; did you mean "{near[0]}"?' if near else "")
