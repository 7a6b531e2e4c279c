"""Records that are read from their source once, and later from memory or a local disk.

train_dataset and eval_dataset wrap their source with it; to share one cache among several inputs,
wrap the source yourself. Independent of orders and TensorFlow.

A disk cache is one sparse file. Each record's frame has a fixed place, and its checksum shows
whether it is there: a hole, half a record or a flipped bit does not match. So nothing is ever
locked, repaired or discarded, even if processes are killed, and any number of processes may fill
one cache at the same time: they write the same bytes to the same places. NumPy only."""

import errno
import functools
import os
import shutil
import stat
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import CorruptRecordError, OptionError, StorageError
from pipeline.logs import log
from pipeline.machine import room_for_a_cache
from pipeline.shards.frames import frame_ends
from pipeline.shards.split_index import SplitIndex
from pipeline.sizes import format_bytes
from pipeline.sources.concatenated import ConcatenatedReading
from pipeline.sources.indexed_records import IndexedReading
from pipeline.sources.records import Group, Groups, ReadWhenDue, Record, Records, RecordsInfo, fetch
from pipeline.storage.local import LocalStorage

Cache = str | os.PathLike[str]
RECORDS_FILE = "records"  # the frame of each record, at its place
PRESENT_FILE = "present"  # one byte per record, not 0 once it was written: a hint, not a proof
_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
# in memory, per record besides the payload: the object, its place in the list, its checksum
RECORD_BYTES = 64


class RamStore:
    """Stores the payloads of one source until the process ends. Threads may share it.

    share: the fraction of records that will be read. OptionError if they exceed the free memory. If
    records turn out larger than expected (compressed ones), it stores as many as fit in that
    memory."""

    def __init__(self, records: RecordsInfo, share: float) -> None:
        needed = int(share * (records.num_bytes + RECORD_BYTES * records.num_records))
        self._room = limit = room_for_a_cache()
        log.info("%s: caching up to %s in RAM", records.name, format_bytes(needed))
        if needed > limit:
            raise OptionError(
                f"cache='ram' needs {format_bytes(needed)} for {records.name}; "
                f"{format_bytes(limit)} of memory are available. Cache on a local disk "
                "(cache='/local/dir'), or take less data, or leave the cache out."
            )
        self._name = records.name
        self._payloads = [b""] * records.num_records
        self._crcs = np.zeros(records.num_records, np.uint32)
        self._present = np.zeros(records.num_records, bool)
        self._lock = threading.Lock()

    def holds(self, record_ids: np.ndarray) -> np.ndarray:
        """bool [n]: which of these are stored."""
        return self._present[record_ids]

    @property
    def complete(self) -> bool:
        """Whether every record is stored."""
        return bool(self._present.all())

    def keep(self, record_ids: np.ndarray, records: Iterable[Record]) -> None:
        """Stores the undamaged ones."""
        with self._lock:
            for record_id, record in zip(record_ids.tolist(), records, strict=True):
                if (
                    isinstance(record, tuple)
                    and not self._present[record_id]
                    and self._makes_room(len(record[0]))
                ):
                    self._payloads[record_id], self._crcs[record_id] = record
                    # last, because other threads read it without the lock
                    self._present[record_id] = True

    def read(self, groups: Groups, ahead_bytes: int) -> ReadWhenDue:
        """See Records. Every record must be stored when its turn comes."""
        return ReadWhenDue(self._stored, groups)

    def _stored(self, ids: np.ndarray) -> list[Record]:
        payloads = map(self._payloads.__getitem__, ids.tolist())
        return list(zip(payloads, self._crcs[ids].tolist(), strict=True))

    def _makes_room(self, payload_bytes: int) -> bool:
        had_room = self._room >= 0
        self._room -= payload_bytes + RECORD_BYTES
        if had_room and self._room < 0:
            log.warning(
                "%s: records are larger than expected; the RAM cache is full, others are reread",
                self._name,
            )
        return self._room >= 0


