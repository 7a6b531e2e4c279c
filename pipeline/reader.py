"""The records of one split by number: few large reads, each record proven against the index.

Both recipes read through it. It knows neither order nor TensorFlow."""

from collections.abc import Iterable

import numpy as np

from pipeline.reading import Reading, framed_bytes
from pipeline.shards.errors import ShardError
from pipeline.shards.index import load_index
from pipeline.shards.manifest import Manifest, read_manifest
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import Stat, Storage, join

__all__ = ["SplitReader", "open_split"]


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
    def remote(self) -> bool:
        """Whether reads wait for a network."""
        return self._storage.remote

    @property
    def mean_record_bytes(self) -> float:
        """The mean frame."""
        return self.entry.num_bytes / self.num_records

    def framed_bytes(self, record_ids: np.ndarray) -> int:
        """How many bytes these records take on disk."""
        return framed_bytes(self.index, record_ids)

    def read(self, groups: Iterable[np.ndarray], ahead_bytes: int = 0) -> Reading:
        """Payload and crc32c of the records of each group (int64 [n], each in 0..N-1; repeats allowed), as asked for.

        ahead_bytes: how far beyond a group to look for neighbours that one read can bring along. Iterating raises
        CorruptRecordError naming shard, record and offset when bytes are not those that the index promises,
        StorageError when they cannot be read."""
        return Reading(self._storage, self._paths, self.index, groups, ahead_bytes)

    def where(self, record_id: int) -> str:
        """The place of a record, for messages: shard, record within it, offset."""
        place = self.index.locate(np.array([record_id]))
        return (
            f"{self._paths[place.shard[0]]}, record {place.record[0]} at byte {place.offset[0]} "
            f"(record {record_id} of {self.split!r})"
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
