"""Who is there, who has failed and who has left: what the hosts of a run tell each other about one call of the trainer.

Keys in a Store and rules about them; no thread, no exit, no jax arrays. The Watchdog acts on it."""

import json
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from pipeline.shards.errors import HostError
from trainer.cluster.pulse import LOOKS, Signs
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

    timeout_seconds: from a host's death to the end of the others; it is missed after half of it and one look."""

    def __init__(self, store: Store, timeout_seconds: float) -> None:
        self.store, self.timeout_seconds = store, timeout_seconds
        self.silence_seconds = timeout_seconds / 2
        self._call = self._number()
        self.look_seconds = self.silence_seconds / LOOKS
        self._signs = Signs(store, self.silence_seconds)
        self._silent: set[int] = set()
        self._lost: Failure | None = None

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
        if self._lost:
            return self._lost
        try:
            found = self.store.get(FAILURE)
        except StoreError as error:
            return _out_of_reach(error)
        return None if found is None else Failure(*json.loads(found))

    def reach(self) -> Failure | None:
        """What has failed if the store gives no answer for `silence_seconds`. Nobody asks it again then."""
        try:
            self.store.reach(self.silence_seconds)
        except StoreError as error:
            self._lost = _out_of_reach(error)
        return self._lost

    def report(self, text: str, host: int | None = None, preempted: bool = False, interrupted: bool = False) -> Failure:
        """Says that this host (or that one) has failed or is to end. The first failure, which may be another."""
        if self._lost:
            return self._lost
        own = Failure(self.store.index if host is None else host, text, preempted, interrupted)
        try:
            return Failure(*json.loads(self.store.put_first(FAILURE, json.dumps(own))))
        except StoreError as error:
            return _out_of_reach(error)

    def look(self) -> None:
        """Looks for hosts that have given no sign of life since long, and reports one. Every host does, as any may be
        the one that died; the first report counts."""
        if self._lost:
            return
        try:
            self._silent = self._signs.silent() - self._hear("left").keys()
        except StoreError:
            return  # `failure` says so
        if self._silent:
            self.report(
                f"it gave no sign of life for {self.silence_seconds:g} s (half of host_timeout_seconds). Its process "
                "or machine died: look at its log. The same command goes on from the newest checkpoint.",
                min(self._silent),
            )

    def left(self, how: str) -> None:
        """This host's call has ended: "done", "raised" or "killed"."""
        self._say("left", how)

    def ended_together(self) -> bool:
        """Whether every host left this call with an exception of its own, so that the run may make another call.

        Waits until all have left, at most the time-out; host 0 finds out, and tells the others."""
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
        """That of host 0, or the one that its death gives."""
        verdict = self._hear("end").get(0)
        if verdict is None:
            self.look()
        return "apart" if verdict is None and 0 in self._silent else verdict

    def depart(self) -> None:
        """The last word of a process that ends alone. Host 0 waits for those of the others."""
        self._say("gone", "gone")
        if self.store.index == 0 and not self._lost:
            hosts = set(range(self.store.count)) - self._silent
            poll(lambda: hosts <= self._hear("gone").keys() or None, time.monotonic() + GONE_SECONDS)

    def _say(self, what: str, value: str) -> None:
        if self._lost:
            return
        try:
            self.store.put(self.key(f"{what}/{self.store.index}"), value)
        except StoreError:
            return  # there is nobody left to tell

    def _hear(self, what: str) -> dict[int, str]:
        if self._lost:
            return {}
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
    reason = str(error).split("\n", 1)[0].split(" [type.")[0]
    return Failure(0, f"the coordination service on its machine does not answer ({reason}).")
