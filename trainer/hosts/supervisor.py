"""The supervision of a call: it hears when this process is asked to end, when another host has
failed, and when this one is stuck, and ends the process if its main thread cannot.

JAX sees the death of a process, and aborts the others. What it does not see is an exception: the
other hosts would wait in a collective for the host that raised it, and that one for them. So a host
publishes its failure under one key, which the thread of supervision of every other host reads twice
a second. A host reports only itself."""

import atexit
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

from pipeline.background import log_stacks
from pipeline.console.interrupts import Exit
from pipeline.errors import HostError, InfeedError
from pipeline.logs import logger
from trainer.config import TrainerConfig
from trainer.hosts import exits
from trainer.hosts.activity import Activity, Doing
from trainer.hosts.exchange import Decision, Exchange, Store, StoreError, open_store
from trainer.hosts.exits import (
    TICK_SECONDS,
    WATCHER,
    Ending,
    Interrupted,
    ending,
    leave,
    print_last,
)
from trainer.hosts.failures import (
    GONE_SECONDS,
    POLL_SECONDS,
    SETTLED,
    Failure,
    depart,
    echoes,
    failure_of,
    in_peace,
    poll,
    report,
    report_error,
)

SETTLE_SECONDS = 4.0  # for the other hosts to raise an error, too
LEAVE_SECONDS = 5.0  # for the main thread to leave after another host's failure
TWICE_SECONDS = 1.0  # a launcher may pass on a SIGTERM that the process has received itself
RESUMES = "the same command resumes from the newest checkpoint"
AGAIN = "run the same command again: a run resumes from its newest checkpoint"
T = TypeVar("T")
log = logger("trainer")
_calls = itertools.count()  # all hosts make the same calls, so they count the same


