"""Rows of packed files: what a conversion shuffles, instead of References, where each record is
made of several pieces of raw data.

A packed file has its rows in the order of their ranks, so those of a bucket or a shard are one
range of each file: gathering makes a request per file, not per record. A row travels as 16 bytes,
and is in its file as payload, key and trailer, so that one range has all of it."""

import itertools
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from beam_jobs.digests import NO_SUMS, BucketSums
from beam_jobs.references import File, stat_hash
from pipeline.shards.frames import FRAME_BYTES
from pipeline.storage.schemes import open_storage

CHECK_BYTES = 4  # of a row's checksum, at its end
_LEVEL = 1  # of zlib; ranks do not shrink, sizes almost vanish


def trailer_type(columns: Iterable[str]) -> np.dtype:
    """What each row ends with: offset, in the raw file; crc32c, of the record; the converter's
    columns; and check, the crc32c of all before it."""
    usual = [("offset", "<i8"), ("crc32c", "<u4"), ("key_size", "<u4")]
    return np.dtype([*usual, *((name, "<i8") for name in columns), ("check", "<u4")])


@dataclass(frozen=True)
class PackedFile:
    """One packed file.

    file: its path, and the size and version of the raw data that it was made from.
    source, offset, piece, number: the raw file, where its range begins, which piece of it, and how
        many packed files of it come before.
    columns: the converter's, in trailers.
    body: of a dry run, which writes no file: the rows without payloads."""

    file: File
    source: str
    offset: int
    piece: Any
    number: int
    columns: tuple[str, ...]
    body: bytes | None = None

    @property
    def trailer(self) -> np.dtype:
        """See trailer_type."""
        return trailer_type(self.columns)


@dataclass(frozen=True)
class PackedRows:
    """Consecutive rows of a packed file, in order.

    first, begin: the number of the first row in the file, and its first byte.
    rank: uint64 [rows].
    size: uint32 [rows], of the record; 0 for a row that the scan rejects.
    more: uint32 [rows], of everything else that is stored.
    sums: of these rows, if they are all of a file's in a bucket.
    repeats: numbers of rows in the file, which are duplicates of others."""

    file: PackedFile
    first: int
    begin: int
    rank: np.ndarray
    size: np.ndarray
    more: np.ndarray
    sums: BucketSums = NO_SUMS
    repeats: tuple[int, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        values = tuple(getattr(self, field.name) for field in fields(self))
        return _unpickled, (zlib.compress(pickle.dumps(values, pickle.HIGHEST_PROTOCOL), _LEVEL),)

    def __len__(self) -> int:
        return len(self.rank)

    def ranks(self, _seed: int, _split: str) -> np.ndarray:
        """As of References. The file was sorted by them."""
        return self.rank

    @property
    def versions(self) -> np.ndarray:
        """As of References."""
        return np.full(len(self), stat_hash(self.file.file.stat), np.uint32)

    @property
    def good(self) -> np.ndarray:
        """bool [rows]: those that the scan did not reject."""
        return self.size > 0

    @property
    def framed_bytes(self) -> np.ndarray:
        """int64 [rows]: the size in a shard, 0 for rejected ones. Duplicates count, too."""
        return np.where(self.good, self.size.astype(np.int64) + FRAME_BYTES, 0)

    @property
    def stored(self) -> np.ndarray:
        """int64 [rows]: the bytes in the file."""
        stored = self.more.astype(np.int64)
        return stored if self.file.body is not None else stored + self.size

    @cached_property
    def ends(self) -> np.ndarray:
        """int64 [rows]: where each row ends, counted from the first one's beginning."""
        return np.cumsum(self.stored)

    def part(self, begin: int, end: int, sums: BucketSums = NO_SUMS) -> "PackedRows":
        """The rows begin..end of these."""
        return replace(
            self,
            first=self.first + begin,
            begin=self.begin + (int(self.ends[begin - 1]) if begin else 0),
            rank=self.rank[begin:end],
            size=self.size[begin:end],
            more=self.more[begin:end],
            sums=sums,
        )


def _unpickled(compressed: bytes) -> PackedRows:
    return PackedRows(*pickle.loads(zlib.decompress(compressed)))


def in_file_order(parts: Sequence[PackedRows]) -> list[PackedRows]:
    """By source, place and number: of two rows with one key, the first in the raw data is kept.
    Those that follow on each other in a file, from several buckets, are joined."""

    def place(part: PackedRows) -> tuple[Any, ...]:
        return part.file.source, part.file.offset, part.file.piece, part.file.number

    in_order = list[PackedRows]()
    ordered = sorted(parts, key=lambda part: (place(part), part.first))
    for _, several in itertools.groupby(ordered, place):
        group = [*several]
        ends = [part.first + len(part) for part in group]
        cuts = [i for i in range(1, len(group)) if group[i].first != ends[i - 1]]
        for begin, end in itertools.pairwise([0, *cuts, len(group)]):
            in_order.append(_joined(group[begin:end]))
    return in_order


def _joined(parts: Sequence[PackedRows]) -> PackedRows:
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("rank", "size", "more")
    }
    repeats = tuple(itertools.chain.from_iterable(part.repeats for part in parts))
    return replace(parts[0], repeats=repeats, **columns)


