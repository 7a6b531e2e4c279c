"""Errors in a user's own code: tracebacks and lines that show only the user's frames.

JAX, flax and our own code call a loss function through eighty lines of frames, of which a person
needs two. Stdlib only."""

import os
import traceback
from types import TracebackType

from pipeline.errors import InfeedError, keeps_all_frames, only, printable, user_frames

# starts the note that JAX adds to an error in a program, about its own stack frames
JAX_NOTE = "-----"
SHORTENED = "Only your own frames are shown. JAX_TRACEBACK_FILTERING=off shows all."
MAX_CHARACTERS, MAX_CODE = 600, 150  # of an error and of a line of code, on one line


def source_lines(error: BaseException) -> list[str]:
    """The user's frames, one per line: `model.py:12, in loss: logits = model(batch["image"])`; and
    a syntax error's."""
    lines = []
    for entry in user_frames(error.__traceback__):
        (frame,) = traceback.extract_tb(entry, limit=1)
        lines.append(
            f"  {_near(frame.filename)}:{frame.lineno}, in {frame.name}: {_short(frame.line)}"
        )
    if isinstance(error, SyntaxError) and error.filename:
        lines.append(f"  {_near(error.filename)}:{error.lineno}: {_short(error.text)}")
    return lines


def described(error: BaseException) -> str:
    """Type, message and notes as one line."""
    text = " ".join(str(error).split())
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]} ..."
    head = f"{type(error).__name__}: {text}" if text else type(error).__name__
    notes = (f"({note})" for note in notes_of(error) if note != SHORTENED)
    return printable(" ".join([head, *notes]))


def notes_of(error: BaseException) -> list[str]:
    """The notes of an error, but for JAX's."""
    return [note for note in getattr(error, "__notes__", ()) if not note.startswith(JAX_NOTE)]


class ShortErrors:
    """A context in which errors leave with a short traceback: only the user's frames.

    An InfeedError may have none. Any other error without a frame of the user's is left as it is:
    the mistake may be ours."""

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or trace is None or keeps_all_frames():
            return
        users = user_frames(trace)
        of_user = not isinstance(error, InfeedError)
        if of_user and not users:
            return
        error.__traceback__ = only(users)
        error.__notes__ = notes_of(error) + [SHORTENED] * of_user


def _short(code: str | None) -> str:
    return (code or "").strip()[:MAX_CODE]


def _near(file: str) -> str:
    path = os.path.relpath(file)
    return file if path.startswith("..") else path
