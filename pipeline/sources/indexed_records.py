"""The records of one split of indexed shards: few large reads, each record checked against the
index.

The Records of our own datasets, and of foreign TFRecords with an index. They are read in an order
known in advance: neighbours needed soon share a large read, and each record is read once. Payloads
are checked as they arrive and kept until used. Frames are not checked: damage to a frame alone
changes no record, and pipeline.commands.verify finds it."""

import shlex
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from pipeline.description import description_of
from pipeline.errors import CorruptRecordError, InfeedError, ShardError, printable
from pipeline.shards.copies import copies_elsewhere
from pipeline.shards.example_decoding import decode_example
from pipeline.shards.frames import FRAME_BYTES, HEADER_BYTES, crc32c, proven_crc
from pipeline.shards.manifest import Manifest
from pipeline.shards.split_index import MEND, Location, SplitIndex, load_index
from pipeline.sources.lookahead import Lookahead
from pipeline.sources.named_splits import tfds_classes
from pipeline.sources.records import (
    RECORD_OBJECT_BYTES,
    ByteRange,
    Groups,
    ReadDirectly,
    Record,
    RecordsInfo,
    fetch_payload,
)
from pipeline.storage.storage import Storage, join

# reading across a gap of this size costs as much as another request (local: ~5 us)
MERGE_GAP_BYTES = 16 * 1024
MAX_READ_BYTES = 4 * 1024**2
# slicing this much out of a larger read costs as much as a separate read (local: ~5 us)
COPY_BYTES = 48 * 1024
# of the name of an image's file: in infeed's schemas, and in TFDS
FILE_NAME_KEYS = ("image/filename", "file_name")


class Places(Protocol):
    """Where records are in their files; implemented by SplitIndex."""

    @property
    def lengths(self) -> np.ndarray: ...

    def locate(self, record_ids: np.ndarray) -> Location: ...


