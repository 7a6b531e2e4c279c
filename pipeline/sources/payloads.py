"""One payload at a time, by number: what `records[i]` of a Dataset reads with.

Reading groups plans ahead and opens a file for each run of ranges, which costs more than reading one small record.
Records that lie in files on a disk are therefore read and checked directly, from files that stay open; whatever is
wrong there is left to the reading of groups, which finds it again and names it."""

import functools
import os
from bisect import bisect_right
from collections.abc import Callable

import numpy as np

from pipeline.shards.record import crc32c
from pipeline.sources.concatenated import Concatenated
from pipeline.sources.fixed_length import FixedLengthRecords
from pipeline.sources.indexed_records import IndexedRecords
from pipeline.sources.records import Records, fetch, intact

FILES = 256  # a process may usually open 1,024; beyond these, a read costs another ~5 us for opening


class OpenFiles:
    """Reads ranges of files, and keeps up to 256 files open. Threads may share it, and forked processes may use it.

    It never moves a file's position, so a forked process can read through the descriptors that it has inherited."""

    def __init__(self) -> None:
        # A file is closed once it is neither among these nor in use by a thread.
        self._opened = functools.lru_cache(FILES)(_OpenFile)

    def read(self, path: str, offset: int, size: int) -> bytes:
        """At most `size` bytes; fewer at the end of the file, after a signal, and above 2 GiB. Raises OSError."""
        file = self._opened(path)
        return os.pread(file.fd, size, offset)


class _OpenFile:
    def __init__(self, path: str) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self, close=os.close) -> None:  # bound now: at exit, the module may be gone
        if self.fd >= 0:
            close(self.fd)


def payload_reader(records: Records, files: OpenFiles) -> Callable[[int], bytes]:
    """A function from a record's number, 0..N-1, to its payload. Threads may share it; it cannot be pickled.

    It raises CorruptRecordError naming the record, StorageError, and what else the records' `read` raises."""
    if isinstance(records, Concatenated):
        return _of_parts(records, files)
    if isinstance(records, IndexedRecords | FixedLengthRecords) and not records.info.remote:
        return _in_files(records, files)
    return lambda number: _fetched(records, number)


def _in_files(records: IndexedRecords | FixedLengthRecords, files: OpenFiles) -> Callable[[int], bytes]:
    place_of = records.place_of

    def payload(number: int) -> bytes:
        path, offset, length, crc = place_of(number)
        try:
            found = files.read(path, offset, length)
        except OSError:
            return _fetched(records, number)
        if len(found) == length and (crc is None or crc32c(found) == crc):
            return found
        return _fetched(records, number)

    return payload


def _of_parts(records: Concatenated, files: OpenFiles) -> Callable[[int], bytes]:
    readers = [payload_reader(part.records, files) for part in records.parts]
    starts = records.info.source_starts.tolist()
    inside = [part.which.start - start for part, start in zip(records.parts, starts, strict=False)]

    def payload(number: int) -> bytes:
        owner = bisect_right(starts, number) - 1
        return readers[owner](number + inside[owner])

    return payload


def _fetched(records: Records, number: int) -> bytes:
    return intact(*fetch(records, np.array([number]))).payload
