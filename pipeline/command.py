"""How a command line ends: an error of ours is one line on stderr and exit code 2, never a traceback."""

import sys
from collections.abc import Callable

from pipeline.shards.errors import InfeedError

__all__ = ["exit_with"]


def exit_with(main: Callable[[], int | None], interrupted: str = "interrupted.") -> None:
    """Runs a command line's main. Exits with what it returns, 2 on an InfeedError, 130 on Ctrl-C."""
    try:
        status = main()
    except InfeedError as e:
        print(f"error: {e}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        status = 130
    if status:
        sys.exit(status)
