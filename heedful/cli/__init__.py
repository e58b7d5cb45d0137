"""The commands. Each only reads its arguments and calls what does the work, which it imports when it runs.

Data goes to stdout, messages to stderr. Exit codes: 0, 1 for a failure, 2 for a wrong command line,
128 + the signal where one ended it (130 Ctrl-C, 143 SIGTERM).
"""

import os
import signal
import sys
from typing import NoReturn

from cyclopts import CycloptsError

# Each module makes its functions commands.
from heedful.cli import demo, show, train, use  # noqa: F401
from heedful.cli.app import app
from heedful.cli.settings import UsageError


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command and exit."""
    code = 0
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        # Not sys.stdout.flush(): a command may have been started without an output.
        print(end="", flush=True)
    except CycloptsError as error:
        asked = " ".join(["heedful", *(error.command_chain or ())])
        code = _said(f"{error} Examples: {asked} --help", 2)
    except UsageError as error:
        code = _said(error, 2)
    except BrokenPipeError:
        # Whoever read the output has seen enough.
        code = 128 + signal.SIGPIPE
    except (ValueError, OSError, MemoryError) as error:
        code = _said(error, 1)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except Exception as error:
        code = _said(error, _ending(error))
    _leave(code)


def _ending(error: Exception) -> int:
    """The exit code of what is no mistake of a user's, and no bug either; a bug goes on as it is."""
    # Looked up, not imported: torch takes a second, and a wrong flag should not.
    signals, torch = sys.modules.get("heedful.train.signals"), sys.modules.get("torch")
    if signals is not None and isinstance(error, signals.Stopped):
        return 128 + int(error.signal)
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return 1
    if isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error):
        # What a CPU without memory says has no type of its own.
        return 1
    raise error


def _said(message: object, code: int) -> int:
    print(f"heedful: {message}" if str(message) else f"heedful: {type(message).__name__}", file=sys.stderr)
    return code


def _leave(code: int) -> NoReturn:
    try:
        print(end="", flush=True)
    except OSError:
        # What nobody takes goes nowhere; Python would try once more at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if "WORLD_SIZE" in os.environ:
        # Under torchrun, PyTorch's own threads sometimes abort a process that ends in the usual way.
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
