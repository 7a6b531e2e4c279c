"""The host registry: which hosts of a run are alive, have failed or have left, during one call of the trainer.

Keys in a Store and rules about them; no jax arrays. Every process sends heartbeats from the moment it joins. During a
call the host watchdog acts on a silent host, between calls the Heartbeats do."""

import atexit
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn, TypeVar

from pipeline.background import log_stacks
from pipeline.errors import HostError
from trainer.activity import StandingStill
from trainer.cluster.store import Store, StoreError, joined_store
from trainer.exits import EXIT_HOST_FAILED, Ending, ending, leave

BEAT_SECONDS = 0.5
LOOKS = 8  # per time that a host may be silent; all hosts look, and a thousand of them ask one service
SILENCE_SECONDS = 45.0  # between calls; a long import or export may block a host's thread
FAREWELL_SECONDS = 300.0  # as long as JAX waits for the others at the end of a process
TIMED_OUT = "DEADLINE_EXCEEDED"

POLL_SECONDS = 0.5
GONE_SECONDS = 10.0  # host 0 waits this long for the others at its end, which JAX does not survive elsewhere
FAILURE = "failure"  # of the run, not of one session: a host may read it in the next
T = TypeVar("T")


class SilentHosts:
    """Which hosts are silent, by this host's clock."""

    def __init__(self, store: Store, silence_seconds: float) -> None:
        self._store, self._silence_seconds = store, silence_seconds
        self.beats: dict[int, str] = {}  # the newest of each host
        self._standing_still = StandingStill(silence_seconds / 4)

    def look(self) -> set[int]:
        """The other hosts without a heartbeat for this time, except those that never joined. Raises StoreError."""
        self.beats = self._store.by_host("beat")
        still = self._standing_still.look(self.beats)
        return {host for host in still if host != self._store.index and still[host] > self._silence_seconds}


class Heartbeats:
    """The thread that sends this process's heartbeats. calls: of the trainer, open now; each has a host watchdog.

    told: what they tell the other hosts."""

    def __init__(self, store: Store) -> None:
        self.calls = 0
        self.told: Callable[[], Any] = lambda: None
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
                self._store.put(f"beat/{self._store.index}", json.dumps([number, self.told()]))
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
        self._leave(f"host {host} of {self._store.count} failed: {text} Its process or machine died: see its log.")

    def _leave(self, why: str) -> NoReturn:
        print(f"error: {why} Host {self._store.index} ends, too.", file=sys.stderr)
        leave(EXIT_HOST_FAILED)

    def farewell(self) -> None:
        """At the end of the process: waits until all others end. JAX does the same, but does not notice a death."""
        stop = time.monotonic() + FAREWELL_SECONDS
        try:
            self._store.put(f"farewell/{self._store.index}", "")
            while self._thread.is_alive() and time.monotonic() < stop:
                if len(self._store.by_host("farewell")) == self._store.count:
                    break
                if (told := self._store.get(FAILURE)) and (failure := Failure(*json.loads(told))).stuck:
                    log_stacks()
                    self._leave(str(failure.error(self._store.count)))
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


def count_calls(change: int, told: Callable[[], Any] = lambda: None) -> None:
    """1 as a call of the trainer starts, -1 as it ends: in between, its host watchdog acts, and they do not.

    told: what the heartbeats tell the other hosts from now on."""
    if heartbeats := start_heartbeats():
        heartbeats.calls += change
        heartbeats.told = told


class Failure(NamedTuple):
    """The first failure of a run: its host and message; or a request to end (preempted; interrupted: by SIGINT).

    stuck: the host, or the devices of all (host -1), made no progress."""

    host: int
    text: str
    preempted: bool = False
    interrupted: bool = False
    stuck: bool = False

    def error(self, count: int) -> HostError | Ending:
        """The exception that the other hosts raise."""
        if self.preempted:
            return ending(f"host {self.host} of {count}: {self.text}", self.interrupted)
        if self.stuck:
            who = "the devices are stuck" if self.host < 0 else f"host {self.host} of {count} is stuck"
            return HostError(f"{who if count > 1 or self.host < 0 else 'the process is stuck'}: {self.text}")
        return HostError(f"host {self.host} of {count} failed: {self.text}")


