"""References to records that are still in the raw data: columnar batches of key, place and size.

This is what a conversion shuffles instead of payload: ~100 bytes a record, whatever the record weighs."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pipeline.shards.ranks import ranks
from pipeline.shards.storage import Stat

__all__ = ["MAX_NAME_BYTES", "File", "Reference", "References", "bounded", "concat", "in_order"]

MAX_NAME_BYTES = 4096  # a column of a batch is as wide as its longest cell, here and in every bucket that a row goes to


@dataclass(frozen=True)
class File:
    """A raw file, and the size (and checksum, where the storage keeps one) it had when it was scanned."""

    uri: str
    stat: Stat


@dataclass(frozen=True)
class Reference:
    """One row: where one record's raw bytes are, and what the converter said about them at the scan."""

    key: str
    file: File
    offset: int
    size: int
    error: str  # why the scan rejects it; "" if it does not
    columns: Mapping[str, int | bytes]


@dataclass(frozen=True)
class References:
    """A batch of rows, all arrays of one length.

    key: bytes (dtype S), unique in a split. file: int32 index into `files`. offset, size: int64, bytes.
    error: bytes (S), empty on good rows. columns: the converter's own, int64 or S."""

    files: tuple[File, ...]
    key: np.ndarray
    file: np.ndarray
    offset: np.ndarray
    size: np.ndarray
    error: np.ndarray
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)

    @staticmethod
    def of(rows: Sequence[Reference]) -> "References":
        """A batch from single rows, which must share their column names. Each is bounded."""
        rows = [bounded(row) for row in rows]
        files = tuple(dict.fromkeys(row.file for row in rows))
        number = {file: i for i, file in enumerate(files)}
        names = rows[0].columns if rows else ()
        return References(
            files,
            np.array([_encode(row.key) for row in rows], "S"),
            np.array([number[row.file] for row in rows], np.int32),
            np.array([row.offset for row in rows], np.int64),
            np.array([row.size for row in rows], np.int64),
            np.array([_encode(row.error) for row in rows], "S"),
            {name: _column([row.columns[name] for row in rows]) for name in names},
        )

    def __len__(self) -> int:
        return len(self.key)

    @property
    def good(self) -> np.ndarray:
        """bool: the rows that the scan did not reject."""
        return self.error == b""

    def take(self, rows: np.ndarray) -> "References":
        """The rows of the given numbers (or bool mask), with only the files that they need."""
        used, file = np.unique(self.file[rows], return_inverse=True)
        return References(
            tuple(self.files[i] for i in used),
            self.key[rows],
            file.astype(np.int32),
            self.offset[rows],
            self.size[rows],
            self.error[rows],
            {name: column[rows] for name, column in self.columns.items()},
        )

    def with_errors(self, rows: np.ndarray, error: str) -> "References":
        """The same batch with the rows of the mask rejected for `error`."""
        errors = np.where(rows, np.array(_encode(error), "S"), self.error)
        return References(self.files, self.key, self.file, self.offset, self.size, errors, self.columns)

    def __iter__(self) -> Iterator[Reference]:
        names = list(self.columns)
        fixed = zip(
            self.key.tolist(), self.file, self.offset.tolist(), self.size.tolist(), self.error.tolist(), strict=True
        )
        own = zip(*(self.columns[name].tolist() for name in names), strict=True) if names else iter([()] * len(self))
        for (key, file, offset, size, error), values in zip(fixed, own, strict=True):
            columns = dict(zip(names, values, strict=True))
            yield Reference(_decode(key), self.files[file], offset, size, _decode(error), columns)

    def values(self) -> Iterator[tuple[int | bytes, ...]]:
        """Everything that decides a record's bytes, row by row: all columns but the place it is read from."""
        own = (self.columns[name].tolist() for name in sorted(self.columns))
        return zip(self.key.tolist(), self.size.tolist(), self.error.tolist(), *own, strict=True)


def bounded(row: Reference) -> Reference:
    """The row; with a key of over 4,096 bytes a rejected one with a short key, which is still that of no other row.

    An error that quotes as much is cut."""
    if len(row.key) <= MAX_NAME_BYTES // 4 and len(row.error) <= MAX_NAME_BYTES // 4:  # a character is 4 bytes at most
        return row
    if len(key := _encode(row.key)) > MAX_NAME_BYTES:
        short = f"{_beginning(row.key)}... {hashlib.blake2b(key, digest_size=8).hexdigest()}"
        error = row.error or f"a name of {len(key):,} bytes; allowed are up to {MAX_NAME_BYTES:,}"
        row = replace(row, key=short, error=error)
    if len(_encode(row.error)) > MAX_NAME_BYTES:
        row = replace(row, error=f"{_beginning(row.error)}...")
    return row


def _beginning(text: str) -> str:
    return text[: MAX_NAME_BYTES // 16]


def concat(batches: Sequence[References]) -> References:
    """One batch of all rows, in order. Empty batches may lack the converter's columns."""
    batches = [batch for batch in batches if len(batch)]
    if not batches:
        return References.of([])
    files: dict[File, int] = {}
    file = []
    for batch in batches:
        numbers = np.array([files.setdefault(f, len(files)) for f in batch.files], np.int32)
        file.append(numbers[batch.file])
    return References(
        tuple(files),
        np.concatenate([b.key for b in batches]),
        np.concatenate(file),
        np.concatenate([b.offset for b in batches]),
        np.concatenate([b.size for b in batches]),
        np.concatenate([b.error for b in batches]),
        {name: np.concatenate([b.columns[name] for b in batches]) for name in batches[0].columns},
    )


def in_order(seed: int, split: str, refs: References) -> References:
    """The rows sorted by (rank, key); rows with equal keys by all their values, so input order never matters.

    A table may list an image twice, with two labels: even then their places are the same on every run."""
    uris = np.array([_encode(file.uri) for file in refs.files] or [b""], "S")
    place = uris[refs.file] if len(refs) else refs.key
    rank = ranks(seed, split, refs.key)
    order = np.lexsort((refs.offset, place, refs.key, rank))
    key = refs.key[order]
    if (key[1:] == key[:-1]).any():  # rare, so the columns are sorted only then
        columns = [refs.columns[name] for name in sorted(refs.columns)]
        order = np.lexsort((*columns, refs.error, refs.size, refs.offset, place, refs.key, rank))
    return refs.take(order)


def _column(values: list[int | bytes]) -> np.ndarray:
    return np.array(values, "S" if isinstance(values[0], bytes) else np.int64)


def _encode(text: str) -> bytes:
    """Names in archives need not be UTF-8: surrogates carry the odd bytes there and back."""
    return text.encode("utf-8", "surrogateescape")


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