class DiskStore:
    """Stores the records of one source below a directory, in a folder named by its fingerprint.
    Threads may share it.

    share: the fraction of records that will be read. OptionError if they exceed the free disk
    space, or if their lengths and checksums are not known; StorageError if the folder cannot be
    written."""

    def __init__(self, records: RecordsInfo, directory: str, share: float) -> None:
        lengths = records.lengths
        crcs = records.crcs
        if lengths is None or crcs is None:
            raise OptionError(
                f"cache={directory!r}: a cache on disk needs lengths and checksums of all records "
                f"in advance, which {records.name} does not have. Index the files (infeed index), "
                "or use cache='ram'."
            )
        self._name = records.name
        self._index = SplitIndex(np.stack([lengths[:], crcs[:]], axis=1), [len(lengths)])
        folder = Path(directory) / records.fingerprint
        self._path = str(folder / RECORDS_FILE)
        (size,) = self._index.shard_bytes().tolist()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._records = self._open(folder / RECORDS_FILE, size)
            self._present = self._open(folder / PRESENT_FILE, len(lengths))
            self._known = np.fromfile(folder / PRESENT_FILE, np.uint8, len(lengths)) != 0
            free = shutil.disk_usage(folder).free
        except OSError as e:
            raise StorageError(
                f"cannot keep a cache in {folder}: {e.strerror or e}. Give a directory that can be "
                "written."
            ) from e
        self._writes = True
        stored = int(lengths[self._known].sum(dtype=np.int64))
        log.info(
            "%s: caching up to %s in %s, which has %s",
            self._name,
            format_bytes(share * size),
            folder,
            format_bytes(stored),
        )
        if (needed := max(0, int(share * size) - stored)) > free:
            raise OptionError(
                f"cache={directory!r} needs {format_bytes(needed)} more for {records.name}; "
                f"{format_bytes(free)} are free on that disk. Remove old folders there, or give "
                "another directory, or take less data."
            )

    def holds(self, record_ids: np.ndarray) -> np.ndarray:
        """bool [n]: which of these have been written, by any process."""
        for record_id in record_ids[~self._known[record_ids]].tolist():
            if os.pread(self._present, 1, record_id) not in (b"\0", b""):
                self._known[record_id] = True
        return self._known[record_ids]

    @property
    def complete(self) -> bool:
        """Whether this process knows that every record has been written."""
        return bool(self._known.all())

    def keep(self, record_ids: np.ndarray, records: Sequence[Record]) -> None:
        """Writes the undamaged ones. A full disk only stops the caching, with a warning."""
        places = self._index.locate(record_ids)
        rows = zip(
            record_ids.tolist(), places.offset.tolist(), places.crc.tolist(), records, strict=True
        )
        try:
            for record_id, offset, crc, record in rows:
                if isinstance(record, tuple) and record[1] == crc and self._writes:
                    header, footer = frame_ends(len(record[0]), crc)
                    frame = (header, record[0], footer)
                    if os.pwritev(self._records, frame, offset) == sum(map(len, frame)):
                        os.pwrite(self._present, b"\1", record_id)
                        self._known[record_id] = True
        except OSError as e:
            self._writes = False
            log.warning(
                "%s: nothing more is cached in %s: %s", self._name, self._path, e.strerror or e
            )

    def read(self, groups: Groups, ahead_bytes: int) -> IndexedReading:
        """Uses large reads if neighbours are needed soon. A missing record is returned as a
        CorruptRecordError."""
        return IndexedReading(LocalStorage(), [self._path], self._index, groups, ahead_bytes)

    def _open(self, path: Path, size: int) -> int:
        fd = os.open(path, _OPEN, 0o666)
        weakref.finalize(self, os.close, fd)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > size:
            raise OSError(
                errno.EEXIST, f"{path.name} is there, but is not the cache of these records"
            )
        os.truncate(fd, size)  # holes where nothing was written
        return fd


# of records by number; what it holds may still be missing or damaged when it is read
Store = DiskStore | RamStore


def cached(records: Records, where: Cache, *, share: float = 1.0) -> "CachedRecords":
    """The same records; each is stored when it is first read, and read from the cache after that.

    where: "ram", or a directory on a local disk. A directory serves later runs and concurrent
    processes, too. Its folders are named by fingerprint, so changed data never meets an old cache.
    No command deletes old folders: remove them when no run uses them. share: the fraction of
    records that will be read.

    The size it may reach is logged first. Raises OptionError if that exceeds the free space, or,
    for a directory, if lengths and checksums are not known in advance; StorageError if the
    directory cannot be written."""
    if where == "ram":
        return CachedRecords(records, RamStore(records.info, share), where, share)
    directory = os.fspath(where)
    if "://" in directory or (isinstance(where, str) and "/" not in directory):
        raise OptionError(
            f"cache={directory!r} is not known. Known: 'ram'; a directory on a local disk, with a "
            "slash in it."
        )
    return CachedRecords(records, DiskStore(records.info, directory, share), where, share)


@dataclass(eq=False)
class CachedRecords:
    """The Records of a source, read through a store. Errors of the source are passed on, every
    time.

    info, block_starts, weigh, where: those of the source. cached_in, share: the arguments of
    `cached`. A pickled copy has its own store: the same folder, or an empty one in RAM."""

    source: Records
    store: Store
    cached_in: Cache
    share: float

    def __post_init__(self) -> None:
        self.info = self.source.info
        self.block_starts = self.source.block_starts
        self.weigh = self.source.weigh
        self.where = self.source.where

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(cached, share=self.share), (self.source, self.cached_in)

    def read(self, groups: Groups, ahead_bytes: int) -> "_Followed | ConcatenatedReading":
        """See Records. Reads from the source what is not in the store."""
        from_store = functools.partial(_Followed, self.store, self._healed)
        if self.store.complete:
            return from_store(groups, ahead_bytes)
        from_source = functools.partial(_Followed, self.source, self._stored)
        return ConcatenatedReading((from_source, from_store), self._split_up, groups, ahead_bytes)

    def _split_up(self, group: Group) -> tuple[np.ndarray, list[Group]]:
        held = self.store.holds(group.record_ids)
        return held.astype(np.intp), [
            Group(group.record_ids[of], group.num_bytes) for of in (~held, held)
        ]

    def _stored(self, record_ids: np.ndarray, records: list[Record]) -> list[Record]:
        self.store.keep(record_ids, records)
        return records

    def _healed(self, record_ids: np.ndarray, records: list[Record]) -> list[Record]:
        """Rereads from the source what the store has lost."""
        lost = [i for i, record in enumerate(records) if isinstance(record, CorruptRecordError)]
        if lost:
            ids = record_ids[lost]
            for i, record in zip(lost, self._stored(ids, fetch(self.source, ids)), strict=True):
                records[i] = record
        return records


class _Followed:
    """A Reading of a source or store that passes each group's numbers and records through
    `then`."""

    def __init__(
        self,
        of: Records | Store,
        then: Callable[[np.ndarray, list[Record]], list[Record]],
        groups: Groups,
        ahead_bytes: int,
    ) -> None:
        self._ids = deque[np.ndarray]()
        self._then = then
        self._reading = of.read(self._noted(groups), ahead_bytes)

    @property
    def held_bytes(self) -> int:
        return self._reading.held_bytes

    def __iter__(self) -> Iterator[list[Record]]:
        for records in self._reading:
            yield self._then(self._ids.popleft(), records)

    def _noted(self, groups: Groups) -> Iterator[Group]:
        for group in groups:
            self._ids.append(group.record_ids)
            yield group
