"""Order-independent sums over records: sizes, counts and digests, all that a plan needs from other buckets. Pure."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from beam_jobs.converter import Converter
from beam_jobs.references import References
from pipeline.shards.record import FRAME_BYTES

__all__ = ["BucketSums", "add_sums", "framed_bytes", "key_digest", "measure", "sum_of_hashes"]

_MODULO = (1 << 128) - 1


class BucketSums(NamedTuple):
    """The sums over a bucket or part of one."""

    bytes: int = 0  # framed, of the good rows, as predicted
    records: int = 0  # all rows, including rejected ones
    row_digest: int = 0  # sum of the rows' hashes modulo 2^128: independent of order
    key_digest: int = 0  # the same over their keys only
    raw_digest: int = 0  # the same over their keys and the versions of their raw files: see Stat

    def __add__(self, other: "BucketSums") -> "BucketSums":  # type: ignore[override]
        return BucketSums(
            self.bytes + other.bytes,
            self.records + other.records,
            (self.row_digest + other.row_digest) & _MODULO,
            (self.key_digest + other.key_digest) & _MODULO,
            (self.raw_digest + other.raw_digest) & _MODULO,
        )


def measure(converter: Converter, refs: References) -> BucketSums:
    """The sums of a batch of rows."""
    return BucketSums(
        int(framed_bytes(converter, refs).sum()),
        len(refs),
        sum_of_hashes(repr(row).encode() for row in refs.values()),
        key_digest(refs.key.tolist()),
        sum_of_hashes(_keys_with_versions(refs)),
    )


def framed_bytes(converter: Converter, refs: References) -> np.ndarray:
    """int64: the predicted size of each record in its shard; 0 for rejected rows."""
    return np.where(refs.good, converter.record_bytes(refs) + FRAME_BYTES, 0) if len(refs) else np.zeros(0, int)


def add_sums(sums: Iterable[BucketSums]) -> BucketSums:
    """The total."""
    return sum(sums, BucketSums())


def key_digest(keys: Iterable[bytes]) -> int:
    """The sum of the keys' 128-bit hashes modulo 2^128: equal for equal sets of keys in any order."""
    return sum_of_hashes(keys)


def sum_of_hashes(items: Iterable[bytes]) -> int:
    """The sum of the items' 128-bit hashes modulo 2^128: equal for equal sets of items in any order."""
    return sum(int.from_bytes(hashlib.blake2b(item, digest_size=16).digest(), "big") for item in items) & _MODULO


def _keys_with_versions(refs: References) -> Iterator[bytes]:
    """Includes the keys, so that swapping two files changes the digest."""
    versions = [file.stat.version for file in refs.files]
    ends = [f"\0{version}".encode() if version else b"" for version in versions]
    return (key + end for key, end in zip(refs.key.tolist(), (ends[i] for i in refs.file), strict=True) if end)
