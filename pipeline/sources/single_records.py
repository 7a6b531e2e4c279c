"""One record at a time: its payload, by number, and its values as NumPy arrays and bytes. No TensorFlow.

Dataset reads with it. Reading groups plans ahead and opens a file for each run of ranges, which costs more than reading
one small record. Records that lie in files on a disk are therefore read and checked directly, from files that stay
open; whatever is wrong there is left to the reading of groups, which finds it again and names it. Batches for training
are parsed by pipeline.decoding, to the same values."""

import functools
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from pipeline.errors import SchemaError
from pipeline.shards.example_decoding import decode_features
from pipeline.shards.record import crc32c
from pipeline.shards.schema import Schema
from pipeline.sources.concatenated import Concatenated
from pipeline.sources.fixed_length import FixedLengthRecords
from pipeline.sources.indexed_records import IndexedRecords
from pipeline.sources.records import Records, fetch_payload
from pipeline.spec import Layout, chosen_specs, feature_specs, feature_values, struct_columns

FILES = 256  # a process may usually open 1,024; beyond these, a read costs another ~5 us for opening


class ExampleParser:
    """Parses payloads of one layout. keys: of the features to return; None for all. OptionError for an unknown one."""

    def __init__(self, layout: Layout, keys: Iterable[str] | None) -> None:
        given = feature_specs(layout) if keys is None else [keys] if isinstance(keys, str) else keys
        self._layout, self._specs = layout, chosen_specs(layout, given)
        self.keys = tuple(self._specs)
        self._wanted = frozenset(key.encode() for key in self.keys)

    def parse(self, payload: bytes, where: Callable[[], str]) -> dict[str, Any]:
        """Key -> value, see Examples. Raises SchemaError, which begins with where(), if they do not match."""
        try:
            if isinstance(self._layout, np.dtype):
                columns = struct_columns(self._layout, self._specs, [payload])
                return {key: column[0].copy() if column.ndim > 1 else column[0] for key, column in columns.items()}
            if isinstance(self._layout, Schema) and not self._layout.opaque:
                found, features = decode_features(payload, self._wanted), self._layout.features
                return {key: feature_values(key, features[key], found.get(key))[()] for key in self.keys}
        except SchemaError as e:
            raise SchemaError(f"{where()}: {e}") from e
        return dict.fromkeys(self.keys, payload)


class OpenFiles:
    """Reads ranges of files, and keeps up to 256 files open. Threads may share it, and forked processes may use it.

    It never moves a file's position, so a forked process can read through the descriptors that it has inherited."""

    def __init__(self) -> None:
        # A file is closed once it is neither among these nor in use by a thread.
        self._opened = functools.lru_cache(FILES)(_OpenFile)

    def read(self, path: str, offset: int, size: int) -> bytes:
        """At most `size` bytes; fewer at the end of the file, after a signal, and above 2 GiB. Raises OSError."""
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
    """A function from a record's number, 0..N-1, to its payload. Threads may share it; it cannot be pickled.

    It raises CorruptRecordError naming the record, StorageError, and what else the records' `read` raises."""
    if isinstance(records, Concatenated):
        return _of_parts(records, files)
    if isinstance(records, IndexedRecords | FixedLengthRecords) and not records.info.remote:
        return _in_files(records, files)
    return lambda number: fetch_payload(records, number)


def _in_files(records: IndexedRecords | FixedLengthRecords, files: OpenFiles) -> Callable[[int], bytes]:
    place_of = records.place_of

    def payload(number: int) -> bytes:
        path, offset, length, crc = place_of(number)
        try:
            found = files.read(path, offset, length)
        except OSError:
            return fetch_payload(records, number)
        if len(found) == length and (crc is None or crc32c(found) == crc):
            return found
        return fetch_payload(records, number)

    return payload


def _of_parts(records: Concatenated, files: OpenFiles) -> Callable[[int], bytes]:
    readers = [payload_reader(part.records, files) for part in records.parts]
    starts = records.info.source_starts.tolist()
    inside = [part.which.start - start for part, start in zip(records.parts, starts, strict=False)]

    def payload(number: int) -> bytes:
        owner = bisect_right(starts, number) - 1
        return readers[owner](number + inside[owner])

    return payload
