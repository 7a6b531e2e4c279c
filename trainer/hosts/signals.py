"""The thread of supervision, one per process, and the signals SIGINT (Ctrl-C) and SIGTERM, which wake it even while the
main thread is inside a long call into C, in which Python runs no signal handler."""

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pipeline.commands import program as ctrl_c

TICK_SECONDS = 0.5
PYTHONS = {signal.SIGINT: (signal.default_int_handler, ctrl_c.leave), signal.SIGTERM: (signal.SIG_DFL,)}


class Watcher:
    """The thread: it looks after every open call twice a second, and hears signals for the calls of the main thread.

    Only in place of Python's own handlers: a program's handler is respected. terminated: whether SIGTERM was heard."""

    def __init__(self) -> None:
        self.terminated = False
        self._calls, self._of_main = list[Any](), list[Any]()  # Supervisors
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
            for number, theirs in PYTHONS.items()
            if main and signal.getsignal(number) in theirs
        }
        if before and (fd := signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)) not in (-1, self._write):
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
        return signal.getsignal(number) == self._handle

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """In the main thread, once that runs Python."""
        if (fd := signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)) != self._write:
            signal.set_wakeup_fd(fd)  # an event loop's: the thread did not hear it
            os.write(self._write, bytes([number]))
        if number == signal.SIGINT and self._of_main and self._of_main[-1].leavable:
            self._of_main[-1].leave()

    def _run(self) -> None:
        while True:
            seconds = TICK_SECONDS if self._calls else None
            numbers = os.read(self._read, 64) if select.select([self._read], [], [], seconds)[0] else b""
            for number in filter(None, numbers):
                for call in self._of_main[-1:] if self._handles(number) else ():
                    self.terminated |= number == signal.SIGTERM
                    call.asked(signal.Signals(number).name)
            for call in [*self._calls]:
                call.tick()

    def forget(self) -> None:
        """In a forked process, which has no such thread."""
        for number, (handler, *_) in PYTHONS.items():
            if self._handles(number):
                signal.signal(number, handler)
                signal.set_wakeup_fd(-1)  # the pipe is the parent's
        self.__init__()


WATCHER = Watcher()
os.register_at_fork(after_in_child=WATCHER.forget)
