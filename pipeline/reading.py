"""Reading records in a known order: large reads where neighbours are wanted soon, each record read once.

What a reader's `read` returns. Bytes are proven against the index as they arrive, and kept until they are used."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from pipeline.lookahead import Lookahead
from pipeline.records import Group, Proven, Record
from pipeline.shards.errors import CorruptRecordError
from pipeline.shards.index import Location, SplitIndex
from pipeline.shards.record import FRAME_BYTES, payload_of
from pipeline.shards.storage import Storage

__all__ = ["ShardReading", "framed_bytes", "read_starts"]

MERGE_GAP_BYTES = 16 * 1024  # reading over a gap of this size costs what one more request does (local: ~5 us)
MAX_READ_BYTES = 4 * 1024**2


class Places(Protocol):
    """Where the records of some files are: what a SplitIndex says."""

    lengths: np.ndarray

    def locate(self, record_ids: np.ndarray) -> Location:
        """See SplitIndex."""
        ...


class ShardReading(Iterable[list[Record]]):
    """See Reading: the records of groups, from indexed shards."""

    frame_bytes = FRAME_BYTES  # of each record, beside its payload

    def __init__(
        self,
        storage: Storage,
        paths: Sequence[str],
        index: Places,
        groups: Iterable[Group],
        ahead_bytes: int,
    ) -> None:
        self.held_bytes = 0  # of records that are asked for, or wait for their use
        self._storage, self._paths, self._index, self._ahead_bytes = storage, paths, index, ahead_bytes
        self._lookahead = Lookahead(groups, ahead_bytes)
        self._planned: deque[tuple[np.ndarray, int]] = deque()  # groups, and how many reads must be done for each
        self._asked: deque[_Read] = deque()
        self._reads_planned = self._reads_done = 0
        self._kept: dict[int, Record] = {}
        self._more = True

    def __iter__(self) -> Iterator[list[Record]]:
        while self._more:
            # A storage may take ranges far ahead of those that it gives, so that their requests are under way.
            for data in self._storage.read_ranges(self._ranges()):
                self._keep(self._asked.popleft(), data)
                yield from self._whole()
            yield from self._whole()

    def _ranges(self) -> Iterator[tuple[str, int, int]]:
        idle_bytes = 0
        for group in self._lookahead:
            reads = self._reads()
            self._reads_planned += len(reads)
            self._planned.append((group, self._reads_planned))
            for read in reads:
                self._asked.append(read)
                self.held_bytes += read.payload_bytes
                yield self._paths[read.shard], read.offset, read.size
            # Small data is kept whole: there is something to deliver for ever, and nothing to read.
            idle_bytes = 0 if reads else idle_bytes + self._lookahead.due_weight
            if idle_bytes > self._ahead_bytes:
                return
        self._more = False

    def _reads(self) -> "list[_Read]":
        ids, starts = self._lookahead.due(lambda ids: read_starts(self._index.locate(ids)))
        if not len(ids):
            return []
        location = self._index.locate(ids)
        lasts = np.append(starts[1:], len(ids)) - 1
        offsets = location.offset[starts]
        sizes = location.offset[lasts] + location.length[lasts] + self.frame_bytes - offsets
        payload_bytes = np.add.reduceat(location.length, starts)
        columns = (location.shard[starts], offsets, sizes, payload_bytes, starts, lasts + 1)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        records = _Records(ids, location)
        return [_Read(*row, records) for row in rows]  # pyright: ignore[reportCallIssue]

    def _keep(self, read: "_Read", data: bytes) -> None:
        assert len(data) == read.size
        self._reads_done += 1
        for record_id, record, offset, length, crc in read.records.rows(read.first, read.end):
            try:
                self._kept[record_id] = self.proven(data, offset - read.offset, length, crc)
            except CorruptRecordError as e:
                where = f"{self._paths[read.shard]}, record {record} at byte {offset}"
                self._kept[record_id] = CorruptRecordError(f"{where}: {e}")

    def proven(self, data: bytes, begin: int, length: int, crc: int) -> Proven:
        """The record whose frame begins at `begin`. Raises CorruptRecordError, which does not say where."""
        # The checksum goes with the very bytes that it was found to be of: it proves what is delivered.
        return Proven(payload_of(data, begin, length=length, crc=crc), crc)

    def _whole(self) -> Iterator[list[Record]]:
        while self._planned and self._planned[0][1] <= self._reads_done:
            group, _ = self._planned.popleft()
            records = [self._kept[record_id] for record_id in group.tolist()]
            for record_id in self._lookahead.used(group):
                del self._kept[record_id]
                self.held_bytes -= int(self._index.lengths[record_id])
            yield records


class _Records(NamedTuple):
    """Records that are read in one go."""

    ids: np.ndarray
    location: Location

    def rows(self, first: int, end: int) -> Iterable[tuple[int, int, int, int, int]]:
        """Number in the split, number in the shard, offset, length and crc of each from `first` to `end`."""
        where = self.location
        columns = (self.ids, where.record, where.offset, where.length, where.crc)
        return zip(*(column[first:end].tolist() for column in columns), strict=True)


class _Read(NamedTuple):
    """One ranged read, of the records first..end of `records`."""

    shard: int
    offset: int
    size: int
    payload_bytes: int
    first: int
    end: int
    records: _Records


def framed_bytes(index: SplitIndex, record_ids: np.ndarray) -> int:
    """How many bytes these records take on disk."""
    return int(index.lengths[record_ids].sum(dtype=np.int64)) + FRAME_BYTES * len(record_ids)


def read_starts(location: Location) -> np.ndarray:
    """At which records a read begins, int64: one read covers neighbours, and those with small gaps.

    The location must be ascending, without repeats, of one record at least."""
    ends = location.offset + location.length + FRAME_BYTES
    new = np.ones(len(ends), bool)
    new[1:] = (
        (np.diff(location.shard) != 0)
        | (location.offset[1:] - ends[:-1] > MERGE_GAP_BYTES)
        | (np.diff(location.offset // MAX_READ_BYTES) != 0)
    )
    return np.flatnonzero(new)
