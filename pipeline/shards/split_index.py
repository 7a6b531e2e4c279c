"""The index of a split: length and crc32c of every record, in shard order. Offsets are their
cumulative sum.

It takes 8 bytes per record, in one file. A reader uses it to find a record by its number, and to
prove that it delivers this record. On a disk the file is mapped, so that all processes of a host
share it. A large one is not read when it is opened: a small file has sizes and checksums of its
parts, each of which is checked when one of its records is first needed."""

import mmap
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Annotated, Any

import msgspec
import numpy as np
from google_crc32c import Checksum

from pipeline.errors import ShardError, StorageError
from pipeline.shards.frames import FRAME_BYTES, crc32c, crc32c_of
from pipeline.shards.manifest import SplitEntry
from pipeline.shards.naming import index_file, parts_file
from pipeline.shards.typed_json import Count, JsonFile, read_sealed
from pipeline.storage.local import LocalStorage
from pipeline.storage.storage import Storage, find_file, join, pieces_of

INDEX_HEADER_BYTES = 128  # of an index file, for any number of records
INDEX_ROW_BYTES = 8
# An index of up to this size has no parts: to check all of it takes 7 ms.
WHOLE_BYTES = 8 * 1024**2
# Of one shard. A part has 128 KiB of the index, which take 0.2 ms when it is first needed.
PART_RECORDS = 16_384
# The offset of every 32nd record is kept, in 4 bytes. For others, lengths are added up.
MARK_RECORDS = 32
_TOGETHER = 1_024  # records whose lengths are added up together: they fit the cache of a core
PARTS_BEGIN = b'{"index_crc32c": '  # of a parts file
_READ_BYTES = 4 * 1024**2
# what to do about a shard or an index that is not the one in the manifest
MEND = "copy the directory again, convert the split again or, for indexed files, run infeed index"
Crc = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


@dataclass(frozen=True)
class Location:
    """The places of records; all arrays have one entry per record."""

    shard: np.ndarray  # int64: number of the shard
    record: np.ndarray  # int64: number of the record within its shard
    offset: np.ndarray  # int64: byte at which its frame begins
    length: np.ndarray  # int64: bytes of payload
    crc: np.ndarray  # uint32: crc32c of the payload, unmasked


@dataclass(frozen=True)
class Parts:
    """Up to 16,384 consecutive records of one shard are a part. Of each part, in order: the crc32c
    of its rows of the index, the bytes of its frames, the sum of its records' crcs modulo 2**32.

    index_crc32c: of the index file."""

    index_crc32c: Crc
    crc32c: tuple[Crc, ...]
    bytes: tuple[Count, ...]
    crc_sum: tuple[Crc, ...]

    @property
    def columns(self) -> np.ndarray:
        """int64 [3, parts]: crc32c, bytes and crc_sum."""
        return np.array((self.crc32c, self.bytes, self.crc_sum), np.int64)


def part_columns(rows: np.ndarray) -> np.ndarray:
    """int64 [3, parts]: crc32c, bytes and crc_sum of each part of one shard, see Parts. rows: of
    the index, uint32 [n, 2], contiguous."""
    columns = [
        (
            crc32c(part),
            int(part[:, 0].sum(dtype=np.int64)) + FRAME_BYTES * len(part),
            int(part[:, 1].sum(dtype=np.int64)) % 2**32,
        )
        for part in (rows[at : at + PART_RECORDS] for at in range(0, len(rows), PART_RECORDS))
    ]
    return np.array(columns, np.int64).reshape(-1, 3).T


