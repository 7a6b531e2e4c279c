"""A line on a terminal or in a notebook that is rewritten in place."""

import logging
import secrets
from collections.abc import Callable
from typing import TextIO, cast

from rich.file_proxy import FileProxy
from rich.progress import Progress, TextColumn
from rich.table import Column

from pipeline.tools.command import Console

__all__ = ["open_live_line", "share_of"]

NOTEBOOK_SECONDS = 0.5  # between updates: each is a message to the browser


def share_of(step: int, end: int | None) -> str:
    """Such as "7/40"; "7" if the end is not known."""
    return str(step) if end is None else f"{step}/{end}"


def open_live_line(
    what: str, text: str, start: int, end: int | None, out: TextIO, clock: Callable[[], float]
) -> "_NotebookLine | _TerminalLine | None":
    """The line "`what` start/end: `text`" of a terminal or a notebook; None if there is neither."""
    if Console().is_jupyter:
        return _NotebookLine(what, text, start, end, clock)
    return _TerminalLine(what, text, start, end, out) if Console(file=out).is_terminal else None


class _NotebookLine:
    """A line in the output of the notebook's cell, replaced in place: a saved notebook has only the last one.

    rich's own live display needs ipywidgets, and shows nothing without it."""

    def __init__(self, what: str, text: str, start: int, end: int | None, clock: Callable[[], float]) -> None:
        self._what, self._end, self._clock, self._id = what, end, clock, f"infeed-{secrets.token_hex(8)}"
        self._step, self._text, self._shown = start, text, clock()
        self._display(update=False)

    def show(self, step: int, text: str | None = None) -> None:
        """text: None to keep the one before."""
        self._step, self._text = step, text or self._text
        if self._clock() - self._shown >= NOTEBOOK_SECONDS:
            self._shown = self._clock()
            self._display()

    def close(self) -> None:
        """Leaves the last state where it is."""
        self._display()

    def _display(self, update: bool = True) -> None:
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        share = "" if self._end is None else f" ({self._step / self._end:.0%})"
        line = f"{self._what} {share_of(self._step, self._end)}{share}: {self._text}"
        display({"text/plain": line}, raw=True, display_id=self._id, update=update)


class _TerminalLine:
    """A line that is rewritten in place; log lines appear above it."""

    def __init__(self, what: str, text: str, start: int, end: int | None, out: TextIO) -> None:
        share = "" if end is None else "/{task.total} ({task.percentage:.0f}%)"
        line = f"{what} {{task.completed}}{share}: {{task.description}}"
        column = TextColumn(line, markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
        console = Console(file=out)
        self._progress = Progress(column, console=console, refresh_per_second=4)
        self._task = self._progress.add_task(text, completed=start, total=end)
        self._progress.start()
        handlers = [each for each in logging.getLogger().handlers if isinstance(each, logging.StreamHandler)]
        self._out, self._handlers = out, [each for each in handlers if each.stream is out]
        for handler in self._handlers:
            handler.setStream(cast(TextIO, FileProxy(console, out)))

    def show(self, step: int, text: str | None = None) -> None:
        """text: None to keep the one before."""
        self._progress.update(self._task, completed=step, description=text, refresh=text is not None)

    def close(self) -> None:
        """Leaves the last state where it is."""
        for handler in self._handlers:
            handler.setStream(self._out)
        self._progress.stop()
