"""Takes a work directory: fails if its owner is alive, succeeds immediately if it is dead, otherwise after a wait.

What an owner then holds is a record that a thread renews, and the proof, before each publication, that it still counts.
An owner rewrites its record and then looks for a higher one. A process that takes over creates the higher record and
then checks whether the old one was rewritten. So one of them notices the other, whatever their clocks say.

`claim` marks a work directory as one of runs, unless it has files of others. Needs no JAX: commands check before they
import it, calls before they read."""

import contextlib
import math
import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from pipeline.errors import OptionError, OwnerError, StorageError
from pipeline.logs import logger
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import explained, join
from trainer.checkpointing.listing import finished_steps
from trainer.ownership.owner_files import OwnerFile, OwnerFiles, OwnerProcess, Record, is_suspended, lives, this_process
from trainer.workdir import EVAL_RESULT, OWNERS, TRAIN, eval_name, replaced_by_runs

log = logger("trainer")

PATIENCE = 2.5  # beats, within which a living owner has renewed its record
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
    """The record `number` of the work directory, which belongs to this process until `release`.

    lost: the process that did not release the directory before; None if it was free."""

    workdir: str
    files: OwnerFiles
    number: int
    record: Record
    times: Times
    clock: Callable[[], float]
    lost: OwnerProcess | None = None

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


def check_writable(workdir: str) -> None:
    """Creates the directory if necessary. StorageError if it is not writable.

    A bucket is not checked: that would take two more requests, and a call checks it before it compiles."""
    if not is_remote(workdir):
        name = f".try-{secrets.token_hex(8)}"
        make_mark(workdir, name)
        Path(workdir, name).unlink(missing_ok=True)


def claim(workdir: str) -> None:
    """Marks the directory as one of runs, before the first of them writes there.

    OptionError if it has a file that runs would replace, but that no run wrote."""
    storage = open_storage(workdir)
    files, directories = storage.entries(workdir)
    if OWNERS in directories or finished_steps(workdir):
        return
    for name in (name for name in directories if name == TRAIN or eval_name(name) is not None):
        files |= {f"{name}/{file}": stat for file, stat in storage.list(join(workdir, name)).items()}
    taken = list(filter(replaced_by_runs, files))
    # Earlier releases marked only the directories of trainings, not those of evaluations.
    if taken and not (EVAL_RESULT in files and b'"proven"' in storage.read(join(workdir, EVAL_RESULT))):
        raise OptionError(
            f"workdir={workdir} has a file {taken[0]}, which no run of infeed wrote, and which this run would replace. "
            "Move the file, or give another workdir."
        )
    make_mark(workdir, f"{OWNERS}/runs")


def make_mark(workdir: str, name: str) -> None:
    """Creates an empty file in the work directory, and that if necessary. StorageError if this fails."""
    try:
        if is_remote(workdir):
            open_storage(workdir).create(join(workdir, name), b"")
        else:  # create would sync the disk: seconds on a busy disk, for a temporary file
            Path(workdir, name).parent.mkdir(parents=True, exist_ok=True)
            Path(workdir, name).touch()
    except OSError as error:
        raise StorageError(f"cannot write to workdir={workdir}: {explained(error)}") from error


class Ownership(AbstractContextManager):
    """The right of one call of the trainer to write to its work directory.

    Owns nothing at first: evaluations never take the directory. Leaving the context manager releases it."""

    def __init__(self, workdir: str) -> None:
        self._workdir = str(workdir)
        self._taken: Lease | None = None

    def take(self, pause: Callable[[float], object] = time.sleep) -> OwnerProcess | None:
        """Takes the directory; returns the process that lost it, if any. Raises what `Contender.take` raises."""
        self._taken = Contender(self._workdir, pause=pause).take()
        return self._taken.lost

    def fence(self) -> None:
        """Call it before a training run publishes anything. OwnerError if another run has taken over."""
        if self._taken:
            self._taken.fence()

    def __exit__(self, *_: object) -> None:
        if self._taken:
            self._taken.release()


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

    def take(self) -> Lease:
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

    def _claim(self, found: OwnerFile) -> Lease | None:
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
        before = found.record
        if found.number and not (before and before.released):
            log.warning("workdir=%s: taken over from %s, which is gone", self.workdir, _named(before))
        lost = before.process if before and not before.released else None
        lease = Lease(self.workdir, self.files, number, record, self.times, self.clock, lost)
        lease.start()
        return lease

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
