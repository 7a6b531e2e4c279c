"""Records of equal length, in files that contain nothing else, such as CIFAR-10's binary files.

They have no checksums: each record's is computed from the bytes that are delivered and compared
with nothing."""

from typing import Any

import numpy as np

from pipeline.errors import EmptySplitError, ShardError
from pipeline.formats import FixedLength
from pipeline.shards.naming import hex_digest
from pipeline.shards.split_index import Location
from pipeline.sources.indexed_records import IndexedReading, place_in_words
from pipeline.sources.records import ByteRange, Groups, ReadDirectly, RecordsInfo
from pipeline.spec import Layout, Opaque
from pipeline.storage.storage import Listing, Stat, Storage


class FixedLengthRecords(ReadDirectly):
    """The records of consecutive files: see Records. Any record can be read directly.

    fingerprint: of names, sizes, and the checksums that a bucket stores. On a disk, files with
    different content and the same sizes therefore have the same fingerprint; a copy in a bucket has
    another. Opening checks only sizes."""

    def __init__(self, uri: str, files: Listing, format: FixedLength, storage: Storage) -> None:
        self._paths = list(files)
        self._format = format
        self._storage = storage
        counts = [_count(path, stat, format) for path, stat in files.items()]
        self._starts = np.cumsum([0, *counts])  # of each file, and N
        count = int(self._starts[-1])
        if not count:
            raise EmptySplitError(
                f"{uri}: {len(files)} files without a record, so there is nothing to read."
            )
        self.lengths = np.broadcast_to(np.uint32(format.record_bytes), count)  # takes no memory
        record: Any = format.record
        layout: Layout = Opaque()
        if isinstance(record, np.dtype):
            layout = record
            record = np.lib.format.dtype_to_descr(layout)
        lines = [f"{record} {format.header_bytes} {format.footer_bytes}\n"]
        lines += [f"{path.rpartition('/')[2]} {stat}\n" for path, stat in files.items()]
        self.info = RecordsInfo(
            name=uri,
            fingerprint=hex_digest("".join(lines).encode("utf-8", "surrogateescape")),
            num_records=count,
            num_bytes=count * format.record_bytes,
            layout=layout,
            lengths=self.lengths,
            remote=storage.remote,
        )

    def locate(self, record_ids: np.ndarray) -> Location:
        """Where records are, in the form of SplitIndex.locate."""
        file = np.searchsorted(self._starts, record_ids, side="right") - 1
        record = record_ids - self._starts[file]
        offset = self._format.header_bytes + record * self._format.record_bytes
        lengths = self.lengths[record_ids].astype(np.int64)
        return Location(file, record, offset, lengths, np.zeros(len(file), np.uint32))

    def read(self, groups: Groups, ahead_bytes: int = 0) -> "_FixedLengthReading":
        """See Records. The only damage detected here is a file that has become shorter, as a
        StorageError."""
        return _FixedLengthReading(self._storage, self._paths, self, groups, ahead_bytes)

    def place_of(self, record_id: int) -> ByteRange:
        """Where a payload is, for reading a single one."""
        place = self.locate(np.array([record_id]))
        return ByteRange(
            self._paths[place.shard.item()], place.offset.item(), self._format.record_bytes, None
        )

    def where(self, record_id: int) -> str:
        return place_in_words(self._paths, self, record_id)


class _FixedLengthReading(IndexedReading):
    header_bytes = 0
    checked = False  # these files have no checksums


def _count(path: str, stat: Stat, format: FixedLength) -> int:
    around = format.header_bytes + format.footer_bytes
    records, rest = divmod(stat.bytes - around, format.record_bytes)
    if stat.bytes < around or rest:
        ends = (
            f" between a header of {format.header_bytes} and a footer of {format.footer_bytes}"
            if around
            else ""
        )
        left = (
            f"{records} records and {rest} bytes"
            if stat.bytes >= around
            else "shorter than header and footer"
        )
        raise ShardError(
            f"{path} has {stat.bytes} bytes, which is not a whole number of "
            f"{format.record_bytes}-byte records{ends}: {left}. The file is truncated, compressed "
            "or in another format; exclude files that are not data with a pattern such as "
            "DIR/*.bin."
        )
    return records
