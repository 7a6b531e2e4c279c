"""How the process ends: its exit codes, the exceptions of a process that was asked to end, and the
end itself.

A Python thread that is inside TensorFlow or XLA when the interpreter shuts down ends by an
exception that C++ cannot handle: SIGABRT, "FATAL: exception not rethrown". A command skips that
shutdown.

One thread of supervision per process hears the signals SIGINT (Ctrl-C) and SIGTERM, even while the
main thread is inside a long call into C, in which Python runs no signal handler. Stdlib only."""

import atexit
import multiprocessing
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from pipeline.console.interrupts import Exit, on_ctrl_c
from pipeline.user_code import SaysEverything

Check = Callable[[], None]
exit_code = 1
"""Of a process that can only end because its run has failed; `end` sets it."""
TICK_SECONDS = 0.5
PYTHONS = {
    signal.SIGINT: (signal.default_int_handler, on_ctrl_c),
    signal.SIGTERM: (signal.SIG_DFL,),
}


class Ending(SaysEverything):
    """The process was asked to end, and nothing is lost: the same command resumes, or starts over
    if it saves nothing.

    together: every host of the run raises it at the same step, so no host has to be told."""

    exit_code: int

    def __init__(self, why: str, together: bool = False) -> None:
        super().__init__(self.exit_code)
        self.why = why
        self.together = together

    def __str__(self) -> str:
        return self.why


class Preempted(Ending, SystemExit):
    """Raised after SIGTERM. As a SystemExit it passes `except Exception`, and ends a program that
    does not catch it with Exit.PREEMPTED and no traceback."""

    exit_code = Exit.PREEMPTED


class Interrupted(Ending, KeyboardInterrupt):
    """Raised after SIGINT, as Ctrl-C sends it. A program that catches it may make other calls."""

    exit_code = Exit.INTERRUPTED


def ending(why: str, interrupted: bool, together: bool = False) -> Ending:
    """An Interrupted or a Preempted."""
    return (Interrupted if interrupted else Preempted)(why, together)


def print_last(text: str) -> None:
    """Prints to stderr, unless nobody reads it: Ctrl-C also ends the `tee` that a command writes
    to, and an error here would keep the process from ending."""
    with suppress(OSError, ValueError):  # ValueError: it is closed
        print(text, file=sys.stderr)


def leave(code: int) -> NoReturn:
    """Ends the process immediately: no other thread and no exit handler can delay it. Workers, such
    as Grain's, end with it, as they would with Python."""
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()
    for stream in (sys.stdout, sys.stderr):
        # as in print_last; AttributeError: the process began without it
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)


def end(code: int) -> NoReturn:
    """Ends a command: calls the exit handlers. After an error it waits for no thread: some wait for
    something that will never happen, such as those of a save that failed."""
    global exit_code
    exit_code = code
    if code == 0:
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    leave(code)


class Watcher:
    """The thread: it looks after every open call twice a second, and hears signals for the calls of
    the main thread.

    Only in place of Python's own handlers: a program's handler is respected. terminated: whether
    SIGTERM was heard."""

    def __init__(self) -> None:
        self.terminated = False
        # Supervisors
        self._calls = list[Any]()
        self._of_main = list[Any]()
        self._read = self._write = -1
        self._mutex = threading.Lock()

    @contextmanager
    def watching(self, call: Any) -> Iterator[None]:
        """Looks after a call, a Supervisor, in this block."""
        with self._mutex:
            if self._read < 0:
                self._read, self._write = os.pipe()
                os.set_blocking(self._write, False)
                threading.Thread(target=self._run, name="trainer-supervisor", daemon=True).start()
        main = threading.current_thread() is threading.main_thread()
        lists = [self._calls, self._of_main][: 1 + main]
        for each in lists:
            each.append(call)
        before = {
            number: signal.signal(number, self._handle)
            for number, handlers in PYTHONS.items()
            if main and signal.getsignal(number) in handlers
        }
        if before:
            fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            if fd not in (-1, self._write):
                signal.set_wakeup_fd(fd)  # an event loop's
        os.write(self._write, b"\0")
        try:
            yield
        finally:
            for each in lists:
                each.remove(call)
            for number, handler in before.items():
                if self._handles(number):  # unless the program has set another in the meantime
                    signal.signal(number, handler)

    def _handles(self, number: int) -> bool:
        # None once the interpreter ends, which closes iterators that nobody has finished
        return signal is not None and signal.getsignal(number) == self._handle

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal in the main thread, once that runs Python."""
        if (fd := signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)) != self._write:
            signal.set_wakeup_fd(fd)  # an event loop's: the thread did not hear it
            os.write(self._write, bytes([number]))
        if number == signal.SIGINT and self._of_main and self._of_main[-1].leavable:
            self._of_main[-1].leave()

    def _run(self) -> None:
        while True:
            seconds = TICK_SECONDS if self._calls else None
            ready, _, _ = select.select([self._read], [], [], seconds)
            for number in filter(None, os.read(self._read, 64) if ready else b""):
                for call in self._of_main[-1:] if self._handles(number) else ():
                    self.terminated |= number == signal.SIGTERM
                    call.asked(signal.Signals(number).name)
            for call in [*self._calls]:
                call.tick()

    def forget(self) -> None:
        """Forgets the thread in a forked process, which has none."""
        for number, (handler, *_) in PYTHONS.items():
            if self._handles(number):
                signal.signal(number, handler)
                signal.set_wakeup_fd(-1)  # the pipe is the parent's
        self.__init__()


WATCHER = Watcher()
os.register_at_fork(after_in_child=WATCHER.forget)
