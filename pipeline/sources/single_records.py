"""One record at a time: its payload, by number, and its values as NumPy arrays and bytes. No
TensorFlow.

Dataset reads with it. Reading groups plans ahead and opens a file for each run of ranges, which
costs more than reading one small record. Records that lie in files on a disk are therefore read and
checked directly, from files that stay open; whatever is wrong there is left to the reading of
groups, which finds it again and names it. Batches for training are parsed by pipeline.decoding, to
the same values.

Files that contain only records of equal length, such as CIFAR-10's binary files, have no checksums:
each record's is computed from the bytes that are delivered and compared with nothing."""

import functools
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from pipeline.errors import EmptySplitError, SchemaError, ShardError
from pipeline.formats import FixedLength
from pipeline.shards.example_decoding import decode_features
from pipeline.shards.frames import crc32c
from pipeline.shards.naming import hex_digest
from pipeline.shards.schema import Schema
from pipeline.shards.split_index import Location
from pipeline.sources.concatenated import Concatenated
from pipeline.sources.indexed_records import IndexedReading, IndexedRecords
from pipeline.sources.records import (
    ByteRange,
    Groups,
    ReadDirectly,
    Records,
    RecordsInfo,
    fetch_payload,
)
from pipeline.spec import (
    Layout,
    Opaque,
    chosen_specs,
    feature_specs,
    feature_values,
    struct_columns,
)
from pipeline.storage.storage import Listing, Stat, Storage

# a process may usually open 1,024; beyond these, a read costs another ~5 us for opening
FILES = 256


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
        place = self.locate(np.array([record_id]))
        return f"{self._paths[place.shard[0]]}, record {place.record[0]} at byte {place.offset[0]}"


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


class ExampleParser:
    """Parses payloads of one layout. keys: of the features to return; None for all. OptionError for
    an unknown one."""

    def __init__(self, layout: Layout, keys: Iterable[str] | None) -> None:
        self._layout = layout
        self._specs = feature_specs(layout)
        if keys is not None:
            self._specs = chosen_specs(layout, [keys] if isinstance(keys, str) else keys)
        self.keys = tuple(self._specs)
        self._encoded_keys = frozenset(key.encode() for key in self.keys)

    def parse(self, payload: bytes, where: Callable[[], str]) -> dict[str, Any]:
        """Key -> value, see Examples. Raises SchemaError, which begins with where(), if they do not
        match."""
        try:
            if isinstance(self._layout, np.dtype):
                columns = struct_columns(self._layout, self._specs, [payload])
                return {
                    key: column[0].copy() if column.ndim > 1 else column[0]
                    for key, column in columns.items()
                }
            if isinstance(self._layout, Schema) and not self._layout.opaque:
                values = decode_features(payload, self._encoded_keys)
                features = self._layout.features
                return {
                    key: feature_values(key, features[key], values.get(key))[()]
                    for key in self.keys
                }
        except SchemaError as e:
            raise SchemaError(f"{where()}: {e}") from e
        return dict.fromkeys(self.keys, payload)


class OpenFiles:
    """Reads ranges of files, and keeps up to 256 files open. Threads may share it, and forked
    processes may use it.

    It never moves a file's position, so a forked process can read through the descriptors that it
    has inherited."""

    def __init__(self) -> None:
        # A file is closed once it is neither among these nor in use by a thread.
        self._opened = functools.lru_cache(FILES)(_OpenFile)

    def read(self, path: str, offset: int, size: int) -> bytes:
        """Reads at most `size` bytes; fewer at the end of the file, after a signal, and above 2
        GiB. Raises OSError."""
        file = self._opened(path)
        return os.pread(file.fd, size, offset)


class _OpenFile:
    def __init__(self, path: str) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self, close=os.close) -> None:  # bound now: at exit, the module may be gone
        if self.fd >= 0:
            close(self.fd)


def payload_reader(records: Records, files: OpenFiles) -> Callable[[int], bytes]:
    """A function from a record's number, 0..N-1, to its payload. Threads may share it; it cannot be
    pickled.

    It raises CorruptRecordError naming the record, StorageError, and what else the records' `read`
    raises."""
    if isinstance(records, Concatenated):
        shifts = records.shifts
        starts = records.info.source_starts.tolist()
        readers = [payload_reader(part.records, files) for part in records.parts]

        def of_part(number: int) -> bytes:
            owner = bisect_right(starts, number) - 1
            return readers[owner](number + shifts[owner])

        return of_part
    if isinstance(records, IndexedRecords | FixedLengthRecords) and not records.info.remote:
        place_of = records.place_of

        def in_file(number: int) -> bytes:
            path, offset, length, crc = place_of(number)
            try:
                data = files.read(path, offset, length)
                if len(data) == length and (crc is None or crc32c(data) == crc):
                    return data
            except OSError:  # fetch_payload finds it again, and names it
                pass
            return fetch_payload(records, number)

        return in_file
    return lambda number: fetch_payload(records, number)