class Supervisor:
    """Supervises one call of the trainer.

    limits: how long it may take for what; None: as long as it takes.
    activity: what the call does.
    exchange: how its hosts talk to each other.
    alone: whether this is the run's only process.
    leavable: whether the main thread may be interrupted anywhere.

    SIGTERM is for the process: after it, every later call ends immediately. SIGINT is for the call
    that receives it, which raises KeyboardInterrupt; a program that catches that may make another
    call."""

    def __init__(self, limits: TrainerConfig | None = None, store: Store | None = None) -> None:
        self._store = store or open_store()
        self._call = next(_calls)
        self.alone = self._store.count == 1
        self.activity = Activity(limits)
        self.exchange = Exchange(self._store, self._call, self.wait)
        self.host_seconds = limits.host_timeout_seconds if limits else 90.0
        self.leavable = False
        self.failed = None
        self._asked = "SIGTERM" * WATCHER.terminated  # in an earlier call
        self._asked_at = 0.0
        self._others = dict[int, str]()
        self._warned = None
        self._looked = time.monotonic()
        self._clock = 0.0
        self._place = None
        self._since = 0.0
        self._failed_at = 0.0
        self._raising = False
        atexit.unregister(_at_exit)
        atexit.register(_at_exit)

    def asked(self, name: str) -> None:
        """Notes that this process was asked to end, by a signal of this name. In any thread."""
        now = time.monotonic()
        if not self._asked:
            self._asked = name
            self._asked_at = now
            if name == "SIGINT":
                print_last("interrupted: ending; a second Ctrl-C ends the process without saving")
        elif name == "SIGINT" or now - self._asked_at > TWICE_SECONDS:
            self._leave_unsaved("a second time")

    def check_asked(self) -> None:
        """Raises an Ending if this process was asked to end. For code that has nothing to save."""
        if self._asked:
            raise ending(f"{self._asked}; {AGAIN}", self._asked == "SIGINT")

    def leave(self) -> NoReturn:
        """Raises for SIGINT."""
        self.leavable = False
        raise Interrupted(f"SIGINT; {AGAIN}")

    def check_failed(self) -> None:
        """Raises the error of another host, if one has failed."""
        if self.failed:
            raise self.failed.error(self._store.count)

    def check(self) -> None:
        """Raises what check_asked and check_failed raise. For code that waits, not for loops."""
        self.check_asked()
        self.check_failed()

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Makes SIGINT an exception in the block, which may be left anywhere without losing
        anything."""
        self.leavable = True
        try:
            yield
        except Exception:
            self.check_asked()  # a library that was interrupted may have raised an error of its own
            raise
        finally:
            self.leavable = False
        self.check_asked()

    def asked_anywhere(self) -> Decision | None:
        """The decision of host 0 to end, because any process of the run was asked to; None if none
        was."""
        for host, name in sorted(({0: self._asked} | self._others).items()):
            if name:
                where = "" if self.alone else f" on host {host} of {self.exchange.count}"
                return Decision(True, f"{name}{where}", True, name == "SIGINT")
        return None

    def wait(self, look: Callable[[], T | None], seconds: float) -> T | None:
        """The first value that `look` returns; None if there is none in this time. Raises what
        `check` raises."""
        stop = time.monotonic() + seconds
        limit = None if seconds == math.inf else math.inf
        with self.activity.doing("waiting for the other hosts", limit, waits=True):
            while (value := look()) is None and time.monotonic() < stop:
                self.check()
                time.sleep(POLL_SECONDS)
            return value

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Reports an exception to the other hosts immediately. HostError in its place if it only
        echoes a failure."""
        try:
            self._hear()
            # of the previous call, which this host may have left without noticing
            self.check_failed()
            yield
        except BaseException as error:
            if self.alone or in_peace(error):
                raise
            self._raising = True
            is_echo = echoes(error)
            if is_echo:  # the peer's own report comes, or JAX notices that it is dead
                poll(lambda: self.failed, self.host_seconds + GONE_SECONDS)
            self.failed = failure = self.failed or report_error(self._store, self._call, error)
            self._settle()
            own = isinstance(error, InfeedError | Ending) and not is_echo
            if own or failure.host == self._store.index:
                raise
            raise failure.error(self._store.count) from error

    def _settle(self) -> None:
        """Forgets the failure if every host has raised an error in this call, so that they may make
        another one."""
        self.exchange.post(f"raised/{self.exchange.index}", True)
        raised = poll(
            lambda: len(self.exchange.posted_by_host("raised")) == self.exchange.count,
            SETTLE_SECONDS,
        )
        if self._store.put_first(f"settled/{self._call}", raised):  # the same on all hosts
            self.failed = None
            SETTLED.add(self._call)

    def slowest(self, share: float) -> dict[str, Any]:
        """The fields of Speed about the host with the largest share of its time spent on waiting
        for its input and on work of its own, at the last line of the log; {} with one process.
        share: this host's."""
        self.exchange.post(f"share/{self.exchange.index}", share)
        if self.alone or self.exchange.index:
            return {}
        shares = self.exchange.posted_by_host("share")
        host = max(shares, key=lambda host: shares[host])
        return {"slowest_host": host, "slowest_share": shares[host]}

    def tick(self) -> None:
        """Twice a second, in the thread of supervision."""
        place, doing = self.activity.now()
        still = self._standing_still(place)
        with suppress(StoreError):  # the service is gone, so JAX ends the process
            self._hear()
            long = still >= self.host_seconds / 4
            # It keeps the others waiting, and may: they have less patience with their devices.
            self.exchange.post(
                f"busy/{self.exchange.index}", doing.what if long and not doing.waits else ""
            )
            if long and doing.waits and self._others_are_busy(place, doing):
                still = 0.0
                self._since = self._clock
        # Ctrl-C in a notebook does not ask the process to end.
        ends_soon = self._asked == "SIGTERM" or (
            self._asked == "SIGINT" and "ipykernel" not in sys.modules
        )
        if self.failed:
            self._see_off(self.failed, doing)
        elif ends_soon and min(still, time.monotonic() - self._asked_at) >= doing.grace:
            self._leave_unsaved(f"no progress for {still:.0f} s; it is {doing.what}")
        elif still >= doing.limit and not self._raising:
            self._stuck(doing, still)

    def _standing_still(self, place: object) -> float:
        """Seconds since a look first saw it at this place, by a clock that stops while the process
        is suspended."""
        now = time.monotonic()
        self._clock += min(now - self._looked, 2 * TICK_SECONDS)
        self._looked = now
        if place != self._place:
            self._place = place
            self._since = self._clock
        return self._clock - self._since

    def _hear(self) -> None:
        if self._asked:
            self.exchange.post(f"asked/{self.exchange.index}", self._asked)
        self.failed = self.failed or failure_of(self._store)
        if self.exchange.index == 0:
            self._others = self.exchange.posted_by_host("asked")

    def _others_are_busy(self, place: object, doing: Doing) -> bool:
        """Whether another host may still keep this one waiting."""
        for host, what in self.exchange.posted_by_host("busy").items():
            if what:
                if self._warned != place:
                    self._warned = place
                    count = self.exchange.count
                    log.warning("%s; host %d of %d is %s", doing.what, host, count, what)
                return True
        return False

    def _stuck(self, doing: Doing, still: float) -> None:
        text = (
            f"no progress for {still:.0f} s: it is {doing.what} (limit {doing.limit:g} s). The log "
            f"has the stacks of all threads; {RESUMES}."
        )
        self.failed = report(self._store, self._call, text, stuck=True)
        self._see_off(self.failed, doing)

    def _see_off(self, failure: Failure, doing: Doing) -> None:
        """Ends the process, once its main thread has had the time to do so."""
        is_own = failure.host == self.exchange.index
        if not self._failed_at:
            self._failed_at = time.monotonic()
            if failure.stuck:
                log.error(
                    "host %d of %d is %s", self.exchange.index, self.exchange.count, doing.what
                )
                log_stacks()
        seconds = self.host_seconds / 2
        if not self._raising:
            seconds = min(LEAVE_SECONDS, seconds)
        if (failure.stuck and is_own) or time.monotonic() - self._failed_at > seconds:
            error = failure.error(self.exchange.count)
            self._end(error, "" if is_own else f" (host {self.exchange.index} was {doing.what})")

    def _leave_unsaved(self, why: str) -> NoReturn:
        saved = self.activity.saved
        safe = "nothing is saved" if saved is None else f"step {saved} is the last that is saved"
        text = (
            f"{self._asked}; {why}, so it ends without saving: {safe}, and the same command "
            "resumes from there"
        )
        report(self._store, self._call, text)
        self._end(ending(text, self._asked == "SIGINT"), ".")

    def _end(self, error: HostError | Ending, more: str) -> NoReturn:
        kind = type(error).__name__.lower() if isinstance(error, Ending) else "error"
        print_last(f"{kind}: {error}{more}")
        depart(self._store)
        leave(getattr(error, "exit_code", Exit.HOST_FAILED))


def _at_exit() -> None:
    """Ends the process if its run has failed, before JAX's own handler, which waits for all
    hosts."""
    error = getattr(sys, "last_value", None)
    store = open_store()
    with suppress(StoreError):
        if error is not None and not in_peace(error):
            report_error(store, next(_calls), error)
        if failure_of(store):
            depart(store)
            leave(
                Exit.HOST_FAILED
                if isinstance(error, HostError)
                else getattr(error, "exit_code", exits.exit_code)
            )
    if isinstance(error, Interrupted):  # Python would end with 1, as it does for other exceptions
        atexit.unregister(_at_exit)
        exits.end(error.exit_code)
