"""The host watchdog: when one host fails or is stuck, all end. The others wait in a collective that they cannot leave.

Every call of the trainer runs under a HostWatchdog. The failing host reports why; the others raise that error or, if
they cannot, print it and exit. Which host is stuck, each finds from what all of them tell with their heartbeats."""

import itertools
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from pipeline.background import log_stacks
from pipeline.errors import HostError, InfeedError, OptionError
from pipeline.logs import logger
from trainer.activity import CONSUMER, Activity, Row, StandingStill, find_stuck, slowest_host
from trainer.cluster.exchange import Asked, Exchange, Preemption
from trainer.cluster.guard import GUARD, RESTS
from trainer.cluster.host_registry import POLL_SECONDS, Failure, HostRegistry, count_calls, poll
from trainer.cluster.service import HEARTBEAT_SECONDS
from trainer.cluster.store import Store, open_store
from trainer.exits import EXIT_HOST_FAILED, Ending, Interrupted, break_apart, is_apart, leave

LEAVE_SECONDS = 5.0  # for the main thread to leave after another host's failure
# Without progress, or usual dispatches: then a process that was asked to end ends.
ASKED_SECONDS, ASKED_TIMES_USUAL = 10.0, 4
TOLD = "told_to_the_other_hosts"  # an attribute of an exception
TELL_SECONDS = 30.0  # until all hosts have ended after a failure between the trainer's calls
# How errors of collectives start when a peer is gone. No peer causes any other error.
ECHO = re.compile(r"(UNKNOWN|INTERNAL|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION): ")

T = TypeVar("T")
log = logger("trainer")