class IndexedReading(Iterable[list[Record]]):
    """See Reading: the records of groups, from indexed shards."""

    header_bytes = HEADER_BYTES  # from the start of a record to its payload
    checked = True  # against the index

    def __init__(
        self,
        storage: Storage,
        paths: Sequence[str],
        index: Places,
        groups: Groups,
        ahead_bytes: int,
    ) -> None:
        self.held_bytes = 0  # of records that have been requested or are waiting to be used
        self._storage = storage
        self._paths = paths
        self._index = index
        self._ahead_bytes = ahead_bytes
        self._join_bytes = MAX_READ_BYTES if storage.remote else COPY_BYTES
        self._lookahead = Lookahead(groups, ahead_bytes, partial(places_of, index))
        # groups, and the reads that each waits for
        self._planned = deque[tuple[np.ndarray, int]]()
        self._asked = deque[_Read]()
        self._reads_planned = self._reads_done = 0
        self._kept = dict[int, Record]()
        self._more = True

    def __iter__(self) -> Iterator[list[Record]]:
        while self._more:
            # A storage may take ranges far ahead of the data it yields, to keep requests in flight.
            for data in self._storage.read_ranges(self._ranges()):
                self._keep(self._asked.popleft(), data)
                yield from self._complete_groups()
            yield from self._complete_groups()

    def _ranges(self) -> Iterator[tuple[str, int, int]]:
        idle_bytes = 0
        for group in self._lookahead:
            reads = self._reads()
            self._reads_planned += len(reads)
            self._planned.append((group, self._reads_planned))
            for read in reads:
                self._asked.append(read)
                self.held_bytes += read.held_bytes
                yield self._paths[read.shard], read.offset, read.size
            # Small data is kept completely: there are always groups to deliver and nothing to read.
            idle_bytes = 0 if reads else idle_bytes + self._lookahead.due_weight
            if idle_bytes > self._ahead_bytes:
                return
        self._more = False

    def _reads(self) -> "list[_Read]":
        places, starts = self._lookahead.due(partial(read_starts, join_bytes=self._join_bytes))
        if not len(starts):
            return []
        ids, *columns = places
        where = Location(*columns)
        ends = np.append(starts[1:], len(ids))
        # From the first payload to the end of the last, so that the range of a single record is its
        # payload.
        offsets = where.offset[starts] + self.header_bytes
        sizes = where.offset[ends - 1] + self.header_bytes + where.length[ends - 1] - offsets
        # a payload may be empty, a range may not: it then contains a byte of the footer
        sizes = np.maximum(sizes, 1)
        held = np.add.reduceat(where.length + RECORD_OBJECT_BYTES, starts)
        begins = where.offset + self.header_bytes - np.repeat(offsets, ends - starts)
        places = list(zip(begins.tolist(), (begins + where.length).tolist(), strict=True))
        records = (ids.tolist(), places, where.crc.tolist())
        columns = (where.shard[starts], offsets, sizes, held, starts, ends)
        reads = list[_Read]()
        for *place, first, end in zip(*(each.tolist() for each in columns), strict=True):
            reads.append(_Read(*place, *(each[first:end] for each in records)))
        return reads

    def _keep(self, read: "_Read", data: bytes) -> None:
        assert len(data) == read.size
        self._reads_done += 1
        payloads = [data[begin:end] for begin, end in read.places]  # of a single record: no copy
        crcs = list(map(crc32c, payloads))
        # The checksum stays with the bytes it was computed from: it proves what is delivered.
        self._kept.update(zip(read.ids, zip(payloads, crcs, strict=True), strict=True))
        if self.checked and crcs != read.crcs:
            where = partial(place_in_words, self._paths, self._index)
            for record_id, payload, crc in zip(read.ids, payloads, read.crcs, strict=True):
                try:
                    proven_crc(payload, crc)
                except CorruptRecordError as e:
                    self._kept[record_id] = CorruptRecordError(f"{where(record_id)}: {e}")

    def _complete_groups(self) -> Iterator[list[Record]]:
        while self._planned and self._planned[0][1] <= self._reads_done:
            group, _ = self._planned.popleft()
            last = self._lookahead.used(group)
            take = self._kept.pop if len(last) == len(group) else self._kept.__getitem__
            records = list(map(take, group.tolist()))
            if len(last) < len(group):
                for record_id in last.tolist():
                    del self._kept[record_id]
            held = self._index.lengths[last].sum(dtype=np.int64) + RECORD_OBJECT_BYTES * len(last)
            self.held_bytes -= int(held)
            yield records


class _Read(NamedTuple):
    shard: int
    offset: int
    size: int
    held_bytes: int
    # of the records in it: numbers in the split, where payloads begin and end, crc32c
    ids: list[int]
    places: list[tuple[int, int]]
    crcs: list[int]


def places_of(index: Places, record_ids: np.ndarray) -> np.ndarray:
    """int64 [6, n]: the ids, and the columns of their Location."""
    where = index.locate(record_ids)
    return np.stack([record_ids, where.shard, where.record, where.offset, where.length, where.crc])


def place_in_words(paths: Sequence[str], index: Places, record_id: int) -> str:
    """The file of a record, its number in the file, and its offset."""
    place = index.locate(np.array([record_id]))
    return f"{paths[place.shard[0]]}, record {place.record[0]} at byte {place.offset[0]}"


