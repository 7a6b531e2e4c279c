"""Rows of packed files, which a conversion shuffles instead of References if each record consists
of several pieces of raw data.

A packed file has its rows in the order of their ranks, so the rows of a shard are one range of each
file: gathering makes a request per file, not per record. A shuffled row takes about 10 bytes. Its
file stores it as payload, key and trailer, so that one range contains all of it."""

import itertools
import pickle
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from beam_jobs.rows.digests import BucketSums
from beam_jobs.rows.references import File, stat_hash
from pipeline.errors import RawDataError
from pipeline.shards.frames import FRAME_BYTES, crc32c
from pipeline.storage.schemes import open_storage

# size: of the record; 0 if the scan rejects the row. file, begin: the number of the file that
# stores the row, and its offset there. more: bytes stored in addition to the record. is_repeat: an
# earlier row has the same key.
ROW = np.dtype(
    [
        ("rank", "<u8"),
        ("size", "<u4"),
        ("more", "<i4"),
        ("file", "<i4"),
        ("begin", "<i8"),
        ("is_repeat", "?"),
    ]
)
CHECK_BYTES = 4  # of a row's checksum, at its end
_LEVEL = 1  # of zlib
_READ_BYTES = 1 << 27  # of all files together, so that a shard of the usual size is read at once
_ROWS_AT_ONCE = 4096


def trailer_type(columns: Iterable[str]) -> np.dtype:
    """The end of each stored row: offset, in the raw file; crc32c, of the record; key_size; the
    converter's columns; and check, the crc32c of everything before it."""
    usual = [("offset", "<i8"), ("crc32c", "<u4"), ("key_size", "<u4")]
    return np.dtype([*usual, *((name, "<i8") for name in columns), ("check", "<u4")])


@dataclass(frozen=True)
class PackedFile:
    """One packed file.

    file: its path, and the size and version of the raw data that it was made from.
    place: the raw file, where its range begins, which piece of it, and how many packed files of it
        come before.
    trailer: see trailer_type.
    body: of a dry run, which writes no file: the rows without payloads."""

    file: File
    place: tuple[str, int, Any, int]
    trailer: np.dtype
    body: bytes | None = field(default=None, compare=False)


class PackedRecords(NamedTuple):
    """Stored rows. payloads: the records, or for rows that the scan rejects, JSON of the raw file
    and the error. trailers: see trailer_type."""

    keys: Sequence[bytes]
    payloads: Sequence[bytes]
    trailers: np.ndarray


