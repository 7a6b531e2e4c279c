"""One writer per work directory: a record names the run that owns it, and is compared before each
publication.

The record has one place, and every change is a compare-and-swap: the bucket's, or a lock on the
disk. So after a takeover the run before publishes nothing more, except a write in progress,
whatever clocks say. That a living owner is not taken over is only polite: on its own machine a lock
says that it lives, elsewhere the age of its record, which it renews as it publishes. Needs no
JAX."""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from pipeline.errors import OptionError, OwnerError, StorageError
from pipeline.logs import logger
from pipeline.shards.typed_json import JsonFile
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import explained, join, read_file
from trainer.checkpointing.listing import finished_steps
from trainer.reports.workdir import (
    ITERATORS,
    MARK,
    OWNER,
    OWNER_LOCK,
    OWNERS,
    TRAIN,
    eval_name,
    replaced_by_runs,
)

log = logger("trainer")

SILENCE_SECONDS = 120.0  # after which an owner on another machine counts as lost
RENEW_SECONDS = 10.0
POLL_SECONDS = 1.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Record:
    """Who owns the directory.

    machine: host name and boot.
    since: for people.
    renewed: in seconds since 1970, by the owner's clock."""

    token: str
    host: str
    machine: str
    pid: int
    since: str
    renewed: float
    released: bool = False

    def encode(self) -> bytes:
        """The bytes of the file."""
        return json.dumps(asdict(self)).encode()

    def __str__(self) -> str:
        return f"host {self.host}, process {self.pid}, started {self.since}"


def read_record(workdir: str) -> Record | None:
    """The record; None if no run has owned the directory."""
    return _parsed(_content(workdir, OWNER))


def is_alive(workdir: str, record: Record) -> bool | None:
    """Whether the owner still runs; None if that cannot be seen from here, as it is on another
    machine."""
    path = _lock_path(workdir)
    try:
        with _MUTEX:
            if path in _descriptors:
                return True
            # a tool that only reads does not create the file
            os.close(_locked(path, os.O_RDONLY, fcntl.LOCK_SH))
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False if record.machine == _machine() else None


def check_writable(workdir: str) -> None:
    """Creates the directory if necessary. StorageError if it is not writable.

    A bucket is not checked: that would take two more requests, and a call checks it before it
    compiles."""
    if is_remote(workdir):
        return
    trial = Path(workdir, f".try-{secrets.token_hex(8)}")
    try:
        trial.parent.mkdir(parents=True, exist_ok=True)
        trial.touch()
        trial.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write to workdir={workdir}: {explained(error)}") from error


def mark_workdir(workdir: str) -> str:
    """Marks the directory as one of runs, before the first of them writes there; returns its mark.

    OptionError if it has a file that runs would replace, but that no run wrote. StorageError if it
    is not writable."""
    storage = open_storage(workdir)
    files, directories = storage.entries(workdir)
    if OWNERS not in directories and not finished_steps(workdir):
        paths = list(files)
        for name in directories:
            if name in (TRAIN, ITERATORS) or eval_name(name) is not None:
                paths += [f"{name}/{file}" for file in storage.list(join(workdir, name))]
        for path in filter(replaced_by_runs, paths):
            raise OptionError(
                f"workdir={workdir} has a file {path}, which no run of infeed wrote, and which "
                "this run would replace. Move the file, or give another workdir."
            )
    check_writable(workdir)
    storage.create(join(workdir, MARK), secrets.token_hex(8).encode())
    return mark_of(workdir)


def mark_of(workdir: str) -> str:
    """What tells this work directory from others, once it is marked; "" before."""
    return (_content(workdir, MARK) or b"").decode()


class _Waits(Exception):  # noqa: N818
    """The owner may be gone."""


