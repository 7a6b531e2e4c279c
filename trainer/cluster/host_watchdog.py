"""The host watchdog: when one host fails, all end. Others wait in a collective that cannot finish or be left.

Every call of the trainer runs under a HostWatchdog. The failing host reports why; the others raise that error or, if
they cannot, print it and exit. A single process starts no watchdog thread."""

import itertools
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

from pipeline.errors import HostError, InfeedError, OptionError
from trainer.cluster.exchange import Exchange
from trainer.cluster.host_registry import POLL_SECONDS, Failure, HostRegistry, count_calls, poll
from trainer.cluster.service import HEARTBEAT_SECONDS
from trainer.cluster.store import Store, open_store
from trainer.exits import EXIT_HOST_FAILED, Ending, Interrupted, break_apart, is_apart, leave

LEAVE_SECONDS = 5.0  # for the main thread to leave after another host's failure
TOLD = "told_to_the_other_hosts"  # an attribute of an exception
TELL_SECONDS = 30.0  # until all hosts have ended after a failure between the trainer's calls
# How errors of collectives start when a peer is gone. No peer causes any other error.
ECHO = re.compile(r"(UNKNOWN|INTERNAL|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION): ")

T = TypeVar("T")


class HostWatchdog:
    """Watches over one call of the trainer, as a context manager.

    timeout_seconds: from a host's death to the end of the others; a host may be silent for half of it. busy: whether a
    checkpoint is being written, which may still be finished in that time. heed: called in every wait, and may raise.
    alone: whether this is the run's only process. exchange: how its hosts talk to each other. store: of the run."""

    def __init__(
        self,
        timeout_seconds: float,
        busy: Callable[[], bool] = lambda: False,
        heed: Callable[[], None] = lambda: None,
        *,
        store: Store | None = None,
    ) -> None:
        store = store or open_store()
        if store.count > 1 and timeout_seconds >= HEARTBEAT_SECONDS:
            raise OptionError(
                f"host_timeout_seconds={timeout_seconds} must be below {HEARTBEAT_SECONDS} on several hosts, "
                "because JAX aborts them after that time."
            )
        self.registry, self._busy, self._heed = HostRegistry(store, timeout_seconds), busy, heed
        self.exchange, self.alone = Exchange(self.registry, self.wait), store.count == 1
        self.silence_seconds = self.registry.silence_seconds
        self._raising, self._left = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="trainer-watchdog", daemon=True)

    def __enter__(self) -> "HostWatchdog":
        if not self.alone:
            count_calls(1)
            self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.alone:
            return
        raised = not _in_peace(error)
        self.registry.left("raised" if raised else "done")
        self._left.set()
        self._thread.join()
        count_calls(-1)
        if isinstance(error, Ending) and raised:  # it left a compilation, whose thread still runs
            break_apart(self.registry.depart, error.exit_code)
        elif raised and not self.registry.ended_together():
            break_apart(self.registry.depart, EXIT_HOST_FAILED if isinstance(error, HostError) else 1)

    def check(self) -> None:
        """Raises HostError if another host has failed, an Ending if it was asked to end."""
        if failure := self.registry.failure():
            raise failure.error(self.registry.store.count)

    def wait(self, look: Callable[[], T | None], seconds: float) -> T | None:
        """The first value that `look` returns; None if there is none in this time. HostError if a host fails."""

        def look_around() -> T | None:
            if (value := look()) is not None:
                return value
            self._heed()
            if self.registry.failure() and (value := look()) is None:  # its value may be the reason for the failure
                self.check()
            return value

        return poll(look_around, time.monotonic() + seconds)

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Reports an exception to the other hosts immediately. HostError in its place if it only echoes a failure."""
        try:
            self.check()  # of the previous call, which this host may have left without noticing
            yield
        except BaseException as error:
            if self.alone or _in_peace(error):
                raise
            self._raising.set()
            failure = self._reported(error)
            own = failure.host == self.registry.store.index or isinstance(error, (InfeedError, Ending))
            told = error if own else failure.error(self.registry.store.count)
            setattr(told, TOLD, True)
            if own:
                raise
            raise told from error

    def _reported(self, error: BaseException) -> Failure:
        if ECHO.match(str(error)):  # the peer's own report comes, or its silence is noticed
            stop = time.monotonic() + self.registry.silence_seconds + self.registry.look_seconds + 4 * POLL_SECONDS
            if failure := poll(self.registry.failure, stop):
                return failure
        text = str(error) if isinstance(error, (InfeedError, Ending)) else f"{type(error).__name__}: {error}"
        asked = {"preempted": isinstance(error, Ending), "interrupted": isinstance(error, Interrupted)}
        return self.registry.report(text.split("\n", 1)[0], **asked)

    def _watch(self) -> None:
        every = max(1, round(self.registry.look_seconds / POLL_SECONDS))
        for number in itertools.count():
            lost = self.registry.reach()
            if number % every == 0:
                self.registry.look()
            if failure := lost or self.registry.failure():
                self._see_off(failure)
                break
            if self._left.wait(POLL_SECONDS):
                break

    def _see_off(self, failure: Failure) -> None:
        """Gives the main thread time to leave, and ends the process if it does not."""
        heard = time.monotonic()
        while not self._left.wait(POLL_SECONDS / 5):
            bound = (
                self.registry.timeout_seconds
                - self.registry.silence_seconds
                - self.registry.look_seconds
                - 2 * POLL_SECONDS
            )
            patient = self._raising.is_set() or self._busy()
            if time.monotonic() - heard > (bound if patient else min(bound, LEAVE_SECONDS)):
                self._kill(failure)

    def _kill(self, failure: Failure) -> NoReturn:
        store, error = self.registry.store, failure.error(self.registry.store.count)
        kind, stop, code = "error", "", EXIT_HOST_FAILED
        if isinstance(error, Ending):
            kind, stop, code = type(error).__name__.lower(), ".", error.exit_code
        print(f"{kind}: {error}{stop} Host {store.index} was waiting for it and ends.", file=sys.stderr)
        self.registry.left("killed")
        if store.index == 0:
            self.registry.ended_together()
        self.registry.depart()
        leave(code)


def _in_peace(error: BaseException | None) -> bool:
    """Whether no host has to be told: all hosts end here, or an iterator was dropped."""
    return error is None or isinstance(error, GeneratorExit) or (isinstance(error, Ending) and error.together)


@contextmanager
def telling_others() -> Iterator[None]:
    """For a complete program: reports an exception between the trainer's calls to the other hosts, as one in a call."""
    try:
        yield
    except BaseException as error:
        store = open_store()
        if store.count == 1 or is_apart() or hasattr(error, TOLD):
            raise
        with HostWatchdog(TELL_SECONDS, store=store) as watchdog, watchdog.reporting():
            raise
