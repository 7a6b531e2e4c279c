"""Records of files that hold nothing but records of equal length, such as CIFAR-10's binary files: found by arithmetic.

The Records that open_dataset makes of a FixedLength format. Nothing in such files proves a record: its checksum is
computed of the bytes that are delivered, and is compared with nothing. NumPy only."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b

import numpy as np

from pipeline.formats import FixedLength
from pipeline.shards.errors import EmptySplitError, ShardError
from pipeline.shards.index import Location
from pipeline.shards.record import crc32c
from pipeline.shards.storage import Stat, Storage
from pipeline.sources.reading import ShardReading
from pipeline.sources.records import RECORD_OBJECT_BYTES, Group
from pipeline.spec import Layout, Opaque

__all__ = ["FixedLengthRecords"]


class FixedLengthRecords:
    """The records of files one behind the other: see Records. Any can be read at once.

    fingerprint: of names, sizes, and the checksums that a bucket keeps; so on a disk files of other content and the
    same sizes pass for the same data, and a copy in a bucket for other data. Opening looks at sizes only."""

    whole_files = None
    crcs = None

    def __init__(self, uri: str, files: Mapping[str, Stat], format: FixedLength, storage: Storage) -> None:
        self.name, self._paths, self._format, self._storage = uri, list(files), format, storage
        counts = [_count(path, stat, format) for path, stat in files.items()]
        self._starts = np.cumsum([0, *counts])  # of each file, and N
        self.num_records = int(self._starts[-1])
        if not self.num_records:
            raise EmptySplitError(f"{uri}: {len(files)} files without a record, so there is nothing to read.")
        self.num_bytes = self.num_records * format.record_bytes
        self.lengths = np.broadcast_to(np.uint32(format.record_bytes), self.num_records)  # takes no memory
        self.layout: Layout = format.record if isinstance(format.record, np.dtype) else Opaque()
        self.remote = storage.remote
        record = np.lib.format.dtype_to_descr(self.layout) if isinstance(self.layout, np.dtype) else format.record
        lines = [f"{record} {format.header_bytes} {format.footer_bytes}\n"]
        lines += [f"{path.rpartition('/')[2]} {stat}\n" for path, stat in files.items()]
        self.fingerprint = blake2b("".join(lines).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()

    def locate(self, record_ids: np.ndarray) -> Location:
        """Where records are, as SplitIndex says it."""
        file = np.searchsorted(self._starts, record_ids, side="right") - 1
        record = record_ids - self._starts[file]
        offset = self._format.header_bytes + record * self._format.record_bytes
        lengths = self.lengths[record_ids].astype(np.int64)
        return Location(file, record, offset, lengths, np.zeros(len(file), np.uint32))

    def block_starts(self, block_records: int) -> np.ndarray:
        """See Records: reading may begin at any record."""
        return np.arange(0, self.num_records, block_records)

    def weigh(self, record_ids: np.ndarray) -> int:
        """See Records."""
        return len(record_ids) * (self._format.record_bytes + RECORD_OBJECT_BYTES)

    def read(self, groups: Iterable[Group], ahead_bytes: int = 0) -> "_FixedLengthReading":
        """See Records. No damage shows here but a file that has become shorter: a StorageError."""
        return _FixedLengthReading(self._storage, self._paths, self, groups, ahead_bytes)

    def where(self, record_id: int) -> str:
        """See Records."""
        place = self.locate(np.array([record_id]))
        return f"{self._paths[place.shard[0]]}, record {place.record[0]} at byte {place.offset[0]}"


class _FixedLengthReading(ShardReading):
    header_bytes = 0

    def crc_of(self, payload: bytes, due: int) -> int:
        del due  # nobody has promised any
        return crc32c(payload)


def _count(path: str, stat: Stat, format: FixedLength) -> int:
    around = format.header_bytes + format.footer_bytes
    records, rest = divmod(stat.bytes - around, format.record_bytes)
    if stat.bytes < around or rest:
        ends = f" between a header of {format.header_bytes} and a footer of {format.footer_bytes}" if around else ""
        left = f"{records} records and {rest} bytes" if stat.bytes >= around else "not even these"
        raise ShardError(
            f"{path} has {stat.bytes} bytes, which is not a whole number of records of {format.record_bytes} "
            f"bytes{ends}: {left}. It is truncated, compressed, or of another format; leave out what is no data by a "
            "pattern such as DIR/*.bin."
        )
    return records
