"""Who is there, who has failed and who has left: what the hosts of a run tell each other about one call of the trainer.

Keys in a Store and rules about them; no thread, no exit, no jax arrays. The Watchdog acts on it."""

import json
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from pipeline.shards.errors import HostError
from trainer.cluster.store import Store, StoreError
from trainer.exits import Ending, ending

__all__ = ["POLL_SECONDS", "Failure", "Roll", "poll"]

POLL_SECONDS = 0.5
GONE_SECONDS = 10.0  # what host 0, whose end JAX does not survive elsewhere, waits for the others at its own
FAILURE = "failure"  # of the run, not of one call: a host may hear of it in the next

T = TypeVar("T")


class Failure(NamedTuple):
    """The first failure of a run: on which host, and its message; or that it was asked to end (interrupted: SIGINT)."""

    host: int
    text: str
    preempted: bool = False
    interrupted: bool = False

    def error(self, count: int) -> HostError | Ending:
        """What the other hosts raise."""
        if self.preempted:
            return ending(f"host {self.host} of {count}: {self.text}", self.interrupted)
        return HostError(f"host {self.host} of {count} failed: {self.text}")


class Roll:
    """One host's view of one call. Nothing here raises when the store is gone: `failure` says so.

    timeout_seconds: the time from a host's death to the end of the others; it is missed after half of it."""

    def __init__(self, store: Store, timeout_seconds: float) -> None:
        self.store, self.timeout_seconds = store, timeout_seconds
        self.silence_seconds = timeout_seconds / 2
        self._call = self._number()
        self._beats: dict[int, tuple[str, float]] = {}
        self._silent: set[int] = set()

    def key(self, name: str) -> str:
        """`name` as a key of this call."""
        return f"{self._call}/{name}"

    def _number(self) -> int:
        """Every host makes the same calls, so they number them alike."""
        mine = f"calls/{self.store.index}"
        try:
            number = int(self.store.get(mine) or 0)
            self.store.put(mine, str(number + 1))
        except StoreError as error:
            raise _out_of_reach(error).error(self.store.count) from error
        return number

    def failure(self) -> Failure | None:
        """The first failure that was reported; None as long as all is well."""
        try:
            found = self.store.get(FAILURE)
        except StoreError as error:
            return _out_of_reach(error)
        return None if found is None else Failure(*json.loads(found))

    def report(self, text: str, host: int | None = None, preempted: bool = False, interrupted: bool = False) -> Failure:
        """Says that this host (or that one) has failed or is to end. The first failure, which may be another."""
        own = Failure(self.store.index if host is None else host, text, preempted, interrupted)
        try:
            return Failure(*json.loads(self.store.put_first(FAILURE, json.dumps(own))))
        except StoreError as error:
            return _out_of_reach(error)

    def beat(self, number: int) -> None:
        """A sign of life. Host 0 looks for hosts that have given none, and reports them."""
        self._say("beat", str(number))
        if self.store.index == 0:
            self._miss(time.monotonic())

    def _miss(self, now: float) -> None:
        beats, left = self._hear("beat"), self._hear("left")
        for host in beats.keys() - left.keys():
            last, since = self._beats.get(host, ("", now))
            self._beats[host] = (beats[host], now if beats[host] != last else since)
            if now - self._beats[host][1] > self.silence_seconds:
                self._silent.add(host)
                self.report(
                    f"it gave no sign of life for {self.silence_seconds:g} s (half of host_timeout_seconds). Its "
                    "process or machine died: look at its log. The same command goes on from the newest checkpoint.",
                    host,
                )

    def left(self, how: str) -> None:
        """This host's call has ended: "done", "raised" or "killed"."""
        self._say("left", how)

    def ended_together(self) -> bool:
        """Whether every host left this call with an exception of its own, so that the run may make another call.

        Waits until all have left, at most the time-out; host 0 finds out, and tells the others."""
        stop = time.monotonic() + self.timeout_seconds
        if self.store.index:
            return poll(lambda: self._hear("end").get(0), stop + 2 * POLL_SECONDS) == "together"
        hosts = set(range(self.store.count)) - self._silent
        left = poll(lambda: found if hosts <= (found := self._hear("left")).keys() else None, stop)
        together = left is not None and not self._silent and set(left.values()) == {"raised"}
        if together:
            self.store.delete(FAILURE)
        self._say("end", "together" if together else "apart")
        return together

    def depart(self) -> None:
        """The last word of a process that ends alone. Host 0 waits for those of the others."""
        self._say("gone", "gone")
        if self.store.index == 0:
            hosts = set(range(self.store.count)) - self._silent
            poll(lambda: hosts <= self._hear("gone").keys() or None, time.monotonic() + GONE_SECONDS)

    def _say(self, what: str, value: str) -> None:
        try:
            self.store.put(self.key(f"{what}/{self.store.index}"), value)
        except StoreError:
            return  # there is nobody left to tell

    def _hear(self, what: str) -> dict[int, str]:
        try:
            return self.store.by_host(self.key(what))
        except StoreError:
            return {}


def poll(look: Callable[[], T | None], stop: float) -> T | None:
    """The first value that `look` gives; None if it gives none until the clock (time.monotonic) says `stop`."""
    while (value := look()) is None and time.monotonic() < stop:
        time.sleep(POLL_SECONDS / 5)
    return value


def _out_of_reach(error: Exception) -> Failure:
    reason = str(error).split("\n", 1)[0]
    return Failure(0, f"the coordination service, which runs in its process, does not answer ({reason}).")
