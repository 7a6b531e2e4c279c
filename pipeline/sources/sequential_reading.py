"""Reading files from their fronts, with their records in any order: records passed on the way are kept if in sight.

Returned by SequentialRecords.read. A record that was passed before it came into sight costs another pass over its file,
from the front."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pipeline.errors import CorruptRecordError, ShardError
from pipeline.shards.frames import Frame
from pipeline.sources.lookahead import Lookahead
from pipeline.sources.records import RECORD_OBJECT_BYTES, Group, Proven, Record
from pipeline.sources.sequential_file import Content, SequentialFile, frames_of
from pipeline.storage.storage import Storage

MAX_CURSORS = 128  # 64 streams, each moving from one file to the next
LEAST_BATCH_BYTES, MOST_BATCH_BYTES, MOST_REMOTE_BATCH_BYTES = 1 << 16, 1 << 20, 1 << 24  # read from a file at a time


class CountedFile(NamedTuple):
    """A file, its content, and the number of its first record."""

    file: SequentialFile
    content: Content
    first: int
    counted_by: str  # in errors, before the expected number of records


class SequentialReading(Iterable[list[Record]]):
    """See Reading: the records of groups, from files that can only be read from their fronts."""

    def __init__(
        self, storage: Storage, files: Sequence[CountedFile], groups: Iterable[Group], ahead_bytes: int
    ) -> None:
        self.held_bytes = 0
        self._storage, self._files = storage, files
        self._firsts = np.array([file.first for file in files])
        self._ahead_bytes = ahead_bytes
        self._lookahead = Lookahead(groups, ahead_bytes)
        self._cursors: dict[int, list[_Cursor]] = defaultdict(list)  # by file
        self._owners: dict[_Cursor, int] = {}  # of all cursors, the least recently used first
        self._kept: dict[int, Record] = {}

    def __iter__(self) -> Iterator[list[Record]]:
        for group in self._lookahead:
            due, _ = self._lookahead.due(lambda ids: np.arange(len(ids)))
            self._read(due)
            found = [self._kept[record_id] for record_id in group.tolist()]
            for record_id in self._lookahead.used(group):
                self.held_bytes -= _held_bytes(self._kept.pop(record_id))
            yield found

    def _read(self, due: np.ndarray) -> None:
        """Keeps the records that are due (ascending), and those passed on the way that are in sight."""
        owners = (np.searchsorted(self._firsts, due, side="right") - 1).tolist()
        for record_id, owner in zip(due.tolist(), owners, strict=True):
            if record_id not in self._kept:
                self._pass_to(record_id, owner)

    def _pass_to(self, record_id: int, owner: int) -> None:
        counted = self._files[owner]
        cursor = self._cursor(owner, record_id - counted.first)
        count = record_id - counted.first + 1 - cursor.next
        for passed in itertools.islice(cursor.frames, count):
            number = counted.first + cursor.next
            cursor.next += 1
            if self._lookahead.sees(number) and number not in self._kept:
                self._kept[number] = record = _record(counted.file, passed)
                self.held_bytes += _held_bytes(record)
        if counted.first + cursor.next <= record_id:
            raise _miscounted(counted, f"has {cursor.next} records")
        if cursor.next == counted.content.records:
            self._close(owner, cursor)
            if next(cursor.frames, None):  # reads on, to the checksum at the end of a compressed file
                raise _miscounted(counted, "has more records")

    def _cursor(self, owner: int, record: int) -> "_Cursor":
        """The file's nearest cursor before a record."""
        before = (cursor for cursor in self._cursors[owner] if cursor.next <= record)
        nearest = max(before, key=lambda cursor: cursor.next, default=None) or self._opened(owner)
        self._owners[nearest] = self._owners.pop(nearest, owner)
        return nearest

    def _opened(self, owner: int) -> "_Cursor":
        if len(self._owners) == MAX_CURSORS:
            oldest = next(iter(self._owners))
            self._close(self._owners[oldest], oldest)
        file, content, *_ = self._files[owner]
        cursor = _Cursor(frames_of(self._storage, file, self._batch_bytes, max_bytes=content.bytes))
        self._cursors[owner].append(cursor)
        return cursor

    def _close(self, owner: int, cursor: "_Cursor") -> None:
        self._cursors[owner].remove(cursor)
        if not self._cursors[owner]:
            del self._cursors[owner]
        del self._owners[cursor]

    def _batch_bytes(self) -> int:
        """So that all cursors together hold at most half the budget; held_bytes does not include it."""
        most = MOST_REMOTE_BATCH_BYTES if self._storage.remote else MOST_BATCH_BYTES
        return min(most, max(LEAST_BATCH_BYTES, self._ahead_bytes // (2 * max(1, len(self._owners)))))


class _Cursor:
    def __init__(self, frames: Iterator[Frame]) -> None:
        self.frames, self.next = frames, 0


def _record(file: SequentialFile, frame: Frame) -> Record:
    if not frame.problem:
        return Proven(frame.payload, frame.crc)
    return CorruptRecordError(
        f"{file.path}, record {frame.record} at byte {frame.offset}: {frame.problem}. Copy the file again, or convert "
        "without the record: python -m converters.tfrecord_to_gcs."
    )


def _held_bytes(record: Record) -> int:
    return RECORD_OBJECT_BYTES + (len(record.payload) if isinstance(record, Proven) else 0)


def _miscounted(counted: CountedFile, found: str) -> ShardError:
    return ShardError(
        f"{counted.file.path} {found}; {counted.counted_by} {counted.content.records}. Copy the file again, or "
        "the metadata next to it."
    )
