"""What command lines share: an error of ours is one line on stderr and exit code 2, never a traceback; a bar.

Whatever they print goes through the Console here: names in raw data reach no terminal as they are."""

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.segment import Segment

from pipeline.ctrl_c import EXIT_INTERRUPTED, as_usual, leave_at_once
from pipeline.shards.errors import InfeedError, printable

__all__ = ["Console", "Parser", "byte_bar", "exit_with", "say"]


class Console(rich.console.Console):
    """rich's, but that of what it prints only its own codes have control characters; newlines stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich's."""
        for segment in super().render(renderable, options):
            lines = segment.text.split("\n")
            yield segment if segment.control else segment._replace(text="\n".join(map(printable, lines)))


class Parser(argparse.ArgumentParser):
    """argparse's, but an argument that it does not know is named without its control characters: `*` gives any."""

    def error(self, message: str) -> NoReturn:
        """As argparse's."""
        super().error(printable(message))


def exit_with(main: Callable[[], int | None], interrupted: str = "interrupted.") -> None:
    """Runs a command line's main. Exits with what it returns, 2 on an InfeedError, 130 on Ctrl-C."""
    status, command = None, False
    try:
        command = as_usual()
        status = main()
    except InfeedError as e:
        print(f"error: {e}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        status = EXIT_INTERRUPTED
    finally:
        if command:  # one more, while the interpreter waits for threads, needs no traceback
            leave_at_once()
    if status:
        sys.exit(status)


def byte_bar(console: rich.console.Console) -> Progress:
    """A bar of bytes below what is printed, on a terminal alone."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal)


def say(console: rich.console.Console, line: str) -> None:
    """Prints a line as it is: no markup, no folding, one line whatever is in it."""
    console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