class Ownership(AbstractContextManager):
    """The right of one call of the trainer to write to its work directory.

    Owns nothing at first: evaluations never take the directory. Leaving the context manager
    releases it."""

    def __init__(self, workdir: str) -> None:
        self._workdir = str(workdir)
        self._storage = open_storage(self._workdir)
        self._path = join(self._workdir, OWNER)
        self._record: Record | None = None
        self._seen: float | None = None
        self._began = time.monotonic()
        self._locked: bool | None = False
        self._mutex = threading.RLock()

    def take(self, pause: Callable[[float], object] = time.sleep) -> None:
        """Makes this run the owner. pause: called between two looks at an owner that may be gone;
        may raise.

        Raises OwnerError, naming the owner, if that is alive. It takes over from an owner on
        another machine whose record has not been renewed for two minutes. StorageError if the
        directory cannot be written to."""
        mark_workdir(self._workdir)
        self._began = time.monotonic()
        try:
            while self._record is None:
                self._locked = self._locked or _lock(self._workdir)
                with contextlib.suppress(_Waits):
                    self._storage.update(self._path, self._taken)
                if self._record is None:
                    pause(POLL_SECONDS)
        except BaseException:
            self._unlock()
            raise

    def _taken(self, content: bytes | None) -> bytes:
        """The record of this run. Raises _Waits if it has to wait."""
        owner = _parsed(content)
        began = datetime.now(UTC).isoformat(timespec="seconds")
        self._record = None
        if not self._may_take(owner):
            raise _Waits
        if owner and not owner.released:
            log.warning("workdir=%s: taken over from %s, which is gone", self._workdir, owner)
        self._record = Record(
            secrets.token_hex(8), platform.node(), _machine(), os.getpid(), began, time.time()
        )
        return self._record.encode()

    def _may_take(self, owner: Record | None) -> bool:
        """Raises OwnerError if the owner is alive; False if it may be, or if another run begins or
        ends. After two minutes of waiting it is one or the other, whatever time the record
        states."""
        waited = time.monotonic() - self._began
        held = self._locked is False
        if owner is None or owner.released:
            if held and waited >= SILENCE_SECONDS:
                raise OwnerError(
                    f"workdir={self._workdir}: another process of this machine has held "
                    f"{_lock_path(self._workdir)} for {SILENCE_SECONDS:g} s, but owns nothing. End "
                    "it, or give another workdir."
                )
            return not held
        if self._locked and owner.machine == _machine():
            return True
        if held or self._seen not in (None, owner.renewed):
            raise OwnerError(
                f"workdir={self._workdir} belongs to another run, which is running: {owner}. Wait "
                f"until it ends, end it (kill {owner.pid} on {owner.host}: it saves, and a new run "
                "resumes), or give another workdir."
            )
        if self._seen is None:
            self._seen = owner.renewed
            log.warning(
                "workdir=%s belongs to %s, which may be gone. Once it has been silent for %g s, "
                "this run takes over",
                self._workdir,
                owner,
                SILENCE_SECONDS,
            )
        return max(waited, time.time() - owner.renewed) >= SILENCE_SECONDS

    def fence(self) -> None:
        """Call it before a training run publishes anything, in any thread.

        OwnerError if another run has taken over, StorageError if that cannot be determined."""
        with self._mutex:
            if self._record is None:
                return
            self._check(_content(self._workdir, OWNER))
            if time.time() - self._record.renewed >= RENEW_SECONDS:
                self._renew(replace(self._record, renewed=time.time()))

    def _check(self, content: bytes | None) -> None:
        owner = _parsed(content)
        if owner and self._record and owner.token == self._record.token and not owner.released:
            return
        how = (
            f"was taken over by {owner}" if owner else "lost its record, so another run may own it"
        )
        raise OwnerError(f"workdir={self._workdir} {how}. This run writes nothing more, and ends.")

    def _renew(self, record: Record) -> None:
        def change(content: bytes | None) -> bytes:
            self._check(content)
            return record.encode()

        self._storage.update(self._path, change)
        self._record = record

    def __exit__(self, *_: object) -> None:
        """Lets the next run start immediately; this one publishes nothing more."""
        with self._mutex:
            if self._record is None or self._record.pid != os.getpid():
                return
            try:
                self._renew(replace(self._record, released=True))
            except StorageError as error:
                log.warning("workdir=%s is not marked as free: %s", self._workdir, error)
            except OwnerError:
                pass  # the run has failed with it
            self._unlock()

    def _unlock(self) -> None:
        if self._locked:
            _unlock(self._workdir)


# A living owner holds a lock, for the processes of its machine: of the kind that ends with the
# process, and that no forked process inherits. It does not keep this process from itself, so a
# descriptor means that it is held here.
_descriptors: dict[str, int] = {}
_MUTEX = threading.Lock()


def _lock(workdir: str) -> bool | None:
    """Whether this process has the lock now; False if another run has it, None where there are no
    locks."""
    path = _lock_path(workdir)
    with _MUTEX:
        if path in _descriptors:
            return False
        try:
            _descriptors[path] = _locked(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)
        except BlockingIOError:
            return False
        except OSError:
            return None
        return True


def _locked(path: str, flags: int, kind: int) -> int:
    """A descriptor that has the lock. BlockingIOError if another process has it, another OSError
    where there are no locks."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if isinstance(error, PermissionError):  # POSIX allows this, too, for a lock that is held
            raise BlockingIOError from error
        raise
    return fd


def _unlock(workdir: str) -> None:
    if (fd := _descriptors.pop(_lock_path(workdir), None)) is not None:
        os.close(fd)


def _lock_path(workdir: str) -> str:
    if not is_remote(workdir):
        return str(Path(workdir, OWNER_LOCK).absolute())
    name = hashlib.blake2b(workdir.encode(), digest_size=12).hexdigest()
    return join(tempfile.gettempdir(), f"infeed-{os.getuid()}-{name}")


def _machine() -> str:
    with contextlib.suppress(OSError):
        return f"{platform.node()} {BOOT_ID.read_text().strip()}"
    return ""


def _content(workdir: str, name: str) -> bytes | None:
    return read_file(open_storage(workdir), join(workdir, name))


def _parsed(content: bytes | None) -> Record | None:
    """None for content that is not a record, such as that of a machine that lost power."""
    with contextlib.suppress(OwnerError):
        return JsonFile(OWNER, OwnerError, "").read(content, Record) if content else None
    return None
