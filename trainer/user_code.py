"""Errors in a user's own code: which frames of a traceback are the user's, and tracebacks that show only these.

JAX, flax and our own code call a loss function through eighty lines of frames, of which a person needs two. Like JAX's
own filter, this one is off if the environment has JAX_TRACEBACK_FILTERING=off. Stdlib only."""

import os
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from pipeline.errors import InfeedError, printable

__all__ = ["JAX_NOTE", "ShortErrors", "described", "keeps_all_frames", "source_lines", "user_frames"]

JAX_NOTE = "-----"  # starts the note that JAX adds to an error in a program, about its own stack frames
SHORTENED = "Only your own frames are shown. JAX_TRACEBACK_FILTERING=off shows all."
_ROOT = Path(__file__).parents[1]
_OURS = tuple(f"{_ROOT / name}{os.sep}" for name in ("pipeline", "trainer", "converters", "beam_jobs"))
_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}", "__autograph_generated_file")
_STDLIB = sysconfig.get_path("stdlib") + os.sep
MAX_CHARACTERS, MAX_CODE = 600, 150  # of an error and of a line of code, on one line


def keeps_all_frames() -> bool:
    """Whether the user asked for complete tracebacks."""
    return os.environ.get("JAX_TRACEBACK_FILTERING") == "off"


def user_frames(trace: TracebackType | None) -> list[TracebackType]:
    """The entries of a traceback that are neither ours nor a library's, outermost first."""
    return [entry for entry in _entries(trace) if _is_users(entry.tb_frame.f_code.co_filename)]


def source_lines(error: BaseException) -> list[str]:
    """The user's frames, one per line: `model.py:12, in loss: logits = model(batch["image"])`; and a syntax error's."""
    lines = []
    for entry in user_frames(error.__traceback__):
        (frame,) = traceback.extract_tb(entry, limit=1)
        lines.append(f"  {_near(frame.filename)}:{frame.lineno}, in {frame.name}: {_short(frame.line)}")
    if isinstance(error, SyntaxError) and error.filename:
        lines.append(f"  {_near(error.filename)}:{error.lineno}: {_short(error.text)}")
    return lines


def described(error: BaseException) -> str:
    """Type, message and notes as one line."""
    text = " ".join(str(error).split())
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]} ..."
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith(JAX_NOTE) and note != SHORTENED]
    return printable(" ".join([said, *(f"({note})" for note in notes)]))


class ShortErrors:
    """A context in which errors leave with a short traceback: the frame of the context, then the user's frames.

    An InfeedError keeps only these. Any other error without a frame of the user's is left as it is: the mistake may be
    ours."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if not isinstance(error, Exception) or trace is None or keeps_all_frames():
            return
        users = user_frames(trace.tb_next)
        if not users and not isinstance(error, InfeedError):
            return
        shown: TracebackType | None = None
        for entry in reversed([trace, *users]):
            shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
        error.__traceback__ = shown
        notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith(JAX_NOTE)]
        error.__notes__ = notes if isinstance(error, InfeedError) else [*notes, SHORTENED]


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
