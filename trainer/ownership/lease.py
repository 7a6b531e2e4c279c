"""What an owner holds: a record that a thread renews, and the proof, before each publication, that it still counts.

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
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.errors import OptionError, OwnerError, StorageError
from pipeline.logs import logger
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import explained, join
from trainer.checkpointing.listing import finished_steps
from trainer.ownership.owner_files import OwnerFile, OwnerFiles, Record
from trainer.workdir import EVAL_RESULT, OWNERS, TRAIN, eval_name, replaced_by_runs

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
