"""Shared by all command lines: an InfeedError becomes one line on stderr and exit code 2, never a traceback.

They print only through this Console, so that control characters in raw data never reach a terminal."""

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.segment import Segment

from pipeline.ctrl_c import EXIT_INTERRUPTED, as_usual, leave_at_once
from pipeline.errors import InfeedError, printable

__all__ = ["Console", "Parser", "byte_bar", "exit_with", "say"]


class Console(rich.console.Console):
    """rich's, but escapes all control characters except its own codes and newlines."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Like rich's."""
        for segment in super().render(renderable, options):
            lines = segment.text.split("\n")
            yield segment if segment.control else segment._replace(text="\n".join(map(printable, lines)))


class Parser(argparse.ArgumentParser):
    """argparse's, but escapes control characters in its messages: a shell's `*` may pass file names that have some."""

    def error(self, message: str) -> NoReturn:
        """Like argparse's."""
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
        if command:  # no traceback for another Ctrl-C while the interpreter waits for threads
            leave_at_once()
    if status:
        sys.exit(status)


def byte_bar(console: rich.console.Console) -> Progress:
    """A progress bar of bytes below the output; only on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal)


def say(console: rich.console.Console, line: str) -> None:
    """Prints exactly one line, without markup or wrapping, whatever the text contains."""
    console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
