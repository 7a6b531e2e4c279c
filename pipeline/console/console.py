"""The output of commands. Control characters in raw data never reach a terminal."""

import os
from collections.abc import Container, Iterable
from typing import Any, TypeVar

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
    track,
)
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from pipeline.errors import printable


class Console(rich.console.Console):
    """rich's, but escapes all control characters except its own codes and newlines."""

    @property
    def is_terminal(self) -> bool:
        """Whether lines can be redrawn. A notebook's ! and %% repeat them, although they set
        FORCE_COLOR, and ! has a pseudo-terminal. Its kernel, and what the kernel starts, have
        JPY_PARENT_PID."""
        return super().is_terminal and self.file.isatty() and "JPY_PARENT_PID" not in os.environ

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Like rich's."""
        for segment in super().render(renderable, options):
            lines = map(printable, segment.text.split("\n"))
            yield segment if segment.control else segment._replace(text="\n".join(lines))

    def on_broken_pipe(self) -> None:
        """Raises the BrokenPipeError again, for `ends_when_not_read`. rich exits with 1, which has
        other meanings here."""
        raise  # noqa: PLE0704 - rich calls this in its handler


def byte_bar(console: rich.console.Console) -> Progress:
    """A progress bar of bytes below the output; only on a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


T = TypeVar("T")


def tracked(items: Iterable[T], what: str, count: int, *, hidden: bool = False) -> Iterable[T]:
    """The items, with a progress bar on stderr if that is a terminal."""
    console = Console(stderr=True)
    hidden = hidden or not console.is_terminal
    return track(items, what, count, console=console, disable=hidden, transient=True)


def say(console: rich.console.Console, line: str) -> None:
    """Prints exactly one line, without markup or wrapping, whatever the text contains."""
    console.print(printable(line), markup=False, emoji=False, highlight=False, soft_wrap=True)


def table(
    columns: Iterable[str],
    rows: Iterable[Iterable[object]],
    title: str = "",
    *,
    unwrapped: Container[str] = (),
    **style: Any,
) -> Table:
    """A table of plain text, as data must not act as markup or as terminal control codes. Texts
    that are too long fold.

    unwrapped: columns that are never folded. style: of rich's Table."""
    headers = (Column(Text(name), overflow="fold", no_wrap=name in unwrapped) for name in columns)
    grid = Table(*headers, title=Text(title) if title else None, title_justify="left", **style)
    for row in rows:
        grid.add_row(
            *(Text(printable(f"{cell:,}" if type(cell) is int else str(cell))) for cell in row)
        )
    return grid
