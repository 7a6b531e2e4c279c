"""Which lines of an error are the user's: short tracebacks, in notebooks and from Python, and
the lines that commands print.

JAX, flax and our own code call a loss function through eighty lines of frames, of which a person
needs two. Like JAX's own filter, this is off if the environment has JAX_TRACEBACK_FILTERING=off.
Stdlib only: `errors` is built on it."""

import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

_ROOT = Path(__file__).resolve().parents[1]
_OURS = tuple(
    f"{_ROOT / name}{os.sep}" for name in ("pipeline", "trainer", "converters", "beam_jobs")
)
_LIBRARIES = (
    f"{os.sep}site-packages{os.sep}",
    f"{os.sep}dist-packages{os.sep}",
    "__autograph_generated_file",
)
_STDLIB = f"{Path(os.__file__).resolve().parent}{os.sep}"
# starts the note that JAX adds to an error in a program, about its own stack frames
JAX_NOTE = "-----"
SHORTENED = "Only your own frames are shown. JAX_TRACEBACK_FILTERING=off shows all."
MAX_CHARACTERS, MAX_CODE = 600, 150  # of an error and of a line of code, on one line


class SaysEverything(BaseException):
    """An error whose message needs no traceback: a notebook shows it below the user's own frames,
    without its causes."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows, if an exception has this method."""
        from IPython import get_ipython  # pyright: ignore[reportMissingImports, reportPrivateImportUsage]

        trace = self.__traceback__
        cause = self.__cause__
        silent = self.__suppress_context__
        if users := user_frames(trace):
            trace = users
            self.__cause__ = None
        try:
            return get_ipython().InteractiveTB.structured_traceback(
                type(self), self, trace, tb_offset=0
            )
        finally:
            self.__cause__ = cause
            self.__suppress_context__ = silent


class ShortErrors:
    """A context in which errors leave with a short traceback: only the user's frames.

    One that says everything may have none. Any other without a frame of the user's is left as it
    is: the mistake may be ours."""

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        users = user_frames(trace)
        of_user = not isinstance(error, SaysEverything)
        if not isinstance(error, Exception) or keeps_all_frames() or (of_user and not users):
            return
        error.__traceback__ = users
        error.__notes__ = notes_of(error) + [SHORTENED] * of_user


def keeps_all_frames() -> bool:
    """Whether the user asked for complete tracebacks."""
    return os.environ.get("JAX_TRACEBACK_FILTERING") == "off"


def user_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without our entries and those of libraries. None if there are no others, or if
    the user asked for complete tracebacks."""
    shown: TracebackType | None = None
    for entry in reversed([] if keeps_all_frames() else [*_entries(trace)]):
        if _is_users(entry.tb_frame.f_code.co_filename):
            shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shown


def source_lines(error: BaseException) -> list[str]:
    """The user's frames, one per line: `model.py:12, in loss: logits = model(batch["image"])`; and
    a syntax error's. [] if the user asked for complete tracebacks."""
    if keeps_all_frames():
        return []
    lines = [
        f"  {_near(frame.filename)}:{frame.lineno}, in {frame.name}: {_short(frame.line)}"
        for frame in traceback.extract_tb(user_frames(error.__traceback__))
    ]
    if isinstance(error, SyntaxError) and error.filename:
        lines.append(f"  {_near(error.filename)}:{error.lineno}: {_short(error.text)}")
    return lines


def described(error: BaseException) -> str:
    """Type, message and notes as one line. May contain control characters."""
    text = " ".join(str(error).split())
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]} ..."
    head = f"{type(error).__name__}: {text}" if text else type(error).__name__
    notes = (f"({note})" for note in notes_of(error) if note != SHORTENED)
    return " ".join([head, *notes])


def notes_of(error: BaseException) -> list[str]:
    """The notes of an error, but for JAX's."""
    return [note for note in getattr(error, "__notes__", ()) if not note.startswith(JAX_NOTE)]


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_users(file: str) -> bool:
    if file.startswith("<"):  # such as <string>, in which dataclasses are written
        return file.startswith(("<stdin>", "<ipython-input"))
    path = os.path.realpath(file)
    return not path.startswith((*_OURS, _STDLIB)) and not any(part in path for part in _LIBRARIES)


def _short(code: str | None) -> str:
    return (code or "").strip()[:MAX_CODE]


def _near(file: str) -> str:
    path = os.path.relpath(file)
    return file if path.startswith("..") else path
