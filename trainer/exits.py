"""How the process ends or is interrupted: its exit codes, the end of a process whose run has broken apart, and Ctrl-C
inside a long call into C, in which Python runs no signal handler. Stdlib only.

A Python thread that is inside TensorFlow or XLA when the interpreter shuts down ends by an exception that C++ cannot
handle: SIGABRT, "FATAL: exception not rethrown". A process that may have such a thread skips that shutdown.

A thread receives SIGINT (Ctrl-C), and `interruptible` runs a long call, such as a compilation, in another thread, so
that the main thread can leave it."""

import atexit
import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum, auto
from types import FrameType
from typing import NoReturn, TypeVar

from pipeline import ctrl_c
from pipeline.ctrl_c import EXIT_INTERRUPTED
from pipeline.errors import ShortInNotebooks

EXIT_USER_ERROR = 2  # any InfeedError
EXIT_HOST_FAILED = 3  # another host failed or died, so this one had to end

EXIT_PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, run the same command again
T = TypeVar("T")
Check = Callable[[], None]

ANSWER_SECONDS = 5.0
LEAVE_SECONDS = 1.0  # the thread may be stuck in a write to stderr
POLL_SECONDS = 0.1  # between two checks of an interruptible call
END, HANDLED = 0, 255  # bytes for the pipe; no signal has these numbers


class Ending(ShortInNotebooks):
    """The process was asked to end, and nothing is lost: the same command resumes, or starts over if it saves nothing.

    together: every host of the run raises it at the same step, so no host has to be told."""

    exit_code: int

    def __init__(self, why: str, together: bool = False) -> None:
        super().__init__(self.exit_code)
        self.why, self.together = why, together

    def __str__(self) -> str:
        return self.why


class Preempted(Ending, SystemExit):
    """By SIGTERM. As a SystemExit it passes `except Exception`, and ends a program that does not catch it with
    EXIT_PREEMPTED and no traceback."""

    exit_code = EXIT_PREEMPTED


class Interrupted(Ending, KeyboardInterrupt):
    """By SIGINT, as Ctrl-C sends it. A program that catches it may make other calls."""

    exit_code = EXIT_INTERRUPTED

    def __init__(self, why: str, together: bool = False) -> None:
        super().__init__(why, together)
        atexit.unregister(_leave_if_uncaught)
        atexit.register(_leave_if_uncaught)


def ending(why: str, interrupted: bool, together: bool = False) -> Ending:
    """An Interrupted or a Preempted."""
    return (Interrupted if interrupted else Preempted)(why, together)


class ProcessEnd:
    """How a process ends. One instance serves the process; its methods are the functions of this module."""

    def __init__(self) -> None:
        self._last_words: Callable[[], None] | None = None
        self._threads_abandoned = False

    def break_apart(self, last_words: Callable[[], None], code: int = 1) -> None:
        """From now on the process can only end, and not as JAX would end it, which waits for processes that are gone
        and then aborts. `last_words` is called just before the end. code: for a program that does not call `end`."""
        if not self.is_apart():
            self._last_words = last_words
            atexit.register(self.end, code)

    def is_apart(self) -> bool:
        """Whether the run of this process has broken apart."""
        return self._last_words is not None

    def abandon_threads(self) -> None:
        """From now on `end` waits for no thread: some wait for something that will never happen."""
        self._threads_abandoned = True

    def leave_at_exit(self, error: BaseException, thread: threading.Thread) -> None:
        """From now on `end` waits for no thread. A program that ends in another way waits for this thread, unless the
        error is an Ending."""
        self.abandon_threads()
        if isinstance(error, Preempted):
            atexit.register(leave, EXIT_PREEMPTED)
        elif isinstance(error, Interrupted):
            atexit.register(lambda: None if _uncaught() else thread.join())
        else:
            atexit.register(thread.join)

    def end(self, code: int) -> NoReturn:
        """Ends the process with this exit code, even if its run has broken apart."""
        if self._last_words is not None:
            self._last_words()
        if self.is_apart() or self._threads_abandoned:
            leave(code)
        if code not in (EXIT_PREEMPTED, EXIT_INTERRUPTED):
            threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
        _leave_in_order(code)


def leave(code: int) -> NoReturn:
    """Ends the process immediately: no other thread and no exit handler can delay it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _leave_in_order(code: int) -> NoReturn:
    """Calls the exit handlers and ends the process without the rest of Python's shutdown, which can abort."""
    atexit._run_exitfuncs()
    leave(code)


def _uncaught() -> bool:
    """Whether a KeyboardInterrupt ends this program; asked at its end."""
    return isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)


def _leave_if_uncaught() -> None:
    atexit.unregister(_leave_if_uncaught)
    if _uncaught():
        _leave_in_order(EXIT_INTERRUPTED)


_END = ProcessEnd()  # a process ends once
abandon_threads, break_apart, is_apart = _END.abandon_threads, _END.break_apart, _END.is_apart
leave_at_exit, end = _END.leave_at_exit, _END.end


class FirstOne(Enum):
    """What the first SIGINT does after a line is printed. The second always ends the process."""

    LEAVES = auto()  # ends the process
    RAISES = auto()  # raises in the main thread, except during an import: half a module is worse than a delay
    WAITS = auto()  # only sets `heard`