def read_starts(places: np.ndarray, join_bytes: int = MAX_READ_BYTES) -> np.ndarray:
    """The records at which reads start, int64: a read covers neighbours of up to join_bytes with
    small gaps.

    places: of records, ascending, without repeats, and not empty."""
    _, *columns = places
    location = Location(*columns)
    ends = location.offset + location.length + FRAME_BYTES
    new = np.ones(len(ends), bool)
    new[1:] = (
        (np.diff(location.shard) != 0)
        | (location.offset[1:] - ends[:-1] > MERGE_GAP_BYTES)
        | (np.diff(location.offset // MAX_READ_BYTES) != 0)
        | (np.maximum(location.length[1:], location.length[:-1]) > join_bytes)
    )
    return np.flatnonzero(new)


def key_of(dataset: str, split: str, values: Mapping[str, Sequence[Any]]) -> bytes | None:
    """The key of a record in its conversion; None if it cannot be derived from the record.

    docs/format.md defines this for ImageNet only."""
    if (
        dataset != "imagenet2012"
        or not values.get("image/filename")
        or not values.get("image/class/synset")
    ):
        return None
    folder = values["image/class/synset"][0] + b"/" if split == "train" else b""
    return split.encode() + b"/" + folder + values["image/filename"][0]


class IndexedRecords(ReadDirectly):
    """One split, open for reading: see Records. Threads may share it. crcs and lengths come from
    the index; None: to load it, after a check of the shards. index_dir: see open_dataset.

    fingerprint: of the names, sizes and checksums of the shards. Raises: OptionError for an unknown
    split; EmptySplitError for a split without records; ShardError naming what is missing, truncated
    or replaced, before any record is read."""

    def __init__(
        self,
        manifest: Manifest,
        split: str,
        storage: Storage,
        index: SplitIndex | None = None,
        index_dir: str | None = None,
    ) -> None:
        self.manifest = manifest
        self.split = split
        self._storage = storage
        self.entry = manifest.split(split)
        self._paths = [join(manifest.directory, shard.file) for shard in self.entry.shards]
        if index is None:
            self._check_shards()
            index = load_index(storage, manifest.directory, split, self.entry, index_dir=index_dir)
        self.index = index
        directory = shlex.quote(manifest.directory)
        labels = manifest.labels or tfds_classes(manifest.schema.tfds)
        self.info = RecordsInfo(
            name=f"{manifest.directory}, split {split!r}",
            fingerprint=self.entry.fingerprint,
            num_records=self.entry.num_records,
            num_bytes=self.entry.num_bytes,
            layout=manifest.schema,
            labels=labels,
            crcs=self.index.crcs,
            lengths=self.index.lengths,
            remote=storage.remote,
            verify_command=f"infeed verify {directory} --split {split} --decode",
            totals=self.entry.totals,
            describe=partial(description_of, manifest, split, labels, storage),
            find_copies=partial(copies_elsewhere, manifest, split),
            find_crc_sum=lambda: self.index.crc_sum,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return IndexedRecords, (self.manifest, self.split, self._storage, self.index)

    def read(self, groups: Groups, ahead_bytes: int = 0) -> IndexedReading:
        """See Records. A damaged record is returned as a CorruptRecordError naming shard, record
        and offset."""
        return IndexedReading(self._storage, self._paths, self.index, groups, ahead_bytes)

    def place_of(self, record_id: int) -> ByteRange:
        """Where a payload is, for reading a single one."""
        shard, offset, length, crc = self.index.locate_one(record_id)
        return ByteRange(self._paths[shard], offset + HEADER_BYTES, length, crc)

    def where(self, record_id: int) -> str:
        """The location of a record, for messages: shard, record within it, offset, and its key if
        it is known."""
        at = place_in_words(self._paths, self.index, record_id)
        return f"{at} (record {record_id} of {self.split!r}{self._key(record_id)})"

    def _key(self, record_id: int) -> str:
        """The part of a message that states a record's key; empty if the record has none or cannot
        be read."""
        if self.manifest.schema.opaque:
            return ""
        try:
            values = decode_example(fetch_payload(self, record_id))
        except InfeedError:
            return ""
        key = key_of(self.manifest.name, self.split, values)
        return f", key {printable(key.decode(errors='replace'))}" if key else ""

    def _check_shards(self) -> None:
        """Checks sizes, and the checksums that a bucket stores, with one listing. A disk stores no
        checksums."""
        listed = self._storage.list(self.manifest.directory)
        wrong = [
            f"{join(self.manifest.directory, shard.file)} {problem}."
            for shard in self.entry.shards
            if (problem := shard.problem(listed.get(shard.file)))
        ]
        if wrong:
            more = f" And {len(wrong) - 1} more shards of {self.split!r}." if len(wrong) > 1 else ""
            raise ShardError(f"{wrong[0]}{more} The shard is truncated, replaced or lost; {MEND}.")
