"""The store of a disk cache: one sparse file on a local disk. pipeline.caches.cache fills and reads it.

Each record's frame has a fixed place, and its checksum shows whether it is there: a hole, half a record or a flipped
bit does not match. So nothing is ever locked, repaired or discarded, even if processes are killed, and any number of
processes may fill one cache at the same time: they write the same bytes to the same places. NumPy only."""

import errno
import os
import shutil
import stat
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from pipeline.errors import OptionError, StorageError
from pipeline.logs import logger
from pipeline.shards.record import frame_ends
from pipeline.shards.split_index import SplitIndex
from pipeline.sizes import format_bytes
from pipeline.sources.indexed_reading import IndexedReading
from pipeline.sources.records import Group, Proven, Reading, Record, RecordsInfo
from pipeline.storage.local import LocalStorage

RECORDS_FILE = "records"  # the frame of each record, at its place
PRESENT_FILE = "present"  # one byte per record, not 0 once it was written: a hint, not a proof
_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

log = logger("pipeline")


class DiskStore:
    """Stores the records of one source below a directory, in a folder named by its fingerprint. Threads may share it.

    share: the fraction of records that will be read. OptionError if they exceed the free disk space, or if their
    lengths and checksums are not known; StorageError if the folder cannot be written."""

    def __init__(self, records: RecordsInfo, directory: str, share: float) -> None:
        lengths, crcs = records.lengths, records.crcs
        if lengths is None or crcs is None:
            raise OptionError(
                f"cache={directory!r}: a cache on disk needs lengths and checksums of all records in advance, which "
                f"{records.name} does not have. Index the files (python -m pipeline.index), or use cache='ram'."
            )
        self._name, self._index = records.name, SplitIndex(lengths, crcs, [len(lengths)])
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
                f"cannot keep a cache in {folder}: {e.strerror or e}. Give a directory that can be written."
            ) from e
        self._writes = True
        there = int(lengths[self._known].sum(dtype=np.int64))
        up_to = format_bytes(share * size)
        log.info("%s: caching up to %s in %s, which has %s", self._name, up_to, folder, format_bytes(there))
        if (needed := max(0, int(share * size) - there)) > free:
            raise OptionError(
                f"cache={directory!r} needs {format_bytes(needed)} more for {records.name}; {format_bytes(free)} are "
                "free on that disk. Remove old folders there, or give another directory, or take less data."
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
        rows = zip(record_ids.tolist(), places.offset.tolist(), places.crc.tolist(), records, strict=True)
        try:
            for record_id, offset, crc, record in rows:
                if isinstance(record, Proven) and record.crc == crc and self._writes:
                    self._write(record_id, offset, record)
        except OSError as e:
            self._writes = False
            log.warning("%s: nothing more is cached in %s: %s", self._name, self._path, e.strerror or e)

    def read(self, groups: Iterable[Group], ahead_bytes: int) -> Reading:
        """Uses large reads if neighbours are needed soon. A missing record is returned as a CorruptRecordError."""
        return IndexedReading(LocalStorage(), [self._path], self._index, groups, ahead_bytes)

    def _open(self, path: Path, size: int) -> int:
        fd = os.open(path, _OPEN, 0o666)
        weakref.finalize(self, os.close, fd)
        there = os.fstat(fd)
        if not stat.S_ISREG(there.st_mode) or there.st_size > size:
            raise OSError(errno.EEXIST, f"{path.name} is there, but is not the cache of these records")
        os.truncate(fd, size)  # holes where nothing was written
        return fd

    def _write(self, record_id: int, offset: int, record: Proven) -> None:
        header, footer = frame_ends(len(record.payload), record.crc)
        frame_bytes = len(header) + len(record.payload) + len(footer)
        if os.pwritev(self._records, (header, record.payload, footer), offset) == frame_bytes:
            os.pwrite(self._present, b"\1", record_id)
            self._known[record_id] = True
