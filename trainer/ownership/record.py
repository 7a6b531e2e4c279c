"""The files <workdir>/_owner/000001.json, ...: one for each run that ever owned the directory. The highest counts.

A new one is created only if it is absent, which decides between two runs on every file system and in every bucket. From
then on nobody writes to it but its owner, so a late write of an old owner changes nothing. None of this needs locks."""

import contextlib
import fcntl
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from pipeline.shards.errors import OwnerError, StorageError
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import join
from pipeline.shards.typed_json import JsonFile
from trainer.ownership.process import Process

__all__ = ["Found", "OwnerFiles", "Record"]

DIRECTORY = "_owner"
NAME = re.compile(r"(\d{6,})\.json")
KEPT = 8  # older numbers go; one that a slow contender may still try to create must be there
LINE_BYTES = 1024  # a file is rewritten in place, so every content has the same size


@dataclass(frozen=True)
class Record:
    """What an owner says. since: for people, by its own clock. beat: grows as long as it lives."""

    token: str
    process: Process
    since: str
    beat: int = 0
    released: bool = False

    def encode(self) -> bytes:
        """As it is written."""
        return json.dumps(asdict(self)).encode().ljust(LINE_BYTES - 1) + b"\n"


_held: dict[tuple[int, str], int] = {}  # descriptors of locked files


def _drop_inherited() -> None:
    """A forked child would hold its parent's locks when that is dead."""
    for fd in _held.values():
        os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_drop_inherited)


class Found(NamedTuple):
    """A file: its number and content. 0 and b"" stand for no file."""

    number: int
    data: bytes

    @property
    def record(self) -> Record | None:
        """None for content that is not an owner's: half written, as by a machine that lost its power."""
        try:
            return JsonFile(f"{self.number:06d}.json", OwnerError, "").read(self.data, Record)
        except OwnerError:
            return None


class OwnerFiles:
    """The owner files of a work directory. Looking makes nothing. Every failure is a StorageError."""

    def __init__(self, workdir: str) -> None:
        self._storage, self._directory = open_storage(workdir), join(workdir, DIRECTORY)

    def numbers(self) -> list[int]:
        """Of all files, ascending."""
        names = map(NAME.fullmatch, self._storage.list(self._directory))
        return sorted(int(name[1]) for name in names if name)

    def newest(self) -> Found:
        """The file that counts."""
        number = max(self.numbers(), default=0)
        return Found(number, self.read(number) if number else b"")

    def read(self, number: int) -> bytes:
        """Its content; b"" where it is gone."""
        try:
            return self._storage.read(self._path(number))
        except StorageError:
            if self._storage.exists(self._path(number)):
                raise
            return b""

    def create(self, number: int, record: Record) -> bool:
        """False if it is there already. Removes files that count no more."""
        if not self._storage.create(self._path(number), record.encode()):
            # On a network disk the answer to the first of two equal requests may have been lost.
            return self.read(number) == record.encode()
        for old in self.numbers():
            if old <= number - KEPT:
                self._storage.delete(self._path(old))
        return True

    def rewrite(self, number: int, record: Record) -> None:
        """Replaces the content of one's own file. On a disk in place: two syncs every few seconds would be dear, and
        another host's NFS client looks at a file that it opens, but trusts a name that it knows."""
        if self._storage.remote:
            with self._storage.publish(self._path(number)) as sink:
                sink.write(record.encode())
            return
        try:
            with Path(self._path(number)).open("r+b", buffering=0) as file:
                file.write(record.encode())
        except OSError as error:
            raise StorageError(f"cannot write {self._path(number)}: {error.strerror or error}.") from error

    def hold(self, number: int) -> None:
        """Locks one's own file, until `let_go` or the end of the process. It is for containers of one machine alone,
        and a file system without locks does without."""
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
        """Whether a living process holds the file. False says nothing."""
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
        """Takes back a file that was created in vain."""
        self._storage.delete(self._path(number))

    def _path(self, number: int) -> str:
        return join(self._directory, f"{number:06d}.json")
