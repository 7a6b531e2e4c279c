"""What command lines share: an error of ours is one line on stderr and exit code 2, never a traceback; a bar."""

import sys
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from pipeline.shards.errors import InfeedError

__all__ = ["byte_bar", "exit_with", "say"]


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


def byte_bar(console: Console) -> Progress:
    """A bar of bytes below what is printed, on a terminal alone."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal)


def say(console: Console, line: str) -> None:
    """Prints a line as it is: no markup, no folding."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)
