"""The records of one split of indexed shards: few large reads, each record checked against the index.

The Records of our own datasets, and of foreign TFRecords with an index. No order, no TensorFlow."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.errors import InfeedError, ShardError, printable
from pipeline.shards.example_decoding import decode_example
from pipeline.shards.manifest import Manifest
from pipeline.shards.record import HEADER_BYTES
from pipeline.shards.split_index import load_index
from pipeline.sources.indexed_reading import IndexedReading
from pipeline.sources.records import RECORD_OBJECT_BYTES, ByteRange, Group, RecordsInfo, fetch, intact
from pipeline.sources.tfds_files import tfds_classes
from pipeline.storage.storage import Stat, Storage, join

FILE_NAME_KEYS = ("image/filename", "file_name")
"""The features that hold the name of an image's file: of infeed's schemas, and of TFDS."""


def key_of(dataset: str, split: str, values: Mapping[str, Sequence[Any]]) -> bytes | None:
    """The key of a record in its conversion; None if it cannot be derived from the record.

    FORMAT.md defines this for ImageNet only."""
    if dataset != "imagenet2012" or not values.get("image/filename") or not values.get("image/class/synset"):
        return None
    folder = values["image/class/synset"][0] + b"/" if split == "train" else b""
    return split.encode() + b"/" + folder + values["image/filename"][0]


class IndexedRecords:
    """One split, open for reading: see Records. Threads may share it. crcs and lengths come from the index.

    fingerprint: of the names, sizes and checksums of the shards. Raises: OptionError for an unknown split;
    EmptySplitError for a split without records; ShardError naming what is missing, truncated or replaced, before any
    record is read."""

    def __init__(self, manifest: Manifest, split: str, storage: Storage) -> None:
        self.manifest, self.split, self._storage = manifest, split, storage
        self.entry = manifest.split(split)
        self._paths = [join(manifest.directory, shard.file) for shard in self.entry.shards]
        self._check_shards()
        self.index = load_index(storage, manifest.directory, split, self.entry)
        directory = shlex.quote(manifest.directory)
        self.info = RecordsInfo(
            name=f"{manifest.directory}, split {split!r}",
            fingerprint=self.entry.fingerprint,
            num_records=self.entry.num_records,
            num_bytes=self.entry.num_bytes,
            layout=manifest.schema,
            labels=manifest.labels or tfds_classes(manifest.schema.tfds),
            crcs=self.index.crcs,
            lengths=self.index.lengths,
            remote=storage.remote,
            verify_command=f"python -m pipeline.verify {directory} --split {split} --decode",
            totals=self.entry.totals,
        )

    def block_starts(self, block_records: int) -> np.ndarray:
        """See Records: reading may start at any record."""
        return np.arange(0, self.info.num_records, block_records)

    def weigh(self, record_ids: np.ndarray) -> int:
        return int(self.index.lengths[record_ids].sum(dtype=np.int64)) + RECORD_OBJECT_BYTES * len(record_ids)

    def read(self, groups: Iterable[Group], ahead_bytes: int = 0) -> IndexedReading:
        """See Records. A damaged record is returned as a CorruptRecordError naming shard, record and offset."""
        return IndexedReading(self._storage, self._paths, self.index, groups, ahead_bytes)

    def place_of(self, record_id: int) -> ByteRange:
        """Where a payload is, for reading a single one."""
        shard, offset, length, crc = self.index.locate_one(record_id)
        return ByteRange(self._paths[shard], offset + HEADER_BYTES, length, crc)

    def where(self, record_id: int) -> str:
        """The location of a record, for messages: shard, record within it, offset, and its key if it is known."""
        place = self.index.locate(np.array([record_id]))
        at = f"{self._paths[place.shard[0]]}, record {place.record[0]} at byte {place.offset[0]}"
        return f"{at} (record {record_id} of {self.split!r}{self._key(record_id)})"

    def _key(self, record_id: int) -> str:
        """The part of a message that states a record's key; empty if the record has none or cannot be read."""
        if self.manifest.schema.opaque:
            return ""
        try:
            values = decode_example(intact(*fetch(self, np.array([record_id]))).payload)
        except InfeedError:
            return ""
        key = key_of(self.manifest.name, self.split, values)
        return f", key {printable(key.decode(errors='replace'))}" if key else ""

    def _check_shards(self) -> None:
        """Checks sizes, and the checksums that a bucket stores, with one listing. A disk stores no checksums."""
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
