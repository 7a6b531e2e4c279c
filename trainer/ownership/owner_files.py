"""The files <workdir>/_owner/000001.json, ...: one per run that has owned the directory. The highest number counts.
Each names a process, of which another process of the same machine can find out whether it is alive.

A new file is created only if it is absent, which decides between two runs on every file system and in every bucket.
After that only its owner writes to it, so a late write of an old owner changes nothing. This needs no locks."""

import contextlib
import fcntl
import json
import os
import platform
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import OwnerError, StorageError
from pipeline.shards.typed_json import JsonFile
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join, write_file
from trainer.workdir import OWNERS

# Environment variable that names this machine, for clones of a virtual machine with equal boot ids and host names.
MACHINE = "INFEED_MACHINE"
PROC = Path("/proc")
STATE, STARTED = 0, 19  # fields of /proc/<pid>/stat after the program's name

NAME = re.compile(r"(\d{6,})\.json")
KEPT = 8  # older files are deleted; a number that a slow contender may still try to create must exist
LINE_BYTES = 1024  # a file is rewritten in place, so every content has the same size


@dataclass(frozen=True)
class OwnerProcess:
    """A process since the start of its machine. machine: host name and kernel; "" if unknown. namespace: of pids; each
    container has its own. started: in ticks since the machine started; a later process with this pid has another."""

    host: str
    machine: str
    namespace: str
    pid: int
    started: int

    def shares_kernel(self, other: "OwnerProcess") -> bool:
        """Whether both are on one machine, perhaps in containers that do not see each other's processes."""
        kernel = self.machine.rpartition(" ")[2]
        return bool(kernel) and kernel == other.machine.rpartition(" ")[2]


def this_process() -> OwnerProcess:
    """The calling process."""
    host = platform.node()
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = str((PROC / "self/ns/pid").readlink())
        started = int(_stat(os.getpid())[STARTED])
    except OSError:  # without /proc no other process can check whether this one is alive
        return OwnerProcess(host, "", "", os.getpid(), 0)
    kernel = f"{boot}-{os.environ[MACHINE]}" if MACHINE in os.environ else boot
    return OwnerProcess(host, f"{host} {kernel}", namespace, os.getpid(), started)


def lives(process: OwnerProcess, here: OwnerProcess) -> bool | None:
    """Whether it is alive, perhaps suspended; None if `here` cannot see it: on another machine, in a container."""
    if not here.machine or (process.machine, process.namespace) != (here.machine, here.namespace):
        return None
    try:
        stat = _stat(process.pid)
        # A zombie has ended once only one thread is left: the others may still be writing.
        ended = stat[STATE] in "ZX" and len(list((PROC / str(process.pid) / "task").iterdir())) <= 1
    except OSError:
        return _is_hidden(process.pid)
    return not ended and int(stat[STARTED]) == process.started


def is_suspended(process: OwnerProcess) -> bool:
    """Whether a living process was stopped, as by SIGSTOP."""
    try:
        return _stat(process.pid)[STATE] in "Tt"
    except OSError:
        return False


def _is_hidden(pid: int) -> bool:
    """Whether it is another user's, in a /proc that shows users only their own processes."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return False  # it is ours and has just ended


def _stat(pid: int) -> list[str]:
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


@dataclass(frozen=True)
class Record:
    """The content of an owner's file. since: for people, by its own clock. beat: grows while the owner is alive."""

    token: str
    process: OwnerProcess
    since: str
    beat: int = 0
    released: bool = False

    def encode(self) -> bytes:
        """The bytes of the file."""
        return json.dumps(asdict(self)).encode().ljust(LINE_BYTES - 1) + b"\n"


_held: dict[tuple[int, str], int] = {}  # descriptors of locked files


def _drop_inherited() -> None:
    """Without this, a forked child would keep its dead parent's locks."""
    for fd in _held.values():
        os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_drop_inherited)


class OwnerFile(NamedTuple):
    """A file: its number and content; 0 and b"" if there is none."""

    number: int
    data: bytes

    @property
    def record(self) -> Record | None:
        """None for content that is not an owner's, such as a partial write of a machine that lost power."""
        try:
            return JsonFile(f"{self.number:06d}.json", OwnerError, "").read(self.data, Record)
        except OwnerError:
            return None


class OwnerFiles:
    """The owner files of a work directory. Reading creates nothing. Every failure is a StorageError."""

    def __init__(self, workdir: str) -> None:
        self._storage, self._directory = open_storage(workdir), join(workdir, OWNERS)

    def numbers(self) -> list[int]:
        """Of all files, ascending."""
        names = map(NAME.fullmatch, self._storage.list(self._directory))
        return sorted(int(name[1]) for name in names if name)

    def newest(self) -> OwnerFile:
        """The file with the highest number."""
        number = max(self.numbers(), default=0)
        return OwnerFile(number, self.read(number) if number else b"")

    def read(self, number: int) -> bytes:
        """Its content; b"" if it is gone."""
        try:
            return self._storage.read(self._path(number))
        except StorageError:
            if self._storage.exists(self._path(number)):
                raise
            return b""

    def create(self, number: int, record: Record) -> bool:
        """Returns False if it exists. Removes old files."""
        if not self._storage.create(self._path(number), record.encode()):
            # A network disk may have lost the answer to a first request that succeeded.
            return self.read(number) == record.encode()
        for old in self.numbers():
            if old <= number - KEPT:
                self._storage.delete(self._path(old))
        return True

    def rewrite(self, number: int, record: Record) -> None:
        """Replaces the content of this process's own file. On a disk in place: two syncs every few seconds would be
        expensive, and another host's NFS client checks a file that it opens but trusts its cache of names."""
        if self._storage.remote:
            write_file(self._storage, self._path(number), record.encode())
            return
        try:
            with Path(self._path(number)).open("r+b", buffering=0) as file:
                file.write(record.encode())
        except OSError as error:
            raise StorageError(f"cannot write {self._path(number)}: {error.strerror or error}.") from error

    def hold(self, number: int) -> None:
        """Locks this process's own file until `let_go` or the end of the process. Only containers of the same machine
        rely on the lock; a file system without locks is fine."""
        if self._storage.remote:
            return
        with contextlib.suppress(OSError):
            fd = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
            _held[number, self._directory] = fd
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def let_go(self, number: int) -> None:
        """Ends `hold`."""
        if (fd := _held.pop((number, self._directory), None)) is not None:
            os.close(fd)

    def is_held(self, number: int) -> bool:
        """Whether a living process holds the lock. False proves nothing."""
        if self._storage.remote:
            return False
        try:
            with Path(self._path(number)).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def remove(self, number: int) -> None:
        """Removes a file that was created without effect."""
        self._storage.delete(self._path(number))

    def _path(self, number: int) -> str:
        return join(self._directory, f"{number:06d}.json")