class Interrupts:
    """Listens for SIGINT, as a context manager; if several are entered, the innermost does.

    Only in the main thread, and only in place of Python's own handler: a program's handler is respected. words: what to
    print. tell: called in the listening thread, even while the main thread is inside C, with the number of the first
    SIGINT, and of every SIGTERM for which the program has a handler. error: makes the exception to raise."""

    def __init__(
        self,
        first: FirstOne,
        words: str,
        tell: Callable[[int], None] = lambda _: None,
        error: Callable[[], BaseException] = KeyboardInterrupt,
    ) -> None:
        self.first, self._words, self.tell, self._error = first, words, tell, error
        self._heard, self._answered = threading.Event(), threading.Event()
        self._raised = False

    @property
    def heard(self) -> bool:
        """Whether SIGINT was received."""
        return self._heard.is_set()

    def check(self) -> None:
        """Raises the error if SIGINT was received."""
        if self.heard:
            raise self._error()

    def __enter__(self) -> "Interrupts":
        if _LISTENER.open():
            _LISTENER.entered.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self not in _LISTENER.entered:
            return
        if self.heard:  # its line is printed first, and a SIGINT is not counted twice
            self._answered.wait(ANSWER_SECONDS)
        _LISTENER.entered.remove(self)
        if not _LISTENER.entered:
            _LISTENER.close()

    def in_thread(self) -> None:
        """Handles a SIGINT in the listening thread."""
        if self._answered.is_set():
            os._exit(EXIT_INTERRUPTED)
        self._heard.set()
        with contextlib.suppress(Exception):  # stderr may be closed
            sys.stderr.write(f"{self._words}\n")
            sys.stderr.flush()
        if self.first is FirstOne.LEAVES:
            os._exit(EXIT_INTERRUPTED)
        self._answered.set()
        self.tell(signal.SIGINT)

    def in_main(self, frame: FrameType | None) -> None:
        """Handles a SIGINT in the main thread."""
        self._heard.set()
        if self.first is FirstOne.RAISES and not self._raised and not _imports(frame):
            self._raised = True
            raise self._error()


class _Listener:
    """The process's handler of SIGINT and the thread that it wakes, while any Interrupts is entered."""

    def __init__(self) -> None:
        self.entered: list[Interrupts] = []
        self._handler_before: object = None
        self._thread = threading.Thread()
        self._fd_before = self._read = self._write = -1

    def open(self) -> bool:
        """Starts to listen, if it does not yet; returns whether it listens now."""
        if threading.current_thread() is not threading.main_thread():
            return False
        now = signal.getsignal(signal.SIGINT)
        if self.entered or now not in (signal.default_int_handler, ctrl_c.leave):
            return now == self._in_main
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._thread = threading.Thread(target=self._listen, name="trainer-interrupts", daemon=True)
        self._thread.start()
        self._fd_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._handler_before = signal.signal(signal.SIGINT, self._in_main)
        return True

    def close(self) -> None:
        """Restores the previous handler, unless the program has set another in the meantime."""
        if signal.getsignal(signal.SIGINT) == self._in_main:
            signal.signal(signal.SIGINT, self._handler_before)  # pyright: ignore[reportArgumentType]
        if (fd := signal.set_wakeup_fd(self._fd_before)) not in (self._write, -1):
            signal.set_wakeup_fd(fd)
        os.write(self._write, bytes([END]))
        os.close(self._write)
        self._write = -1
        self._thread.join(LEAVE_SECONDS)

    def _listen(self) -> None:
        read, woken, handled = self._read, 0, 0
        while True:
            for number in (numbers := os.read(read, 64)):
                if number == END:
                    os.close(read)
                    return
                handled += number == HANDLED
                if number == signal.SIGTERM and self.entered:
                    self.entered[-1].tell(number)
                # A signal wakes this thread, unless an event loop in the main thread has set a wakeup of its own.
                if (number == signal.SIGINT or handled > woken) and self.entered:
                    woken += 1
                    self.entered[-1].in_thread()
            if self._fd_before >= 0:  # the program has an event loop
                with contextlib.suppress(OSError):
                    os.write(self._fd_before, numbers.replace(bytes([HANDLED]), b""))

    def _in_main(self, number: int, frame: FrameType | None) -> None:
        if not self.entered:
            signal.default_int_handler(number, frame)
        # Whether an event loop has replaced the wakeup fd cannot be asked without unsetting it for a moment, in which a
        # signal would be lost. So the thread is told of each signal that is handled here.
        with contextlib.suppress(OSError):
            os.write(self._write, bytes([HANDLED]))
        self.entered[-1].in_main(frame)

    def forget(self) -> None:
        """Stops listening in a forked process."""
        if self.entered:
            self.entered.clear()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _imports(frame: FrameType | None) -> bool:
    frames = traceback.walk_stack(frame) if frame else ()
    return any(each.f_code.co_filename == "<frozen importlib._bootstrap>" for each, _ in frames)


_LISTENER = _Listener()
os.register_at_fork(after_in_child=_LISTENER.forget)


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
