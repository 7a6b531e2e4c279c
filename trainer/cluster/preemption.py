"""SIGTERM and SIGINT as requests: the trainer saves at the next opportunity, and ends the process or the call.

SIGTERM is for the process: once it was there, every later call ends at once. SIGINT, as of Ctrl-C, is for the call that
it came in: it raises KeyboardInterrupt, and a program that catches that may make another call."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

from trainer.cluster.roll import Roll
from trainer.cluster.store import Store
from trainer.exits import Interrupted, Preempted
from trainer.interrupts import FirstOne, Interrupts

__all__ = ["Preemption", "Request"]

KEY = "preempted"  # of the run, as its first failure. Of a host: "" for SIGTERM, for SIGINT the call that it was in
SAVING = "interrupted: saving the run; a second Ctrl-C exits without saving"
STOPPING = "interrupted: stopping; a second Ctrl-C exits immediately"

_requested = threading.Event()


class Request(NamedTuple):
    """Which process was asked to end, in words; interrupted: by SIGINT."""

    where: str
    interrupted: bool


class Preemption:
    """Listens to SIGTERM and SIGINT during a call of the trainer, as a context manager.

    Only in the main thread, where Python delivers signals, and where the program has no handler of its own.
    saves: whether the call has anything to save."""

    def __init__(self, store: Store, saves: bool = False) -> None:
        self._store = store
        self._listening = False
        self._call = ""
        words = SAVING if saves else STOPPING
        self._interrupts = Interrupts(FirstOne.WAITS, words, lambda: self._tell(self._call), self._interrupted)

    def __enter__(self) -> "Preemption":
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, None):
            signal.signal(signal.SIGTERM, self._on_sigterm)
            self._listening = True
        self._interrupts.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._listening:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._interrupts.__exit__()
        if error is None:
            self._interrupts.check()  # while the last checkpoint was written

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        _requested.set()
        self._tell("")

    def _tell(self, what: str) -> None:
        if self._store.count > 1:  # not here: the main thread may be inside the store
            threading.Thread(target=self._store.put, args=(f"{KEY}/{self._store.index}", what), daemon=True).start()

    def within(self, roll: Roll) -> None:
        """Which call this is; before the first poll."""
        self._call = roll.key("interrupted")
        if self._interrupts.heard:
            self._tell(self._call)

    @contextmanager
    def leavable(self) -> Iterator[None]:
        """Around what may be left anywhere, as nothing is lost by it: SIGINT is an exception in there."""
        self._interrupts.first = FirstOne.RAISES
        try:
            yield
        except Exception:
            self._interrupts.check()  # a library that was left in the middle may call it an error of its own
            raise
        finally:
            self._interrupts.first = FirstOne.WAITS
        self._interrupts.check()

    def _interrupted(self) -> Interrupted:
        return Interrupted("SIGINT; all that was done is saved, and the same command goes on from there")

    def anywhere(self) -> Request | None:
        """The request to any process of the run; None without one. Asks the store."""
        here = {self._store.index: ""} if _requested.is_set() else {}
        if self._interrupts.heard:
            here.setdefault(self._store.index, self._call)
        told = self._store.by_host(KEY) if self._store.count > 1 else {}
        hosts = {host: call for host, call in (told | here).items() if call in ("", self._call)}
        if not hosts:
            return None
        host = min(hosts)
        name = "SIGINT" if hosts[host] else "SIGTERM"
        return Request(f"{name} on host {host} of {self._store.count}", bool(hosts[host]))

    def check(self) -> None:
        """Raises an Ending if this process was asked to end, where there is nothing to save."""
        if _requested.is_set():
            raise Preempted("SIGTERM; all that was done is saved")
        self._interrupts.check()
