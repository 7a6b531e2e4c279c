"""Ends a wait that took too long: logs the stack of every thread, and makes the error to raise.

Used by every wait that has a time limit. Stdlib only; reads nothing from disk, which may be what stalls."""

import gc
import sys
import threading
import traceback
from types import FrameType

from pipeline.errors import OptionError, StallError
from pipeline.logs import logger

__all__ = ["checked_stall_seconds", "stacks", "stalled", "thread_frames"]

log = logger("pipeline")


def checked_stall_seconds(stall_seconds: float) -> float:
    """The time limit, capped to what locks accept; infinity waits forever. OptionError unless above 0."""
    if not stall_seconds > 0:
        raise OptionError(
            f"stall_seconds={stall_seconds} must be more than 0: the longest that one wait may last before it is an "
            "error. float('inf') waits forever."
        )
    return min(stall_seconds, threading.TIMEOUT_MAX)


def stalled(awaited: str, seconds: float) -> StallError:
    """Logs the stacks of all threads. Returns the error to raise.

    awaited: what did not arrive, and from where."""
    error = StallError(
        f"waited {seconds:g} s for {awaited}, and nothing came. The log has the stack of every thread (reading is in "
        "'infeed-read') and shows where it hangs. Check the storage; if it is only slow, pass a larger stall_seconds."
    )
    lines = stacks().split("\n")
    log.error("\n".join(["%s"] * (1 + len(lines))), error, *lines)
    return error


def stacks() -> str:
    """The Python stack of every thread, by name, most recent call last.

    Without source lines: the sources may be on the disk that stalls."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    blocks = []
    for ident, frame in thread_frames().items():
        calls = [
            f'  File "{call.f_code.co_filename}", line {line}, in {call.f_code.co_qualname}'
            for call, line in traceback.walk_stack(frame)
        ]
        blocks.append("\n".join([f"Thread {names.get(ident, ident)}:", *reversed(calls)]))
    return "\n".join(blocks)


def thread_frames() -> dict[int, FrameType]:
    """The current frame of every thread, by its ident."""
    # In CPython 3.11 a garbage collection inside the call may deadlock: github.com/python/cpython/issues/106883.
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collects:
            gc.enable()
