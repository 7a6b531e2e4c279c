"""A long call into C, such as a compilation, that the main thread can leave on a signal or a failure elsewhere."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from trainer.exits import leave_at_exit

__all__ = ["Check", "interruptible"]

T = TypeVar("T")
Check = Callable[[], None]
POLL_SECONDS = 0.1


def interruptible(function: Callable[[], T], check: Check) -> T:
    """Runs `function` in a thread and returns its value. check: called meanwhile; it may raise.

    If it raises, the thread keeps running, as nothing can stop it. `trainer.exits.end` does not wait for it. A program
    that ends otherwise does, because an interpreter that shuts down during a compilation aborts (exit code 134)."""
    outcome = Future[T]()

    def work() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:
            outcome.set_exception(error)

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
    return outcome.result()
