"""What an owner holds: a record that a thread renews, and the proof, before each publication, that it still counts.

An owner rewrites its record and then looks for a higher one. A process that takes over creates the higher record and
then checks whether the old one was rewritten. So one of them notices the other, whatever their clocks say."""

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeline.errors import OwnerError, StorageError
from pipeline.logs import logger
from trainer.ownership.owner_files import OwnerFile, OwnerFiles, Record

log = logger("trainer")

LEAVE_SECONDS = 1.0  # for the thread, which may be stuck in a write
HELD: set[str] = set()  # the tokens of this process's leases; released ones are removed


@dataclass(frozen=True)
class Times:
    """In seconds. renew: between two beats. proof: how long a proof is valid. silence: after which an owner on another
    machine counts as lost, by the clock of the waiting process. poll: between two looks of the waiting process."""

    renew: float = 2.0
    proof: float = 2.0
    silence: float = 30.0
    poll: float = 0.25


TIMES = Times()


def elapsed() -> float:
    """Seconds by a clock that cannot be set, and that runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(eq=False)
class Lease:
    """The record `number` of the work directory, which belongs to this process until `release`."""

    workdir: str
    files: OwnerFiles
    number: int
    record: Record
    times: Times
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self._proven_at, self._ended, self._pid = -math.inf, "", os.getpid()
        self._lock, self._stop = threading.RLock(), threading.Event()
        self._thread = threading.Thread(target=self._renew_until_stopped, name="trainer-owner", daemon=True)

    def start(self) -> None:
        """Starts to renew the record, whose token is in HELD."""
        self.files.hold(self.number)
        self._thread.start()

    def fence(self) -> None:
        """Call it before anything is published, from any thread; asks the storage at most every `proof` seconds.

        OwnerError if another run has taken over, or if that cannot be determined."""
        with self._lock:
            if self._ended:
                raise OwnerError(self._ended)
            if self.clock() - self._proven_at < self.times.proof:
                return
            asked_at = self.clock()
            if newest := self._newer():
                self._ended = self._lost_to(newest)
                raise OwnerError(self._ended)
            self._proven_at = asked_at

    def _newer(self) -> OwnerFile | None:
        """Rewrites this record and returns the newer one, if there is one."""
        failed = None
        try:
            self._beat()
        except StorageError as error:  # also if the file is gone, as it is long after a takeover
            failed = error
        try:
            newest = self.files.newest()
        except StorageError as error:
            newest, failed = None, error
        if newest and newest.number != self.number:
            return newest
        if failed:
            raise OwnerError(
                f"cannot determine whether workdir={self.workdir} still belongs to this run: {failed} It writes "
                "nothing more; the same command resumes from the newest checkpoint."
            ) from failed
        return None

    def _lost_to(self, newest: OwnerFile) -> str:
        if newest.number < self.number:
            return (
                f"workdir={self.workdir}: its _owner directory was removed, so another run may own it. This run ends."
            )
        by = newest.record
        who = f"host {by.process.host}, process {by.process.pid}" if by else "another run"
        return (
            f"workdir={self.workdir} was taken over by {who}, while this process was suspended or could not reach it "
            f"for {self.times.silence:g} s. This run has written nothing since then, and ends."
        )

    def release(self) -> None:
        """Lets the next run start immediately; this one publishes nothing more. Does nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        self._stop.set()
        with self._lock:
            lost, self._ended = self._ended, self._ended or f"workdir={self.workdir} was released at the call's end."
            HELD.discard(self.record.token)
            try:
                self.files.rewrite(self.number, replace(self.record, released=True))
            except StorageError as error:
                if not lost:
                    log.warning("workdir=%s is not marked as free: %s", self.workdir, error)
            self.files.let_go(self.number)
        self._thread.join(LEAVE_SECONDS)

    def _renew_until_stopped(self) -> None:
        while not self._stop.wait(self.times.renew):
            with self._lock:
                if not self._ended:
                    with contextlib.suppress(StorageError):  # the fence reports it, once there is something to publish
                        self._beat()

    def _beat(self) -> None:
        self.record = replace(self.record, beat=self.record.beat + 1)
        self.files.rewrite(self.number, self.record)
