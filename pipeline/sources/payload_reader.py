"""Single payloads by number, from files that stay open.

Reading groups plans ahead and opens a file for each run of ranges, which costs more than reading
one small record. Records that lie in files on a disk are therefore read and checked directly;
whatever is wrong there is left to the reading of groups, which finds it again and names it."""

import functools
import os
from bisect import bisect_right
from collections.abc import Callable

from pipeline.shards.frames import crc32c
from pipeline.sources.concatenated import Concatenated
from pipeline.sources.fixed_length_records import FixedLengthRecords
from pipeline.sources.indexed_records import IndexedRecords
from pipeline.sources.records import Records, fetch_payload

# a process may usually open 1,024; beyond these, a read costs another ~5 us for opening
FILES = 256


class OpenFiles:
    """Reads ranges of files, and keeps up to 256 files open. Threads may share it, and forked
    processes may use it.

    It never moves a file's position, so a forked process can read through the descriptors that it
    has inherited."""

    def __init__(self) -> None:
        # A file is closed once it is neither among these nor in use by a thread.
        self._opened = functools.lru_cache(FILES)(_OpenFile)

    def read(self, path: str, offset: int, size: int) -> bytes:
        """Reads at most `size` bytes; fewer at the end of the file, after a signal, and above 2
        GiB. Raises OSError."""
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
    """A function from a record's number, 0..N-1, to its payload. Threads may share it; it cannot be
    pickled.

    It raises CorruptRecordError naming the record, StorageError, and what else the records' `read`
    raises."""
    if isinstance(records, Concatenated):
        shifts = records.shifts
        starts = records.info.source_starts.tolist()
        readers = [payload_reader(part.records, files) for part in records.parts]

        def of_part(number: int) -> bytes:
            owner = bisect_right(starts, number) - 1
            return readers[owner](number + shifts[owner])

        return of_part
    if isinstance(records, IndexedRecords | FixedLengthRecords) and not records.info.remote:
        place_of = records.place_of

        def in_file(number: int) -> bytes:
            path, offset, length, crc = place_of(number)
            try:
                data = files.read(path, offset, length)
                if len(data) == length and (crc is None or crc32c(data) == crc):
                    return data
            except OSError:  # fetch_payload finds it again, and names it
                pass
            return fetch_payload(records, number)

        return in_file
    return lambda number: fetch_payload(records, number)