class HostWatchdog:
    """Watches over one call of the trainer, as a context manager.

    timeout_seconds: from a host's death to the end of the others; a host may be silent for half of it. preemption: how
    this process was asked to end, if it was; waits end by it. activity: what the call does; without it, nobody is
    stuck. busy: whether a checkpoint is being written, which may still be finished in that time. store: of the run.
    alone: whether this is the run's only process. exchange: how its hosts talk to each other."""

    def __init__(
        self,
        timeout_seconds: float,
        preemption: Preemption | None = None,
        activity: Activity | None = None,
        busy: Callable[[], bool] = lambda: False,
        store: Store | None = None,
    ) -> None:
        store = store or open_store()
        if store.count > 1 and timeout_seconds >= HEARTBEAT_SECONDS:
            raise OptionError(
                f"host_timeout_seconds={timeout_seconds} must be below {HEARTBEAT_SECONDS} on several hosts, "
                "because JAX aborts them after that time."
            )
        self.registry, self._busy, self._preemption = HostRegistry(store, timeout_seconds), busy, preemption
        self.exchange, self.alone = Exchange(self.registry, self.wait), store.count == 1
        self.silence_seconds = self.registry.silence_seconds
        self.activity = activity or Activity()
        self._hosts = StandingStill(max(self.registry.look_seconds, POLL_SECONDS))
        self._own, self._asked_at = StandingStill(POLL_SECONDS), 0.0
        self._warned: object = None
        self._told: dict[int, Row] = {}
        self._raising, self._left, self._shown = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="trainer-watchdog", daemon=True)

    def __enter__(self) -> "HostWatchdog":
        if not self.alone:
            count_calls(1, lambda: (self.registry.call, self.activity.row()))
        GUARD.start()
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        raised = not _in_peace(error)
        self.registry.left("raised" if raised else "done")
        self._left.set()
        self._thread.join()
        GUARD.tell(RESTS)
        if self.alone:
            return
        count_calls(-1)
        if isinstance(error, Ending) and raised:  # it left a compilation, whose thread still runs
            break_apart(self.registry.depart, error.exit_code)
        elif raised and not self.registry.ended_together():
            break_apart(self.registry.depart, EXIT_HOST_FAILED if isinstance(error, HostError) else 1)

    def check(self) -> None:
        """Raises HostError if another host has failed or is stuck, an Ending if it was asked to end."""
        if failure := self.registry.failure():
            if failure.stuck:
                self._show_stacks()
            raise failure.error(self.registry.store.count)

    def wait(self, look: Callable[[], T | None], seconds: float) -> T | None:
        """The first value that `look` returns; None if there is none in this time. HostError if a host fails."""

        def look_around() -> T | None:
            if (value := look()) is not None:
                return value
            if self._preemption:
                self._preemption.check()
            if self.registry.failure() and (value := look()) is None:  # its value may be the reason for the failure
                self.check()
            return value

        with self.activity.doing("waiting for the other hosts", waits=True):
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
            if failure.stuck:
                self._show_stacks()
            own = failure.host == self.registry.store.index or isinstance(error, (InfeedError, Ending))
            own = own and not failure.stuck and not _echoes(error)
            told = error if own else failure.error(self.registry.store.count)
            setattr(told, TOLD, True)
            if own:
                raise
            raise told from error

    def _reported(self, error: BaseException) -> Failure:
        if _echoes(error):  # the peer's own report comes, or its silence is noticed
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
            row = self.activity.row()
            GUARD.tell(RESTS if row.setting == CONSUMER else f"{self.registry.timeout_seconds:g} {row.what}")
            self._end_if_asked(row)
            if number % every == 0:
                self.registry.look()
                self._look_for_stuck({0: row} if self.alone else self.registry.told())
            if failure := lost or self.registry.failure():
                self._see_off(failure)
                break
            if self._left.wait(POLL_SECONDS):
                break

    def slowest_host(self) -> dict[str, Any]:
        """The fields of Speed about the slowest host since the previous call; {} with one process, or if unknown."""
        if self.alone:
            return {}
        before, self._told = self._told, {host: Row(*row) for host, row in self.registry.told().items()}
        return slowest_host(before, self._told)

    def _look_for_stuck(self, told: dict[int, Any]) -> None:
        """Reports who keeps the run from going on, once that has lasted too long; says so at a quarter of that."""
        count = self.registry.store.count
        if not told or len(told) + len(self.registry.gone()) < count:
            return  # one has not begun this call: exchanges have limits of their own
        rows = {host: Row(*row) for host, row in told.items()}
        places = {host: row[:4] for host, row in rows.items()}
        stuck = find_stuck(rows, self._hosts.look(places))
        if stuck.seconds >= stuck.limit:
            host = 0 if count == 1 else -1 if stuck.host is None else stuck.host
            advice = "The logs have the stacks of all threads; the same command resumes from the newest checkpoint."
            self.registry.report(f"{stuck.text}. {advice}", host, stuck=True)
        elif stuck.seconds >= stuck.limit / 4 and self._warned != places:
            self._warned = places
            who = "" if count == 1 or stuck.host is None else f"host {stuck.host} of {count}: "
            log.warning("%s%s; then the run ends", who, stuck.text)

    def _end_if_asked(self, row: Row) -> None:
        """Ends the process if it was asked to end and makes no progress, or if it was asked twice."""
        still = self._own.look({0: row[:4]})[0]
        asked = self._preemption.asked() if self._preemption else Asked()
        if not asked.name:
            self._asked_at = self._own.clock
            return
        seconds = min(still, self._own.clock - self._asked_at)
        limit = row.limit if row.setting == "save_seconds" else max(ASKED_SECONDS, ASKED_TIMES_USUAL * row.usual)
        interrupts_consumer = asked.name == "SIGINT" and row.setting == CONSUMER  # it is told with the next result
        if interrupts_consumer or (not asked.again and seconds < limit):
            return
        why = "a second time" if asked.again else f"no progress for {seconds:.0f} s; it is {row.what}"
        saved = self.activity.saved
        safe = "nothing is saved" if saved is None else f"step {saved} is the last that is saved"
        text = f"{asked.name}; {why}, so it ends without saving: {safe}, and the same command resumes from there"
        failure = self.registry.report(text, preempted=True, interrupted=asked.name == "SIGINT")
        self._kill(failure, in_a_hurry=True)

    def _show_stacks(self) -> None:
        if not self._shown.is_set():
            self._shown.set()
            log_stacks()

    def _see_off(self, failure: Failure) -> None:
        """Gives the main thread time to leave, and ends the process if it does not."""
        if failure.stuck:
            self._show_stacks()
        heard, registry = time.monotonic(), self.registry
        bound = registry.timeout_seconds - registry.silence_seconds - registry.look_seconds - 2 * POLL_SECONDS
        while not self._left.wait(POLL_SECONDS / 5):
            GUARD.tell(f"{registry.timeout_seconds:g} ending")
            patient = self._raising.is_set() or self._busy()
            if time.monotonic() - heard > (bound if patient else min(bound, LEAVE_SECONDS)):
                self._kill(failure)

    def _kill(self, failure: Failure, in_a_hurry: bool = False) -> NoReturn:
        """Ends the process. in_a_hurry: without waiting for other hosts."""
        GUARD.tell(RESTS)
        store, error = self.registry.store, failure.error(self.registry.store.count)
        kind, stop, code = "error", "", EXIT_HOST_FAILED
        if isinstance(error, Ending):
            kind, stop, code = type(error).__name__.lower(), ".", error.exit_code
        waited = f" Host {store.index} was waiting for {'it' if failure.host >= 0 else 'them'} and ends."
        waited = waited if failure.host != store.index and store.count > 1 else ""
        print(f"{kind}: {error}{stop}{waited}", file=sys.stderr)
        self.registry.left("killed")
        if not in_a_hurry:
            if store.index == 0:
                self.registry.ended_together()
            self.registry.depart()
        leave(code)


def _echoes(error: BaseException) -> bool:
    """Whether a collective failed, such as one of Orbax, whose error we explain."""
    return bool(ECHO.match(str(error)) or ECHO.match(str(error.__cause__)))


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