class HostRegistry:
    """One host's view of one session. No method raises when the store is gone: `failure` reports it.

    timeout_seconds: from a host's death to the end of the others; it is noticed after half of it and one look.
    call: its number."""

    def __init__(self, store: Store, timeout_seconds: float) -> None:
        self.store, self.timeout_seconds = store, timeout_seconds
        self.silence_seconds = timeout_seconds / 2
        self.look_seconds = self.silence_seconds / LOOKS
        self._silent_hosts = SilentHosts(store, self.silence_seconds)
        self._silent: set[int] = set()
        self._lost: Failure | None = None
        mine = f"calls/{store.index}"
        try:
            self.call = int(store.get(mine) or 0)  # all hosts make the same calls, so they get the same number
            store.put(mine, str(self.call + 1))
        except StoreError as error:
            raise _out_of_reach(error).error(store.count) from error

    def key(self, name: str) -> str:
        """`name` as a key of this session."""
        return f"{self.call}/{name}"

    def failure(self) -> Failure | None:
        """The first reported failure; None if there is none."""
        if self._lost:
            return self._lost
        try:
            found = self.store.get(FAILURE)
        except StoreError as error:
            return _out_of_reach(error)
        return None if found is None else Failure(*json.loads(found))

    def reach(self) -> Failure | None:
        """The failure if the store does not answer for `silence_seconds`; it is not asked again."""
        try:
            self.store.reach(self.silence_seconds)
        except StoreError as error:
            self._lost = _out_of_reach(error)
        return self._lost

    def report(self, text: str, host: int | None = None, **kind: bool) -> Failure:
        """Reports that this host, or `host`, has failed or is to end. Returns the run's first failure. kind: of it."""
        if self._lost:
            return self._lost
        own = Failure(self.store.index if host is None else host, text, **kind)
        try:
            return Failure(*json.loads(self.store.put_first(FAILURE, json.dumps(own))))
        except StoreError as error:
            return _out_of_reach(error)

    def look(self) -> None:
        """Reports a host that has been silent for too long. Every host looks, because any of them may be the dead one;
        the first report counts."""
        if self._lost:
            return
        try:
            self._silent = self._silent_hosts.look() - self._hear("left").keys()
        except StoreError:
            return  # `failure` reports it
        if self._silent:
            self.report(
                f"it sent no heartbeat for {self.silence_seconds:g} s (half of host_timeout_seconds). Its process or "
                "machine died or is suspended, or code in C holds Python's lock: see its log. The same command resumes "
                "from the newest checkpoint.",
                min(self._silent),
            )

    def told(self) -> dict[int, Any]:
        """What the heartbeats of hosts told when `look` last heard them, by host: (call, value), of this call."""
        beats = {host: json.loads(beat)[1] for host, beat in self._silent_hosts.beats.items()}
        return {host: told[1] for host, told in beats.items() if told and told[0] == self.call}

    def gone(self) -> Collection[int]:
        """The hosts that have left this call."""
        return self._hear("left").keys()

    def left(self, how: str) -> None:
        """Announces how this host's session ended: "done", "raised" or "killed"."""
        self._say("left", how)

    def ended_together(self) -> bool:
        """Whether every host left this session with an exception of its own, so that the run may make another call.

        Waits at most the timeout for all hosts to leave; host 0 decides and tells the others."""
        stop = time.monotonic() + self.timeout_seconds
        if self._lost:
            return False
        if self.store.index:
            return poll(self._verdict, stop + 2 * POLL_SECONDS) == "together"
        hosts = set(range(self.store.count)) - self._silent
        left = poll(lambda: found if hosts <= (found := self._hear("left")).keys() else None, stop)
        together = left is not None and not self._silent and set(left.values()) == {"raised"}
        if together:
            self.store.delete(FAILURE)
        self._say("end", "together" if together else "apart")
        return together

    def _verdict(self) -> str | None:
        """Host 0's verdict; "apart" if it died."""
        verdict = self._hear("end").get(0)
        if verdict is None:
            self.look()
        return "apart" if verdict is None and 0 in self._silent else verdict

    def depart(self) -> None:
        """Announces that this process ends. Host 0 waits until the others have announced it."""
        self._say("gone", "gone")
        if self.store.index == 0 and not self._lost:
            hosts = set(range(self.store.count)) - self._silent
            poll(lambda: hosts <= self._hear("gone").keys() or None, time.monotonic() + GONE_SECONDS)

    def _say(self, what: str, value: str) -> None:
        with suppress(StoreError):  # no host is left to read it
            if not self._lost:
                self.store.put(self.key(f"{what}/{self.store.index}"), value)

    def _hear(self, what: str) -> dict[int, str]:
        with suppress(StoreError):
            if not self._lost:
                return self.store.by_host(self.key(what))
        return {}


def poll(look: Callable[[], T | None], stop: float) -> T | None:
    """The first value that `look` returns; None if there is none until `stop`, a time of time.monotonic."""
    while (value := look()) is None and time.monotonic() < stop:
        time.sleep(POLL_SECONDS / 5)
    return value


def _out_of_reach(error: Exception) -> Failure:
    reason = str(error).split("\n", 1)[0].split(" [type.")[0]
    return Failure(0, f"the coordination service on its machine does not answer ({reason}).")
