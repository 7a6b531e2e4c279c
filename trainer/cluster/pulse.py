"""Signs of life: every process of a run gives them from the moment it has joined, and can tell which hosts give none.

During a call of the trainer the Watchdog acts on it. Between calls, where nobody else would notice, the Pulse does."""

import atexit
import itertools
import sys
import threading
import time

from trainer.cluster.store import Store, StoreError, joined_store
from trainer.exits import EXIT_HOST_FAILED, leave

__all__ = ["LOOKS", "Pulse", "Signs", "begin_call", "end_call", "keep_beating"]

BEAT_SECONDS = 0.5
LOOKS = 8  # in the time that a host may be silent; all hosts look, and a thousand of them ask one service
SILENCE_SECONDS = 45.0  # between calls; a long import or export may hold up a host's thread
FAREWELL_SECONDS = 300.0  # as long as JAX waits at the end of a process for the others
TIMED_OUT = "DEADLINE_EXCEEDED"


class Signs:
    """Which hosts are silent, by the clock of this one."""

    def __init__(self, store: Store, silence_seconds: float) -> None:
        self._store, self._silence_seconds = store, silence_seconds
        self._heard: dict[int, tuple[str, float]] = {}
        self._looked = time.monotonic()

    def silent(self) -> set[int]:
        """The other hosts that have given no sign of life for so long; not those that have not joined yet.

        Raises StoreError."""
        beats, now = self._store.by_host("beat"), time.monotonic()
        # While this process itself was suspended it could hear nothing.
        deaf = max(0.0, now - self._looked - self._silence_seconds / 2)
        self._looked = now
        for host, beat in beats.items():
            last, since = self._heard.get(host, ("", now))
            self._heard[host] = (beat, since + deaf if beat == last else now)
        return {
            host
            for host, (_, since) in self._heard.items()
            if host != self._store.index and now - since > self._silence_seconds
        }


class Pulse:
    """The thread of a process that gives its signs of life. calls: of the trainer, now, which have a Watchdog."""

    def __init__(self, store: Store) -> None:
        self.calls = 0
        self._store, self._stopped = store, threading.Event()
        self._thread = threading.Thread(target=self._beat, name="trainer-pulse", daemon=True)
        self._thread.start()
        atexit.register(self.farewell)

    def _beat(self) -> None:
        signs = Signs(self._store, SILENCE_SECONDS)
        every = round(SILENCE_SECONDS / BEAT_SECONDS / LOOKS)
        for number in itertools.count():
            try:
                self._store.reach(SILENCE_SECONDS)
                self._store.put(f"beat/{self._store.index}", str(number))
                if number % every == 0 and (silent := signs.silent()):
                    self._end(min(silent), f"it gave no sign of life for {SILENCE_SECONDS:g} s.")
            except StoreError as error:
                if not str(error).startswith(TIMED_OUT):
                    return  # the program has left the run; where the service has died JAX ends the process
                self._end(0, f"the coordination service on its machine gave no answer for {SILENCE_SECONDS:g} s.")
            if self._stopped.wait(BEAT_SECONDS):
                return

    def _end(self, host: int, text: str) -> None:
        if self.calls:
            return
        store = self._store
        failed = f"error: host {host} of {store.count} failed: {text} Its process or machine died: look at its log."
        print(f"{failed} Host {store.index} ends, too.", file=sys.stderr)
        leave(EXIT_HOST_FAILED)

    def farewell(self) -> None:
        """At the end of the process: waits for that of the others, as JAX does, which does not hear of a death."""
        stop = time.monotonic() + FAREWELL_SECONDS
        try:
            self._store.put(f"farewell/{self._store.index}", "")
            while self._thread.is_alive() and time.monotonic() < stop:
                if len(self._store.by_host("farewell")) == self._store.count:
                    break
                time.sleep(BEAT_SECONDS / 5)
        except StoreError:
            pass  # JAX's own end tells it
        self._stopped.set()
        self._thread.join()


_pulse: Pulse | None = None


def keep_beating() -> Pulse | None:
    """The Pulse of this process, started if need be; None if it has not joined others."""
    global _pulse
    if _pulse is None and (store := joined_store()) is not None:
        _pulse = Pulse(store)
    return _pulse


def begin_call() -> None:
    """From here on a Watchdog acts on what a Pulse may find."""
    if pulse := keep_beating():
        pulse.calls += 1


def end_call() -> None:
    """See begin_call."""
    if pulse := keep_beating():
        pulse.calls -= 1
