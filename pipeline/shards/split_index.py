"""The index of a split: length and crc32c of every record, in shard order. Offsets are their
cumulative sum.

It takes 8 bytes per record, in one file. A reader uses it to find a record by its number, and to
prove that it delivers this record."""

import io
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipeline.errors import ShardError
from pipeline.shards.frames import FRAME_BYTES, crc32c
from pipeline.shards.manifest import SplitEntry
from pipeline.shards.naming import index_file
from pipeline.storage.storage import Storage, join

INDEX_HEADER_BYTES = 128  # of an index file, for any number of records
INDEX_ROW_BYTES = 8


@dataclass(frozen=True)
class Location:
    """The places of records; all arrays have one entry per record."""

    shard: np.ndarray  # int64: number of the shard
    record: np.ndarray  # int64: number of the record within its shard
    offset: np.ndarray  # int64: byte at which its frame begins
    length: np.ndarray  # int64: bytes of payload
    crc: np.ndarray  # uint32: crc32c of the payload, unmasked


class SplitIndex:
    """lengths, crcs: uint32 [N] in shard order. shard_records: the number of records in each
    shard."""

    def __init__(self, lengths: np.ndarray, crcs: np.ndarray, shard_records: Sequence[int]):
        self.lengths = lengths
        self.crcs = crcs
        # First record of each shard, and N at the end. Empty shards repeat a number.
        self.shard_starts = np.cumsum([0, *shard_records], dtype=np.int64)

    @cached_property
    def _frame_starts(self) -> np.ndarray:
        """int64 [N + 1]: where each frame would begin if all shards were one file. 8 bytes per
        record."""
        starts = np.zeros(len(self.lengths) + 1, np.int64)
        ends = starts[1:]  # in place: a billion records take 8 GB once, not twice
        ends[:] = self.lengths
        ends += FRAME_BYTES
        np.cumsum(ends, out=ends)
        return starts

    @cached_property
    def _shard_firsts(self) -> list[int]:
        return self.shard_starts.tolist()

    def locate(self, record_ids: np.ndarray) -> Location:
        """The places of records. record_ids: int64 [n], numbers in the split, 0..N-1."""
        ids = np.asarray(record_ids, np.int64)
        shard = np.searchsorted(self.shard_starts, ids, side="right") - 1
        first = self.shard_starts[shard]
        offset = self._frame_starts[ids] - self._frame_starts[first]
        return Location(
            shard, ids - first, offset, self.lengths[ids].astype(np.int64), self.crcs[ids]
        )

    def locate_one(self, record_id: int) -> tuple[int, int, int, int]:
        """Shard, offset, length and crc of one record, as in a Location: 1 us instead of 10 us."""
        shard = bisect_right(self._shard_firsts, record_id) - 1
        starts = self._frame_starts
        offset = starts.item(record_id) - starts.item(self._shard_firsts[shard])
        return shard, offset, self.lengths.item(record_id), self.crcs.item(record_id)

    def shard_bytes(self) -> np.ndarray:
        """int64: the expected size of each shard in bytes."""
        return np.diff(self._frame_starts[self.shard_starts])


def encode_index(rows: np.ndarray) -> bytes:
    """The bytes of an index file: uint32 [N, 2], columns length and crc32c, as .npy (format
    1.0)."""
    buffer = io.BytesIO()
    np.lib.format.write_array(
        buffer, np.ascontiguousarray(rows, "<u4"), version=(1, 0), allow_pickle=False
    )
    return buffer.getvalue()


def decode_rows(data: bytes) -> np.ndarray:
    """The rows of an index file. Raises ValueError for anything but uint32 [N, 2]."""
    try:
        rows = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except Exception as e:  # of any class, because NumPy evaluates the header as Python
        raise ValueError(f"not a NumPy array: {type(e).__name__}: {e}") from e
    if rows.dtype != np.uint32 or rows.ndim != 2 or rows.shape[1] != 2:
        raise ValueError(f"{rows.dtype} {rows.shape} instead of uint32 (N, 2)")
    return rows


def load_index(storage: Storage, directory: str, split: str, entry: SplitEntry) -> SplitIndex:
    """The index of a split, checked against its manifest entry. Raises ShardError naming the
    file."""
    path = join(directory, index_file(split))
    data = storage.read(path)
    if crc32c(data) != entry.index_crc32c:
        raise ShardError(
            f"{path} has crc32c {crc32c(data):08x}, the manifest says {entry.index_crc32c:08x}. It "
            "is damaged or belongs to another conversion; convert the split again, or copy the "
            "directory again."
        )
    try:
        rows = decode_rows(data)
    except ValueError as e:
        raise ShardError(f"{path} is not an index: {e}.") from e
    index = SplitIndex(rows[:, 0], rows[:, 1], [shard.records for shard in entry.shards])
    if len(rows) != entry.num_records or index.shard_bytes().tolist() != [
        s.bytes for s in entry.shards
    ]:
        raise ShardError(
            f"{path} has {len(rows)} records, the manifest's shards have {entry.num_records}, or "
            "their sizes differ. Index and manifest belong to different conversions; convert the "
            "split again."
        )
    return index
