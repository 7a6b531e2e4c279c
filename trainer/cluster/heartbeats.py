"""Heartbeats: every process of a run sends them from the moment it joins, and notices which hosts send none.

During a call of the trainer the host watchdog acts on a silent host. Between calls the Heartbeats do."""

import atexit
import itertools
import sys
import threading
import time

from trainer.cluster.store import Store, StoreError, joined_store
from trainer.exits import EXIT_HOST_FAILED, leave

__all__ = ["LOOKS", "Heartbeats", "SilentHosts", "count_calls", "start_heartbeats"]

BEAT_SECONDS = 0.5
LOOKS = 8  # per time that a host may be silent; all hosts look, and a thousand of them ask one service
SILENCE_SECONDS = 45.0  # between calls; a long import or export may block a host's thread
FAREWELL_SECONDS = 300.0  # as long as JAX waits for the others at the end of a process
TIMED_OUT = "DEADLINE_EXCEEDED"


class SilentHosts:
    """Which hosts are silent, by this host's clock."""

    def __init__(self, store: Store, silence_seconds: float) -> None:
        self._store, self._silence_seconds = store, silence_seconds
        self._heard: dict[int, tuple[str, float]] = {}
        self._looked = time.monotonic()

    def look(self) -> set[int]:
        """The other hosts without a heartbeat for this time, except those that never joined. Raises StoreError."""
        beats, now = self._store.by_host("beat"), time.monotonic()
        # While this process was suspended, it noticed no heartbeats.
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


class Heartbeats:
    """The thread that sends this process's heartbeats. calls: of the trainer, open now; each has a host watchdog."""

    def __init__(self, store: Store) -> None:
        self.calls = 0
        self._store, self._stopped = store, threading.Event()
        self._thread = threading.Thread(target=self._beat, name="trainer-heartbeats", daemon=True)
        self._thread.start()
        atexit.register(self.farewell)

    def _beat(self) -> None:
        silent_hosts = SilentHosts(self._store, SILENCE_SECONDS)
        every = round(SILENCE_SECONDS / BEAT_SECONDS / LOOKS)
        for number in itertools.count():
            try:
                self._store.reach(SILENCE_SECONDS)
                self._store.put(f"beat/{self._store.index}", str(number))
                if number % every == 0 and (silent := silent_hosts.look()):
                    self._end(min(silent), f"it sent no heartbeat for {SILENCE_SECONDS:g} s.")
            except StoreError as error:
                if not str(error).startswith(TIMED_OUT):
                    return  # the program has left the run; if the service has died, JAX ends the process
                self._end(0, f"the coordination service on its machine did not answer for {SILENCE_SECONDS:g} s.")
            if self._stopped.wait(BEAT_SECONDS):
                return

    def _end(self, host: int, text: str) -> None:
        if self.calls:
            return
        store = self._store
        failed = f"error: host {host} of {store.count} failed: {text} Its process or machine died: see its log."
        print(f"{failed} Host {store.index} ends, too.", file=sys.stderr)
        leave(EXIT_HOST_FAILED)

    def farewell(self) -> None:
        """At the end of the process: waits until all others end. JAX does the same, but does not notice a death."""
        stop = time.monotonic() + FAREWELL_SECONDS
        try:
            self._store.put(f"farewell/{self._store.index}", "")
            while self._thread.is_alive() and time.monotonic() < stop:
                if len(self._store.by_host("farewell")) == self._store.count:
                    break
                time.sleep(BEAT_SECONDS / 5)
        except StoreError:
            pass  # JAX's own shutdown reports it
        self._stopped.set()
        self._thread.join()


_heartbeats: Heartbeats | None = None


def start_heartbeats() -> Heartbeats | None:
    """Those of this process, started if necessary; None if the process has not joined others."""
    global _heartbeats
    if _heartbeats is None and (store := joined_store()) is not None:
        _heartbeats = Heartbeats(store)
    return _heartbeats


def count_calls(change: int) -> None:
    """1 as a call of the trainer starts, -1 as it ends: in between, its host watchdog acts, and they do not."""
    if heartbeats := start_heartbeats():
        heartbeats.calls += change
