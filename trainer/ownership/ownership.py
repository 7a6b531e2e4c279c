"""Takes a work directory: fails if its owner is alive, succeeds immediately if it is dead, otherwise after a wait."""

import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import NamedTuple

from pipeline.errors import OwnerError, StorageError
from pipeline.logs import logger
from pipeline.storage.storage import explained
from trainer.ownership.lease import HELD, TIMES, Lease, Times, elapsed
from trainer.ownership.owner_files import OwnerFile, OwnerFiles, OwnerProcess, Record, is_suspended, lives, this_process

log = logger("trainer")

PATIENCE = 2.5  # beats, within which a living owner has renewed its record


class Taken(NamedTuple):
    """The lease, and the process that did not release the directory; None if it was free."""

    lease: Lease
    lost: OwnerProcess | None


class Ownership(AbstractContextManager):
    """The right of one call of the trainer to write to its work directory.

    Owns nothing at first: evaluations never take the directory. Leaving the context manager releases it."""

    def __init__(self, workdir: str) -> None:
        self._workdir = str(workdir)
        self._taken: Taken | None = None

    def take(self, pause: Callable[[float], object] = time.sleep) -> OwnerProcess | None:
        """Takes the directory; returns the process that lost it, if any. Raises what `Contender.take` raises."""
        self._taken = Contender(self._workdir, pause=pause).take()
        return self._taken.lost

    def fence(self) -> None:
        """Call it before a training run publishes anything. OwnerError if another run has taken over."""
        if self._taken:
            self._taken.lease.fence()

    def __exit__(self, *_: object) -> None:
        if self._taken:
            self._taken.lease.release()


class Contender:
    """This process (`here`), which wants the directory. Until it has it, it only reads.

    pause: called between two looks, and may raise."""

    def __init__(
        self,
        workdir: str,
        times: Times | None = None,
        pause: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = elapsed,
        here: OwnerProcess | None = None,
    ) -> None:
        self.workdir, self.times, self.pause, self.clock = workdir, times or TIMES, pause, clock
        self.here, self.files = here or this_process(), OwnerFiles(workdir)
        self.seen, self.since, self.told = OwnerFile(0, b""), 0.0, False

    def take(self) -> Taken:
        """Makes this process the directory's owner.

        Raises OwnerError, naming the owner, if that is alive: within a beat or two. It takes over from an owner on
        another machine that has been silent, by this clock, for `times.silence`. StorageError if the directory cannot
        be written to."""
        while True:
            found = self.files.newest()
            if self._may_claim(found):
                if taken := self._claim(found):
                    return taken
            else:
                self.pause(self.times.poll)

    def _may_claim(self, found: OwnerFile) -> bool:
        """Raises OwnerError if the owner is alive."""
        record, now = found.record, self.clock()
        if not found.number or (record and record.released):
            return True
        alive = self._lives(found.number, record) if record else None
        if alive:
            raise self._refusal(record)
        if alive is False:
            return True
        if found.number != self.seen.number:
            self.seen, self.since = found, now
        elif found.data != self.seen.data:
            raise self._refusal(record)
        self._tell(record, now - self.since)
        return now - self.since >= self.times.silence

    def _lives(self, number: int, record: Record) -> bool | None:
        if record.process == self.here:
            return record.token in HELD
        alive = lives(record.process, self.here)
        if alive is None and record.process.shares_kernel(self.here):
            return self.files.is_held(number) or None
        return alive

    def _claim(self, found: OwnerFile) -> Taken | None:
        """None if another process was faster, or if the owner renews its record at the last moment."""
        started = datetime.now(UTC).isoformat(timespec="seconds")
        record, number = Record(secrets.token_hex(8), self.here, started), found.number + 1
        HELD.add(record.token)  # first: a thread of this process that reads the record must not take its owner for dead
        claimed = False
        try:
            claimed = self._create(number, record, found)
        finally:
            if not claimed:
                HELD.discard(record.token)
        if not claimed:
            return None
        lost = found.record
        if found.number and not (lost and lost.released):
            log.warning("workdir=%s: taken over from %s, which is gone", self.workdir, _named(lost))
        lease = Lease(self.workdir, self.files, number, record, times=self.times, clock=self.clock)
        lease.start()
        return Taken(lease, lost.process if lost and not lost.released else None)

    def _create(self, number: int, record: Record, found: OwnerFile) -> bool:
        """Writes the record, and removes it again unless it is the newest and the last owner is still silent."""
        try:
            if not self.files.create(number, record):
                return False
            if self.files.newest().number == number and (
                not found.number or self.files.read(found.number) == found.data
            ):
                return True
            self.files.remove(number)
            return False
        except StorageError as error:
            reason = error.__cause__
            why = explained(reason) if isinstance(reason, OSError) else str(error)
            raise StorageError(f"cannot write to workdir={self.workdir}: {why}") from error

    def _tell(self, record: Record | None, silent: float) -> None:
        if not self.told and silent > PATIENCE * self.times.renew:
            self.told = True
            owner, seconds, limit = _named(record), round(silent, 1), self.times.silence
            text = "workdir=%s belongs to %s, which has been silent for %g s. If it is silent for %g s in total, this "
            log.warning(f"{text}run takes over", self.workdir, owner, seconds, limit)

    def _refusal(self, record: Record | None) -> OwnerError:
        if record is None:
            return OwnerError(f"workdir={self.workdir} belongs to another run, which is running. Give another workdir.")
        process = record.process
        suspended = lives(process, self.here) and is_suspended(process)
        state = f"suspended (kill -CONT {process.pid} resumes it)" if suspended else "running"
        return OwnerError(
            f"workdir={self.workdir} belongs to another run, which is {state}: {_named(record)}. Wait until it ends, "
            f"end it (kill {process.pid} on {process.host}: it saves, and a new run resumes), or give another workdir."
        )


def _named(record: Record | None) -> str:
    if record is None:
        return "an unknown process"
    return f"host {record.process.host}, process {record.process.pid}, started {record.since}"