class SplitIndex:
    """Finds records. Threads may share it. Raises ShardError when it first looks for a record of a
    damaged part.

    rows: of the index, uint32 [N, 2]. shard_records: the number of records in each shard. parts:
    the columns of all Parts; None to compute them. path: of the file that has the rows. mapped:
    whether rows are that file; a pickled copy then maps it again."""

    def __init__(
        self,
        rows: np.ndarray,
        shard_records: Sequence[int] | np.ndarray,
        parts: np.ndarray | None = None,
        path: str = "the index",
        mapped: bool = False,
    ) -> None:
        self._rows = np.ascontiguousarray(rows, "<u4")
        # First record of each shard, and N at the end. Empty shards repeat a number.
        self.shard_starts = np.cumsum([0, *shard_records], dtype=np.int64)
        shards = range(len(shard_records))
        if parts is None:
            parts = np.concatenate([part_columns(self.shard_rows(each)) for each in shards], axis=1)
        self.parts = parts
        self._path = path
        self._mapped = mapped
        counts = -(-np.diff(self.shard_starts) // PART_RECORDS)
        self._shards = np.repeat(shards, counts)  # of each part
        firsts = (np.cumsum(counts) - counts)[self._shards]  # the first part of its shard
        starts = self.shard_starts[self._shards] + PART_RECORDS * (np.arange(len(firsts)) - firsts)
        self._starts = np.append(starts, self.shard_starts[-1])  # first record of each part, and N
        before = np.cumsum(parts[1]) - parts[1]
        self._offsets = before - before[firsts]  # byte of its shard at which each part begins
        self._proven = np.zeros(len(firsts), bool)
        marks = -(-np.diff(self._starts) // MARK_RECORDS)
        self._first_marks = np.cumsum(marks) - marks
        # bytes of its part before each mark; pages that are not needed take no memory
        self._marks = np.zeros(marks.sum(), np.min_scalar_type(parts[1].max(initial=0)))
        # Of arrays of 8 bytes, take() is fast and copies nothing.
        self._words = self._rows.reshape(-1).view("<u8")
        # for single records: an item of an array takes twice as long
        self._values = self._rows.reshape(-1).data
        self._start_list = self._starts.tolist()

    def __reduce__(self) -> tuple[Any, ...]:
        shard_records = np.diff(self.shard_starts)
        if self._mapped:
            return _mapped_again, (self._path, shard_records, self.parts)
        return SplitIndex, (self._rows, shard_records, self.parts, self._path)

    @property
    def lengths(self) -> np.ndarray:
        """uint32 [N]: bytes of each payload. Parts of a large index may not have been checked."""
        return self._rows[:, 0]

    @property
    def crcs(self) -> np.ndarray:
        """uint32 [N]: crc32c of each payload, as lengths."""
        return self._rows[:, 1]

    @property
    def crc_sum(self) -> int:
        """The sum of crcs modulo 2**32."""
        return int(self.parts[2].sum()) % 2**32

    def shard_rows(self, shard: int) -> np.ndarray:
        """uint32 [n, 2]: the rows of one shard."""
        first, end = self.shard_starts[shard : shard + 2]
        return self._rows[first:end]

    def shard_bytes(self) -> np.ndarray:
        """int64: the expected size of each shard in bytes."""
        sizes = np.bincount(self._shards, self.parts[1], len(self.shard_starts) - 1)
        return sizes.astype(np.int64)  # exactly, below 2**53

    def locate(self, record_ids: np.ndarray) -> Location:
        """The places of records. record_ids: int64 [n], numbers in the split, 0..N-1."""
        ids = np.asarray(record_ids, np.int64)
        part = np.searchsorted(self._starts, ids, side="right") - 1
        self._prove(part)
        offset = np.zeros(len(ids), np.int64)
        for at in range(0, len(ids), _TOGETHER):
            piece = slice(at, at + _TOGETHER)
            offset[piece] = self._offsets_of(ids[piece], part[piece])
        shard = self._shards[part]
        rows = self._words[ids].view(np.uint32).reshape(-1, 2)
        lengths = rows[:, 0].astype(np.int64)
        return Location(shard, ids - self.shard_starts[shard], offset, lengths, rows[:, 1])

    def locate_one(self, record_id: int) -> tuple[int, int, int, int]:
        """Shard, offset, length and crc of one record, as in a Location: 2 us instead of 50 us."""
        part = bisect_right(self._start_list, record_id) - 1
        if not self._proven.item(part):
            self._prove(np.array([part]))
        mark, beyond = divmod(record_id - self._start_list[part], MARK_RECORDS)
        offset = self._offsets.item(part) + self._marks.item(self._first_marks.item(part) + mark)
        at = 2 * record_id
        offset += sum(self._values[at - 2 * beyond : at : 2]) + FRAME_BYTES * beyond
        return self._shards.item(part), offset, self._values[at], self._values[at + 1]

    def _offsets_of(self, ids: np.ndarray, part: np.ndarray) -> np.ndarray:
        mark, beyond = np.divmod(ids - self._starts[part], MARK_RECORDS)
        new = np.diff(ids - beyond, prepend=-1) != 0  # neighbours often have the same mark
        which = np.cumsum(new) - 1
        part = part[new]
        marks = self._marks[self._first_marks[part] + mark[new]].astype(np.int64)
        rows = (ids - beyond)[new, np.newaxis] + np.arange(MARK_RECORDS)
        lengths = self._words.take(rows, mode="clip").view(np.uint32)[:, ::2]
        sums = np.zeros((len(part), MARK_RECORDS + 1), np.int64)
        np.cumsum(lengths, axis=1, out=sums[:, 1:])
        return (self._offsets[part] + marks)[which] + sums[which, beyond] + FRAME_BYTES * beyond

    def _prove(self, parts: np.ndarray) -> None:
        """Checks those of these parts that have not been, and marks their records."""
        unproven = parts[~self._proven[parts]]
        for part in np.unique(unproven).tolist() if len(unproven) else ():
            first, end = self._start_list[part : part + 2]
            rows = self._rows[first:end]
            expected = self.parts[0, part]
            if (crc := crc32c(rows)) != expected:
                raise ShardError(
                    f"{self._path} has crc32c {crc:08x} in the rows of records {first}..{end - 1}, "
                    f"not {expected:08x}. It is damaged or belongs to another conversion; "
                    f"{MEND}."
                )
            frames = rows[:, 0].astype(np.int64) + FRAME_BYTES
            sums = np.add.reduceat(frames, np.arange(0, len(frames), MARK_RECORDS))
            at = self._first_marks[part]
            self._marks[at : at + len(sums)] = np.cumsum(sums) - sums
            self._proven[part] = True  # last, because other threads read it


def _mapped_again(path: str, shard_records: np.ndarray, parts: np.ndarray) -> SplitIndex:
    rows = decode_rows(LocalStorage().map(path))
    return SplitIndex(rows, shard_records, parts, path, mapped=True)


def decode_rows(data: bytes | mmap.mmap) -> np.ndarray:
    """The rows of an index file, a view of its bytes. Raises ValueError for anything but uint32 [N,
    2]."""
    header = BytesIO(data[: 16 * INDEX_HEADER_BYTES])
    try:
        np.lib.format.read_magic(header)
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(header)
        if dtype == np.uint32 and len(shape) == 2 and shape[1] == 2 and not fortran_order:
            return np.frombuffer(data, "<u4", 2 * shape[0], header.tell()).reshape(shape)
    except Exception as e:  # of any class, because NumPy evaluates the header as Python
        raise ValueError(f"not a NumPy array: {type(e).__name__}: {e}") from e
    raise ValueError(f"{dtype} {shape} instead of uint32 (N, 2)")


def load_index(
    storage: Storage,
    directory: str,
    split: str,
    entry: SplitEntry,
    *,
    check_all: bool = False,
    index_dir: str | None = None,
) -> SplitIndex:
    """The index of a split, checked against its manifest entry: completely, or where it is large
    and has a parts file, by its parts when they are needed. Raises ShardError naming the file.

    index_dir: a directory of this host for a copy of an index that is in a bucket; None holds it in
    memory. All of it is checked then, as caches copy it."""
    path = join(directory, index_file(split))
    files = storage
    if index_dir and storage.remote:
        files = LocalStorage()
        path = _copy(storage, path, join(index_dir, f"{entry.index_crc32c:08x}.npy"), entry)
    stat = None if files.remote else find_file(files, path)
    mapped = stat is not None and stat.bytes > WHOLE_BYTES  # each map takes a file descriptor
    data = files.map(path) if mapped else files.read(path)
    by_parts = len(data) > WHOLE_BYTES and not check_all and not index_dir
    parts = find_parts(storage, directory, split, entry) if by_parts else None
    if parts is None:
        remedy = MEND if files is storage else "delete it, and it is copied again"
        _check(path, crc32c_of(_pieces(data)), entry, remedy)
    try:
        rows = decode_rows(data)
    except ValueError as e:
        raise ShardError(f"{path} is not an index: {e}.") from e
    if len(rows) == entry.num_records:
        records = [shard.records for shard in entry.shards]
        index = SplitIndex(rows, records, parts, path, mapped=mapped)
        if index.shard_bytes().tolist() == [shard.bytes for shard in entry.shards]:
            return index
    raise ShardError(
        f"{path} has {len(rows)} records, the manifest's shards have {entry.num_records}, or "
        f"their sizes differ. Index and manifest belong to different conversions; {MEND}."
    )


def _pieces(data: bytes | mmap.mmap) -> Iterator[bytes]:
    return (data[at : at + _READ_BYTES] for at in range(0, len(data), _READ_BYTES))


def _check(path: str, crc: int, entry: SplitEntry, remedy: str = MEND) -> None:
    if crc != entry.index_crc32c:
        raise ShardError(
            f"{path} has crc32c {crc:08x}, the manifest says {entry.index_crc32c:08x}. It is "
            f"damaged or belongs to another conversion; {remedy}."
        )


def _copy(storage: Storage, path: str, copy: str, entry: SplitEntry) -> str:
    """The path of a copy on this host. Processes that start together may each make it."""
    local = LocalStorage()
    if not local.exists(copy):
        checksum = Checksum()
        pieces = pieces_of(storage, path, storage.stat(path).bytes, _READ_BYTES, checksum)
        with local.publish(copy) as sink:
            for piece in pieces:
                sink.write(piece)
            _check(path, int.from_bytes(checksum.digest(), "big"), entry)
    return copy


def find_parts(
    storage: Storage, directory: str, split: str, entry: SplitEntry
) -> np.ndarray | None:
    """The columns of a split's parts; None if they are missing, damaged or of another index."""
    path = join(directory, parts_file(split))
    try:
        parts = read_sealed(JsonFile(path, ShardError, ""), storage.read(path), Parts)
    except (ShardError, StorageError):
        return None
    count = sum(-(-shard.records // PART_RECORDS) for shard in entry.shards)
    lengths = {count, *map(len, (parts.crc32c, parts.bytes, parts.crc_sum))}
    same = parts.index_crc32c == entry.index_crc32c and len(lengths) == 1
    return parts.columns if same else None
