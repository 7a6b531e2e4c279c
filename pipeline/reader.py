"""The records of one split by number: few large reads, each record proven against the index.

Both recipes read through it. It knows neither order nor TensorFlow."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from pipeline.shards.errors import ShardError
from pipeline.shards.index import Location, load_index
from pipeline.shards.manifest import Manifest, read_manifest
from pipeline.shards.record import FRAME_BYTES, payload_of
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import Stat, Storage, join

__all__ = ["SplitReader", "open_split"]

MERGE_GAP_BYTES = 16 * 1024  # reading over a gap of this size costs what one more request does (local: ~5 us)
MAX_READ_BYTES = 4 * 1024**2


def open_split(data_dir: str, split: str, storage: Storage | None = None) -> "SplitReader":
    """A reader of one split of a converted dataset, after checking the index and the size of every shard.

    Raises: ManifestError without a manifest; OptionError for an unknown split; EmptySplitError for one without
    records; ShardError naming what is missing, truncated or replaced, before any record is read."""
    storage = storage or open_storage(data_dir)
    return SplitReader(read_manifest(data_dir, storage), split, storage)


class SplitReader:
    """One split, open for reading. Threads may share it."""

    def __init__(self, manifest: Manifest, split: str, storage: Storage) -> None:
        self.manifest, self.split = manifest, split
        self.entry = manifest.split(split)
        self._storage = storage
        self._paths = [join(manifest.directory, shard.file) for shard in self.entry.shards]
        self._check_shards()
        self.index = load_index(storage, manifest.directory, split, self.entry)

    @property
    def num_records(self) -> int:
        """N."""
        return self.entry.num_records

    @property
    def mean_record_bytes(self) -> float:
        """The mean frame."""
        return self.entry.num_bytes / self.num_records

    def framed_bytes(self, record_ids: np.ndarray) -> int:
        """How many bytes these records take on disk."""
        return int(self.index.lengths[record_ids].sum(dtype=np.int64)) + FRAME_BYTES * len(record_ids)

    def read(self, groups: Iterable[np.ndarray]) -> Iterator[list[bytes]]:
        """The payloads of each group of records (int64 [n], each in 0..N-1; repeats allowed), in the order asked for.

        Groups are asked for as the storage reads ahead, so that requests of the next are under way with those of this.
        Raises CorruptRecordError naming shard, record and offset when bytes are not those that the index promises,
        StorageError when they cannot be read."""
        plans: deque[_Plan] = deque()  # of the groups that the storage has taken ranges of
        for data in self._storage.read_ranges(self._planned(groups, plans)):
            yield from _finished(plans)  # without records
            plan = plans[0]
            plan.cut.extend(self._cut(plan.location, *plan.runs[-plan.missing], data))
            plan.missing -= 1
            yield from _finished(plans)
        yield from _finished(plans)

    def _planned(self, groups: Iterable[np.ndarray], plans: "deque[_Plan]") -> Iterator[tuple[str, int, int]]:
        for record_ids in groups:
            unique, inverse = np.unique(np.asarray(record_ids, np.int64), return_inverse=True)
            location = self.index.locate(unique)
            runs = merged_runs(location) if len(unique) else []
            plans.append(_Plan(location, inverse, runs, len(runs)))
            yield from ((self._paths[shard], offset, size) for _, _, shard, offset, size in runs)

    def where(self, record_id: int) -> str:
        """The place of a record, for messages: shard, record within it, offset."""
        place = self.index.locate(np.array([record_id]))
        return (
            f"{self._paths[place.shard[0]]}, record {place.record[0]} at byte {place.offset[0]} "
            f"(record {record_id} of {self.split!r})"
        )

    def _cut(
        self, location: Location, first: int, last: int, shard: int, offset: int, size: int, data: bytes
    ) -> Iterator[bytes]:
        assert len(data) == size
        columns = (location.record, location.offset, location.length, location.crc)
        for record, start, length, crc in zip(*(column[first:last].tolist() for column in columns), strict=True):
            begin = start - offset
            yield payload_of(
                data[begin : begin + length + FRAME_BYTES],
                length=length,
                crc=crc,
                where=f"{self._paths[shard]}, record {record} at byte {start}",
            )

    def _check_shards(self) -> None:
        """By one listing: sizes, and the checksums that a bucket keeps. A disk keeps none."""
        there = self._storage.list(self.manifest.directory)
        wrong = []
        for path, shard in zip(self._paths, self.entry.shards, strict=True):
            found = there.get(shard.file)
            if found is None:
                wrong.append(f"{path} is missing.")
            elif not found.agrees_with(ours := Stat(shard.bytes, shard.crc32c)):
                wrong.append(f"{path} has {found}, the manifest says {ours}.")
        if wrong:
            more = f" And {len(wrong) - 1} more shards of {self.split!r}." if len(wrong) > 1 else ""
            raise ShardError(
                f"{wrong[0]}{more} The shard is truncated, replaced or lost: convert the split again, or copy it again."
            )


@dataclass
class _Plan:
    """How one group is read: runs of neighbours, of which the last `missing` are still to come."""

    location: Location
    inverse: np.ndarray
    runs: list[tuple[int, int, int, int, int]]
    missing: int
    cut: list[bytes] = field(default_factory=list)

    def payloads(self) -> list[bytes]:
        return [self.cut[i] for i in self.inverse]


def _finished(plans: deque[_Plan]) -> Iterator[list[bytes]]:
    while plans and not plans[0].missing:
        yield plans.popleft().payloads()


def merged_runs(location: Location) -> list[tuple[int, int, int, int, int]]:
    """Which records one read covers, as (first, last + 1, shard, offset, bytes): neighbours, and those with small gaps.

    The location must be ascending and without repeats."""
    ends = location.offset + location.length + FRAME_BYTES
    new = np.ones(len(ends), bool)
    new[1:] = (
        (np.diff(location.shard) != 0)
        | (location.offset[1:] - ends[:-1] > MERGE_GAP_BYTES)
        | (np.diff(location.offset // MAX_READ_BYTES) != 0)
    )
    firsts = np.flatnonzero(new)
    lasts = np.append(firsts[1:], len(ends))
    offsets = location.offset[firsts]
    columns = (firsts, lasts, location.shard[firsts], offsets, ends[lasts - 1] - offsets)
    return list(zip(*(column.tolist() for column in columns), strict=True))