@dataclass(frozen=True)
class PackedRows:
    """Rows of packed files of one split. rows: ROW [rows]. sums: set if the rows are those of one
    file in a bucket."""

    files: tuple[PackedFile, ...]
    rows: np.ndarray
    sums: BucketSums = field(default_factory=BucketSums)

    def __reduce__(self) -> tuple[Any, ...]:
        """Compressed byte column by byte column, because most columns hardly vary."""
        columns = self.rows.view(np.uint8).reshape(-1, ROW.itemsize).T
        values = pickle.dumps((self.files, columns.tobytes(), self.sums), pickle.HIGHEST_PROTOCOL)
        return _unpickled, (zlib.compress(values, _LEVEL),)

    def __len__(self) -> int:
        return len(self.rows)

    def ranks(self, _seed: int, _split: str) -> np.ndarray:
        """As of References. The files were sorted by them."""
        return self.rows["rank"]

    @property
    def versions(self) -> np.ndarray:
        """As of References."""
        versions = [stat_hash(each.file.stat) for each in self.files]
        return np.array(versions, np.uint32)[self.rows["file"]]

    @property
    def good(self) -> np.ndarray:
        """As of References."""
        return (self.rows["size"] > 0) & ~self.rows["is_repeat"]

    @property
    def framed_bytes(self) -> np.ndarray:
        """int64 [rows]: the size in a shard; 0 for rows that the scan rejects, but not for
        repeats."""
        size = self.rows["size"].astype(np.int64)
        return np.where(size, size + FRAME_BYTES, 0)

    def take(self, rows: Any) -> "PackedRows":
        """The rows with the given numbers (or mask, or slice)."""
        return PackedRows(self.files, self.rows[rows])

    def alone(self) -> PackedRecords:
        """The stored rows, with a request for each. Raises RawDataError if one is damaged."""
        rows = self.rows
        return self._opened(rows, [*self._read(rows["file"], rows["begin"], _ends(rows))])

    def records(self) -> Iterator[PackedRecords]:
        """Yields the stored good rows in batches, with a request for each file and 128 MiB. Raises
        RawDataError if one is damaged."""
        chunk = np.cumsum(self.rows["size"] + self.rows["more"]) // _READ_BYTES
        cuts = np.flatnonzero(np.diff(chunk)) + 1
        for rows, good in zip(np.split(self.rows, cuts), np.split(self.good, cuts), strict=True):
            if good.any():
                yield from self._together(rows[good])

    def _together(self, rows: np.ndarray) -> Iterator[PackedRecords]:
        by_file = np.lexsort((rows["begin"], rows["file"]))
        firsts = np.flatnonzero(np.diff(rows["file"][by_file], prepend=-1))
        files, begins = (rows[name][by_file[firsts]] for name in ("file", "begin"))
        lasts = by_file[np.append(firsts[1:], len(rows)) - 1]
        data = [*self._read(files, begins, _ends(rows)[lasts])]
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            some = rows[first : first + _ROWS_AT_ONCE]
            of = np.searchsorted(files, some["file"])
            places = (of, some["begin"] - begins[of], _ends(some) - begins[of])
            bounds = zip(*(each.tolist() for each in places), strict=True)
            yield self._opened(some, [data[of][begin:end] for of, begin, end in bounds])

    def _read(self, file: np.ndarray, begin: np.ndarray, end: np.ndarray) -> Iterator[bytes]:
        """Reads ranges of files, which are all in one storage, with a request for each."""
        spans = zip(file.tolist(), begin.tolist(), end.tolist(), strict=True)
        ranges = ((self.files[number], begin, end) for number, begin, end in spans)
        if self.files[0].body is not None:
            return (each.body[begin:end] for each, begin, end in ranges if each.body is not None)
        return open_storage(self.files[0].file.uri).read_ranges(
            (each.file.uri, begin, end - begin) for each, begin, end in ranges
        )

    def _opened(self, rows: np.ndarray, stored: Sequence[bytes]) -> PackedRecords:
        trailer = self.files[0].trailer
        trailers = np.frombuffer(b"".join([row[-trailer.itemsize :] for row in stored]), trailer)
        checks = np.array([crc32c(row[:-CHECK_BYTES]) for row in stored], np.uint32)
        for row in rows[checks != trailers["check"]]:
            raise RawDataError(
                f"{self.files[row['file']].file.uri} is damaged at byte {row['begin']}. Remove it, "
                "and run the command again."
            )
        ends = [-trailer.itemsize - size for size in trailers["key_size"].tolist()]
        pairs = [*zip(stored, ends, strict=True)]
        keys = [row[end : -trailer.itemsize] for row, end in pairs]
        return PackedRecords(keys, [row[:end] for row, end in pairs], trailers)


def _ends(rows: np.ndarray) -> np.ndarray:
    """int64 [rows]: the end of each stored row in its file."""
    return rows["begin"] + rows["size"] + rows["more"]


def _unpickled(compressed: bytes) -> PackedRows:
    files, data, sums = pickle.loads(zlib.decompress(compressed))
    columns = np.frombuffer(data, np.uint8).reshape(ROW.itemsize, -1)
    return PackedRows(files, np.ascontiguousarray(columns.T).view(ROW).ravel(), sums)


def joined(pieces: Sequence[PackedRows]) -> PackedRows:
    """The rows of several pieces, one after the other."""
    numbers = dict[PackedFile, int]()
    files = [np.zeros(0, np.int32)]
    for piece in pieces:
        own = [numbers.setdefault(file, len(numbers)) for file in piece.files]
        files.append(np.array(own, np.int32)[piece.rows["file"]])
    rows = np.concatenate([np.zeros(0, ROW), *(piece.rows for piece in pieces)])
    rows["file"] = np.concatenate(files)
    return PackedRows(tuple(numbers), rows)


def merged(pieces: Sequence[PackedRows], most_repeats: int) -> PackedRows:
    """The rows of a bucket by (rank, key). Of rows with the same key, all but the first in the raw
    data (by source, place, number and line) are marked as repeats.

    Reads the keys of rows with equal ranks, which are rare. If there are more than most_repeats, so
    that the conversion fails, considers them repeats without reading their keys."""
    rows = joined(sorted(pieces, key=lambda piece: piece.files[0].place))
    rank = rows.rows["rank"]
    order = np.argsort(rank, kind="stable")
    repeats = np.flatnonzero(np.diff(rank[order]) == 0) + 1
    tied = np.union1d(repeats - 1, repeats)
    if 0 < len(tied) <= 2 * most_repeats:
        several = rows.take(order[tied])
        keys, _, trailers = several.alone()
        rank, file = (several.rows[name].tolist() for name in ("rank", "file"))
        numbers = trailers["offset"].tolist(), order[tied].tolist()
        by_key = sorted(zip(rank, keys, file, *numbers, strict=True))
        order[tied] = [row for *_, row in by_key]
        equal = [one[:2] == other[:2] for one, other in itertools.pairwise(by_key)]
        repeats = tied[1:][equal]
    ordered = rows.rows[order]
    ordered["is_repeat"][repeats] = True
    return PackedRows(rows.files, ordered)