def order_of(rank: np.ndarray, keys_of_tied: Callable[[list[int]], Sequence[Any]]) -> np.ndarray:
    """The numbers of the rows by rank; where ranks are equal, which is rare, by their keys, or as
    they come if there are none."""
    order = np.argsort(rank, kind="stable")
    equal = np.diff(rank[order]) == 0
    tied = np.flatnonzero(np.append(equal, False) | np.append([False], equal))
    if len(tied):
        rows = order[tied].tolist()
        if keys := keys_of_tied(rows):
            again = sorted(range(len(rows)), key=lambda i: (rank[rows[i]], keys[i]))
            order[tied] = order[tied[again]]
    return order


def merged(parts: Sequence[PackedRows], most_repeats: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of all parts by (rank, key): the part of each, whose rows come in their order; and
    whether it has the key of the row before it. parts: in_file_order.

    Reads keys where ranks are equal. If these are more than most_repeats, so that the conversion
    fails, takes them for repeats."""
    rank = np.concatenate([part.rank for part in parts])
    lengths = [len(part) for part in parts]
    part_of = np.repeat(np.arange(len(parts)), lengths)
    firsts = np.cumsum(lengths) - lengths
    known = dict[int, bytes]()

    def keys_of_tied(rows: list[int]) -> Sequence[bytes]:
        if len(rows) > 2 * most_repeats:
            return ()
        places = [(parts[part_of[row]], row - int(firsts[part_of[row]])) for row in rows]
        alone = [part.part(at, at + 1) for part, at in places]
        keys = [*itertools.chain.from_iterable(map(keys_of, alone, stored_bytes(alone)))]
        known.update(zip(rows, keys, strict=True))
        return keys

    order = order_of(rank, keys_of_tied)
    repeats = np.append([False], np.diff(rank[order]) == 0)
    for at in np.flatnonzero(repeats).tolist() if known else ():
        repeats[at] = known[order[at - 1]] == known[order[at]]
    return part_of[order], repeats


def places_of(part_of: np.ndarray, num_parts: int) -> list[np.ndarray]:
    """The places of each part's rows among all rows, for the result of `merged`."""
    ends = np.cumsum(np.bincount(part_of, minlength=num_parts))
    return np.split(np.argsort(part_of, kind="stable"), ends[:-1])


def stored_bytes(parts: Sequence[PackedRows]) -> Iterator[bytes]:
    """What is stored of each part: a request for each. All files are in one storage."""
    if parts and parts[0].file.body is not None:
        for part in parts:
            assert part.file.body is not None
            yield part.file.body[part.begin : part.begin + int(part.stored.sum())]
    elif parts:
        ranges = ((part.file.file.uri, part.begin, int(part.stored.sum())) for part in parts)
        yield from open_storage(parts[0].file.file.uri).read_ranges(ranges)


def trailers_of(part: PackedRows, data: bytes) -> np.ndarray:
    """The trailers of a part's rows: a structured array. data: as stored."""
    size = part.file.trailer.itemsize
    begins = part.ends - size
    places = begins[:, None] + np.arange(size)
    return np.frombuffer(data, np.uint8)[places].view(part.file.trailer).reshape(-1)


def keys_of(part: PackedRows, data: bytes) -> list[bytes]:
    """The key of each row of a part. data: as stored."""
    ends = part.ends - part.file.trailer.itemsize
    begins = ends - trailers_of(part, data)["key_size"]
    return [data[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
