"""References to records in the raw data: columnar batches of key, location and size.

A conversion shuffles these instead of the payload: ~100 bytes per record, whatever the record's
size."""

import hashlib
import itertools
import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from pipeline.shards.naming import ranks
from pipeline.storage.storage import Stat

# a column is as wide as its longest cell, in the batch and in every bucket that gets the row
MAX_NAME_BYTES = 4096
DUPLICATE = "duplicate key: another record of this split has the same name"
_KEPT = MAX_NAME_BYTES // 16  # characters of a name or error that is too long
_LEVEL = 1  # of zlib: 190 MB/s
_KEYS_AT_ONCE = 1 << 16  # as Python's bytes
# fields with one value per row, except `file`, which indexes `files`
_ARRAYS = ("key", "offset", "size", "error")


@dataclass(frozen=True)
class File:
    """A raw file, with its size (and its checksum, if the storage keeps one) at the time of the
    scan."""

    uri: str
    stat: Stat


@dataclass(frozen=True)
class Reference:
    """One row: the location of a record's raw bytes, and the converter's findings from the scan."""

    key: str
    file: File
    offset: int
    size: int
    error: str  # why the scan rejects the record; "" if it is good
    columns: Mapping[str, int | bytes]

    def number(self, column: str) -> int:
        """A column of int64."""
        value = self.columns[column]
        assert isinstance(value, int)
        return value

    def text(self, column: str) -> bytes:
        """A column of bytes."""
        value = self.columns[column]
        assert isinstance(value, bytes)
        return value


@dataclass(frozen=True)
class References:
    """A batch of rows. All arrays have the same length.

    key: bytes (dtype S), unique in a split.
    file: int32 index into `files`.
    offset, size: int64, bytes.
    error: bytes (S), empty on good rows.
    columns: the converter's own, int64 or S."""

    files: tuple[File, ...]
    key: np.ndarray
    file: np.ndarray
    offset: np.ndarray
    size: np.ndarray
    error: np.ndarray
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)

    @staticmethod
    def of(rows: Sequence[Reference]) -> "References":
        """A batch of rows, which must have the same column names. Applies `bounded` to each."""
        rows = [bounded(row) for row in rows]
        files = tuple(dict.fromkeys(row.file for row in rows))
        number = {file: i for i, file in enumerate(files)}
        cells = [row.columns for row in rows] or [{}]
        return References(
            files=files,
            key=column(row.key for row in rows),
            file=np.array([number[row.file] for row in rows], np.int32),
            offset=np.array([row.offset for row in rows], np.int64),
            size=np.array([row.size for row in rows], np.int64),
            error=column(row.error for row in rows),
            columns={name: column(map(itemgetter(name), cells)) for name in cells[0]},
        )

    @staticmethod
    def in_file(file: File, **arrays: Any) -> "References":
        """A batch of rows of one file. arrays: all others."""
        return References(files=(file,), file=np.zeros(len(arrays["key"]), np.int32), **arrays)

    def __reduce__(self) -> tuple[Any, ...]:
        """Compressed to a seventh, because runners keep several pickled copies of each row in
        memory."""
        values = tuple(getattr(self, field.name) for field in fields(self))
        return _unpickled, (zlib.compress(pickle.dumps(values, pickle.HIGHEST_PROTOCOL), _LEVEL),)

    def __len__(self) -> int:
        return len(self.key)

    def ranks(self, seed: int, split: str) -> np.ndarray:
        """uint64: the rank of each row."""
        some = (
            self.key[i : i + _KEYS_AT_ONCE].tolist() for i in range(0, len(self), _KEYS_AT_ONCE)
        )
        return ranks(seed, split, itertools.chain.from_iterable(some))

    @property
    def versions(self) -> np.ndarray:
        """uint32: a hash of the size and Stat.version of each row's raw file."""
        return np.array([stat_hash(file.stat) for file in self.files], np.uint32)[self.file]

    @property
    def good(self) -> np.ndarray:
        """bool: the rows that the scan did not reject."""
        return self.error == b""

    def take(self, rows: np.ndarray | slice) -> "References":
        """The rows with the given numbers (or mask, or slice), and only the files they need."""
        used, file = np.unique(self.file[rows], return_inverse=True)
        return replace(
            self,
            files=tuple(self.files[i] for i in used),
            file=file.astype(np.int32),
            columns={name: column[rows] for name, column in self.columns.items()},
            **{name: getattr(self, name)[rows] for name in _ARRAYS},
        )

    def with_errors(self, rows: np.ndarray, error: str) -> "References":
        """A copy in which the rows of the mask are rejected for `error`."""
        if not rows.any():  # else each row has room for the text
            return self
        errors = np.where(rows, np.array(encoded(error), "S"), self.error)
        return replace(self, error=errors)

    def __iter__(self) -> Iterator[Reference]:
        # in blocks, because lists of all cells take five times the memory of the arrays
        for begin in range(0, len(self), 1024):
            rows = slice(begin, begin + 1024)
            columns = {name: column[rows].tolist() for name, column in self.columns.items()}
            key, offset, size, error = (getattr(self, name)[rows].tolist() for name in _ARRAYS)
            for i, file in enumerate(self.file[rows]):
                own = {name: values[i] for name, values in columns.items()}
                yield Reference(
                    decoded(key[i]), self.files[file], offset[i], size[i], decoded(error[i]), own
                )

    @property
    def decisive(self) -> list[np.ndarray]:
        """Everything besides the keys that determines the bytes of each record: size, error, and
        the columns whose names do not begin with _."""
        names = (name for name in sorted(self.columns) if name[0] != "_")
        return [self.size, self.error, *(self.columns[name] for name in names)]


