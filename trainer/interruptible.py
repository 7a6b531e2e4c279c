"""A long call into C, a compilation, that the main thread can leave: signals and failures of other hosts are heard."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from trainer.exits import leave_at_exit

__all__ = ["Check", "interruptible"]

T = TypeVar("T")
Check = Callable[[], None]
POLL_SECONDS = 0.1


def interruptible(function: Callable[[], T], check: Check) -> T:
    """What `function` returns, run in a thread; `check` is called meanwhile, and may raise.

    Then the thread is left behind, as it cannot be stopped. `trainer.exits.end` does not wait for it; a program that
    ends in any other way does, because an interpreter that goes away under a compilation aborts (exit code 134)."""
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append((function(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=work, name="trainer-compiling", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(POLL_SECONDS)
            check()
    except BaseException as error:
        if thread.is_alive():
            leave_at_exit(error, thread)
        raise
    value, error = outcome[0]
    if error is not None:
        raise error
    return value
