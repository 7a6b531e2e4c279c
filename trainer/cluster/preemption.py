"""SIGTERM as a request: the trainer saves at the next opportunity and ends the process with an exit code of its own.

The request is the process's, not one call's: once it has been made, every later call ends at once."""

import signal
import threading
from types import FrameType

from trainer.cluster.store import Store
from trainer.exits import Preempted

__all__ = ["Preemption"]

KEY = "preempted"  # of the run, as its first failure

_requested = threading.Event()


class Preemption:
    """Listens to SIGTERM during a call of the trainer, as a context manager.

    Only in the main thread, where Python delivers signals, and where the program has no handler of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listening = False

    def __enter__(self) -> "Preemption":
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, None):
            signal.signal(signal.SIGTERM, self._on_signal)
            self._listening = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._listening:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        _requested.set()
        if self._store.count > 1:  # not here: the main thread may be inside the store
            threading.Thread(target=self._store.put, args=(f"{KEY}/{self._store.index}", ""), daemon=True).start()

    def here(self) -> bool:
        """Whether this process was asked to end."""
        return _requested.is_set()

    def anywhere(self) -> str:
        """Which process was asked to end, in words; "" for none. Asks the store."""
        hosts = [self._store.index] if self.here() else []
        if self._store.count > 1:
            hosts += [host for host in self._store.by_host(KEY) if host not in hosts]
        return f"SIGTERM on host {min(hosts)} of {self._store.count}" if hosts else ""

    def check(self) -> None:
        """Raises Preempted if this process was asked to end, where there is nothing to save."""
        if self.here():
            raise Preempted("SIGTERM; all that was done is saved")
