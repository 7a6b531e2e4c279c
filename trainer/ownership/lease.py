"""What an owner holds: a record that a thread renews, and the proof, before each publication, that it still counts.

An owner rewrites its record and then looks for a higher one; who takes over creates the higher one and then looks
whether the record was rewritten. So one of the two sees the other, whatever their clocks say."""

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeline.logs import logger
from pipeline.shards.errors import OwnerError, StorageError
from trainer.ownership.record import Found, OwnerFiles, Record

__all__ = ["HELD", "TIMES", "Lease", "Times", "elapsed"]

log = logger("trainer")

LEAVE_SECONDS = 1.0  # for the thread, which may be stuck in a write
HELD: set[str] = set()  # the tokens of this process: of an earlier call none is left


@dataclass(frozen=True)
class Times:
    """renew: seconds between two beats. proof: for how long an owner need not ask again. silence: after which one on
    another machine counts as lost, by the clock of who waits. poll: between two looks of who waits."""

    renew: float = 2.0
    proof: float = 2.0
    silence: float = 30.0
    poll: float = 0.25


TIMES = Times()


def elapsed() -> float:
    """Seconds by a clock that nobody sets, and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Lease:
    """The record `number` of the work directory, which is this process's own, until `release`."""

    def __init__(
        self,
        workdir: str,
        files: OwnerFiles,
        number: int,
        record: Record,
        times: Times = TIMES,
        clock: Callable[[], float] = elapsed,
    ) -> None:
        self._workdir, self._files, self._number, self._times, self._clock = workdir, files, number, times, clock
        self._record, self._proven_at, self._ended = record, -math.inf, ""
        self._lock, self._stop = threading.RLock(), threading.Event()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._renew_until_stopped, name="trainer-owner", daemon=True)

    def start(self) -> None:
        """Renews from now on."""
        HELD.add(self._record.token)
        self._files.hold(self._number)
        self._thread.start()

    def fence(self) -> None:
        """To be called before anything is published; asks the storage, at most every `proof` seconds. Any thread may.

        OwnerError if another run has taken over, or if that cannot be found out."""
        with self._lock:
            if self._ended:
                raise OwnerError(self._ended)
            if self._clock() - self._proven_at < self._times.proof:
                return
            asked_at = self._clock()
            if newest := self._newer():
                self._ended = self._lost_to(newest)
                raise OwnerError(self._ended)
            self._proven_at = asked_at

    def _newer(self) -> Found | None:
        """What counts in place of this record, once that was rewritten."""
        failed = None
        try:
            self._beat()
        except StorageError as error:  # also where the file is gone, as it is long after a takeover
            failed = error
        try:
            newest = self._files.newest()
        except StorageError as error:
            newest, failed = None, error
        if newest and newest.number != self._number:
            return newest
        if failed:
            raise OwnerError(
                f"cannot find out whether workdir={self._workdir} still belongs to this run: {failed} Nothing more is "
                "written; the same command goes on from the newest checkpoint."
            ) from failed
        return None

    def _lost_to(self, newest: Found) -> str:
        if newest.number < self._number:
            return (
                f"workdir={self._workdir}: its _owner directory was removed, so another run may own it. This one ends."
            )
        by = newest.record
        who = f"host {by.process.host}, process {by.process.pid}" if by else "another run"
        return (
            f"workdir={self._workdir} was taken over by {who}, while this process was suspended or could not reach it "
            f"for {self._times.silence:g} s. This run has written nothing since, and ends."
        )

    def release(self) -> None:
        """The next run may begin at once; this one publishes nothing more. In a forked child it does nothing."""
        if os.getpid() != self._pid:
            return
        self._stop.set()
        with self._lock:
            lost, self._ended = self._ended, self._ended or f"workdir={self._workdir} was released at the call's end."
            HELD.discard(self._record.token)
            try:
                self._files.rewrite(self._number, replace(self._record, released=True))
            except StorageError as error:
                if not lost:
                    log.warning("workdir=%s is not marked as free: %s", self._workdir, error)
            self._files.let_go(self._number)
        self._thread.join(LEAVE_SECONDS)

    def _renew_until_stopped(self) -> None:
        while not self._stop.wait(self._times.renew):
            with self._lock:
                if not self._ended:
                    with contextlib.suppress(StorageError):  # the fence says so, when there is something to publish
                        self._beat()

    def _beat(self) -> None:
        self._record = replace(self._record, beat=self._record.beat + 1)
        self._files.rewrite(self._number, self._record)
