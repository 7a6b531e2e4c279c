"""The store of a RAM cache: payloads in memory; and how much memory this process may still use.

pipeline.caches.cache fills and reads it. Free is what the machine has, or less if a cgroup limits it: a few small files
of the kernel tell. NumPy only."""

import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from pipeline.errors import OptionError
from pipeline.logs import logger
from pipeline.sizes import format_bytes
from pipeline.sources.records import Group, Proven, ReadWhenDue, Record, RecordsInfo

SPARE = 0.1  # of the free memory, for everything else

# cgroup v2, v1: the limit, the usage, and the name of the part of it that the kernel can reclaim.
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_memory_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be used without swapping or being killed. root: where /proc and /sys are.

    Without these files (not Linux), all of the machine's memory counts as free."""
    return max(0, min([_of_machine(root), *_left_in_cgroups(root)]))


def room_for_a_cache() -> int:
    """Bytes of the free memory that one cache may use."""
    return int((1 - SPARE) * free_memory_bytes())


def _of_machine(root: Path) -> int:
    try:
        return 1024 * _numbers(root / "proc/meminfo")["MemAvailable:"]
    except (OSError, KeyError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _left_in_cgroups(root: Path) -> Iterator[int]:
    for directory in _cgroups(root):
        for bound, used, droppable in _FILES:
            try:
                limit = int((directory / bound).read_text())  # "max" means no limit, and raises ValueError
                taken = int((directory / used).read_text()) - _numbers(directory / "memory.stat").get(droppable, 0)
            except (OSError, ValueError):
                continue
            yield limit - taken


def _cgroups(root: Path) -> Iterator[Path]:
    """The memory cgroups of this process and all their parents: each may have a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        # Inside a container the path may be the host's. Then only the base exists, and is the container's own.
        names = path.strip("/").split("/")
        yield from (base.joinpath(*names[:depth]) for depth in range(len(names) + 1))


def _numbers(path: Path) -> dict[str, int]:
    """The first two words of each line."""
    words = (line.split() for line in path.read_text().splitlines())
    return {name: int(number) for name, number, *_ in words}


RECORD_BYTES = 64  # per record besides the payload: the object, its place in the list, its checksum

log = logger("pipeline")


class RamStore:
    """Stores the payloads of one source until the process ends. Threads may share it.

    share: the fraction of records that will be read. OptionError if they exceed the free memory. If records turn out
    larger than expected (compressed ones), it stores as many as fit in that memory."""

    def __init__(self, records: RecordsInfo, share: float) -> None:
        needed = int(share * (records.num_bytes + RECORD_BYTES * records.num_records))
        self._room = limit = room_for_a_cache()
        log.info("%s: caching up to %s in RAM", records.name, format_bytes(needed))
        if needed > limit:
            raise OptionError(
                f"cache='ram' needs {format_bytes(needed)} for {records.name}; {format_bytes(limit)} of memory are "
                "available. Cache on a local disk (cache='/local/dir'), or take less data, or leave the cache out."
            )
        self._name = records.name
        self._payloads = [b""] * records.num_records
        self._crcs = np.zeros(records.num_records, np.uint32)
        self._kept = np.zeros(records.num_records, bool)
        self._lock = threading.Lock()

    def holds(self, record_ids: np.ndarray) -> np.ndarray:
        """bool [n]: which of these are stored."""
        return self._kept[record_ids]

    @property
    def complete(self) -> bool:
        """Whether every record is stored."""
        return bool(self._kept.all())

    def keep(self, record_ids: np.ndarray, records: Iterable[Record]) -> None:
        """Stores the undamaged ones."""
        with self._lock:
            for record_id, record in zip(record_ids.tolist(), records, strict=True):
                if isinstance(record, Proven) and not self._kept[record_id] and self._makes_room(len(record.payload)):
                    self._payloads[record_id] = record.payload
                    self._crcs[record_id] = record.crc
                    self._kept[record_id] = True  # last, because other threads read it without the lock

    def read(self, groups: Iterable[Group], ahead_bytes: int) -> ReadWhenDue:
        """See Records. Every record must be stored when its turn comes."""
        del ahead_bytes
        return ReadWhenDue(self._stored, groups)

    def _stored(self, ids: np.ndarray) -> list[Record]:
        payloads = map(self._payloads.__getitem__, ids.tolist())
        return list(map(Proven, payloads, self._crcs[ids].tolist()))

    def _makes_room(self, payload_bytes: int) -> bool:
        left = self._room - payload_bytes - RECORD_BYTES
        if left < 0 <= self._room:
            log.warning("%s: records are larger than expected; the RAM cache is full, others are reread", self._name)
            self._room = -1
        elif left >= 0:
            self._room = left
        return left >= 0
