"""Which frames of a traceback are the user's, and errors that show only these in a notebook. Stdlib only.

Like JAX's own filter, this is off if the environment has JAX_TRACEBACK_FILTERING=off."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

__all__ = ["ShortInNotebooks", "keeps_all_frames", "only", "user_frames"]

_ROOT = Path(__file__).resolve().parents[1]
_OURS = tuple(f"{_ROOT / name}{os.sep}" for name in ("pipeline", "trainer", "converters", "beam_jobs"))
_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}", "__autograph_generated_file")
_STDLIB = f"{Path(os.__file__).resolve().parent}{os.sep}"


class ShortInNotebooks(BaseException):
    """An error whose message says everything: a notebook shows it below the user's own frames, without its causes."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows, if an exception has this method."""
        from IPython import get_ipython  # pyright: ignore[reportMissingImports, reportPrivateImportUsage]

        trace, cause, silent = self.__traceback__, self.__cause__, self.__suppress_context__
        if not keeps_all_frames():
            trace = only(user_frames(trace)) or trace
            self.__cause__ = None
        try:
            return get_ipython().InteractiveTB.structured_traceback(type(self), self, trace, tb_offset=0)
        finally:
            self.__cause__, self.__suppress_context__ = cause, silent


def keeps_all_frames() -> bool:
    """Whether the user asked for complete tracebacks."""
    return os.environ.get("JAX_TRACEBACK_FILTERING") == "off"


def user_frames(trace: TracebackType | None) -> list[TracebackType]:
    """The entries of a traceback that are neither ours nor a library's, outermost first."""
    return [entry for entry in _entries(trace) if _is_users(entry.tb_frame.f_code.co_filename)]


def only(entries: Iterable[TracebackType]) -> TracebackType | None:
    """A traceback of these entries."""
    shown: TracebackType | None = None
    for entry in reversed(list(entries)):
        shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shown


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_users(file: str) -> bool:
    if file.startswith("<"):  # such as <string>, in which dataclasses are written
        return file.startswith(("<stdin>", "<ipython-input"))
    path = os.path.realpath(file)
    return not path.startswith((*_OURS, _STDLIB)) and not any(part in path for part in _LIBRARIES)
