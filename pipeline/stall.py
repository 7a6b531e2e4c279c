"""The end of a wait that lasted too long: the log gets the stack of every thread, and one error says where to look.

Whoever waits with a bound uses it. Stdlib only, and it reads nothing from disk, which may be what stalls."""

import sys
import threading
import traceback

from pipeline.logs import logger
from pipeline.shards.errors import OptionError, StallError

__all__ = ["checked_stall_seconds", "stacks", "stalled"]

log = logger("pipeline")


def checked_stall_seconds(stall_seconds: float) -> float:
    """The bound as the clock of a lock takes it; infinity is for ever. OptionError unless it is more than 0."""
    if not stall_seconds > 0:
        raise OptionError(
            f"stall_seconds={stall_seconds} must be more than 0: so long one wait may last before it is an error. "
            "float('inf') waits for ever."
        )
    return min(stall_seconds, threading.TIMEOUT_MAX)


def stalled(awaited: str, seconds: float) -> StallError:
    """The error to raise after so long a wait; the stacks of all threads are in the log when this returns.

    awaited: what did not come, and from where."""
    error = StallError(
        f"waited {seconds:g} s for {awaited}, and nothing came. The log has the stack of every thread (reading is in "
        "'infeed-read'): see what it hangs in. Check the storage; if it is only slow, pass a larger stall_seconds."
    )
    lines = stacks().split("\n")
    log.error("\n".join(["%s"] * (1 + len(lines))), error, *lines)
    return error


def stacks() -> str:
    """The Python stack of every thread, by name, the latest call last.

    Without the text of the lines: a disk that stalls may be the one that holds the sources."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    blocks = []
    for ident, frame in sys._current_frames().items():
        calls = [
            f'  File "{call.f_code.co_filename}", line {line}, in {call.f_code.co_qualname}'
            for call, line in traceback.walk_stack(frame)
        ]
        blocks.append("\n".join([f"Thread {names.get(ident, ident)}:", *reversed(calls)]))
    return "\n".join(blocks)