def stat_hash(stat: Stat) -> int:
    """32 bits of a file's size and version."""
    text = f"{stat.bytes} {stat.version}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")


def _unpickled(compressed: bytes) -> References:
    return References(*pickle.loads(zlib.decompress(compressed)))


def bounded(row: Reference) -> Reference:
    """The row, or if its key exceeds 4,096 bytes, a rejected row with a short unique key. Long
    errors are cut, too."""
    # a character is 4 bytes at most
    if len(row.key) <= MAX_NAME_BYTES // 4 and len(row.error) <= MAX_NAME_BYTES // 4:
        return row
    if len(key := encoded(row.key)) > MAX_NAME_BYTES:
        short = f"{row.key[:_KEPT]}... {hashlib.blake2b(key, digest_size=8).hexdigest()}"
        error = row.error or f"a name of {len(key):,} bytes; allowed are up to {MAX_NAME_BYTES:,}"
        row = replace(row, key=short, error=error)
    if len(encoded(row.error)) > MAX_NAME_BYTES:
        row = replace(row, error=f"{row.error[:_KEPT]}...")
    return row


def concat(batches: Sequence[References]) -> References:
    """Joins batches in order. Empty batches may lack the converter's columns."""
    batches = [batch for batch in batches if len(batch)]
    if not batches:
        return References.of([])
    files: dict[File, int] = {}
    file = []
    for batch in batches:
        numbers = np.array([files.setdefault(f, len(files)) for f in batch.files], np.int32)
        file.append(numbers[batch.file])
    columns = [batch.columns for batch in batches]
    return References(
        files=tuple(files),
        file=np.concatenate(file),
        columns={name: np.concatenate([*map(itemgetter(name), columns)]) for name in columns[0]},
        **{name: np.concatenate([*map(attrgetter(name), batches)]) for name in _ARRAYS},
    )


def escaped(name: str) -> str:
    """A name from raw data, in the form for receipts and the ledger."""
    return name.encode("utf-8", "backslashreplace").decode()


def in_order(seed: int, split: str, refs: References) -> References:
    """The rows sorted by (rank, key), and rows with equal keys by all their values, so that the
    input order never matters.

    A table may list an image twice with two labels: even then, every run yields the same order."""
    uris = np.array([encoded(file.uri) for file in refs.files] or [b""], "S")
    place = uris[refs.file] if len(refs) else refs.key
    rank = refs.ranks(seed, split)
    order = np.lexsort((refs.offset, place, refs.key, rank))
    key = refs.key[order]
    if (key[1:] == key[:-1]).any():  # rare, so the columns are sorted only then
        columns = [refs.columns[name] for name in sorted(refs.columns)]
        order = np.lexsort((*columns, refs.error, refs.size, refs.offset, place, refs.key, rank))
    return refs.take(order)


def column(cells: Iterable[str | bytes | int]) -> np.ndarray:
    """An array with a cell per row: int64 of numbers, else S."""
    values = [encoded(cell) if isinstance(cell, str) else cell for cell in cells]
    return np.array(values, "S" if not values or isinstance(values[0], bytes) else np.int64)


def encoded(text: str) -> bytes:
    """The bytes of a name. Names in archives may not be UTF-8: surrogates preserve their bytes."""
    return text.encode("utf-8", "surrogateescape")


def decoded(data: bytes) -> str:
    """The name that has these bytes."""
    return data.decode("utf-8", "surrogateescape")
