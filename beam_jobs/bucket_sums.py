"""Order-independent sums over records: sizes, counts and digests, all that a plan needs from other buckets. Pure."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from beam_jobs.converter import Converter, Packer
from beam_jobs.references import References
from pipeline.shards.keys import add_digests, key_digest
from pipeline.shards.record import FRAME_BYTES


class BucketSums(NamedTuple):
    """The sums over a bucket or part of one."""

    bytes: int = 0  # framed, of the good rows, as predicted
    records: int = 0  # all rows, including rejected ones
    row_digest: int = 0  # sum of the rows' hashes modulo 2^128: independent of order
    key_digest: int = 0  # the same over their keys only
    raw_digest: int = 0  # the same over their keys and the versions of their raw files: see Stat


def measure(converter: Converter | Packer, refs: References) -> BucketSums:
    """The sums of a batch of rows."""
    return BucketSums(
        int(framed_bytes(converter, refs).sum()),
        len(refs),
        key_digest(repr(row).encode() for row in refs.values()),
        key_digest(refs.key.tolist()),
        key_digest(_keys_with_versions(refs)),
    )


def framed_bytes(converter: Converter | Packer, refs: References) -> np.ndarray:
    """int64: the predicted size of each record in its shard; 0 for rejected rows."""
    return np.where(refs.good, converter.record_bytes(refs) + FRAME_BYTES, 0) if len(refs) else np.zeros(0, int)


def add_sums(sums: Iterable[BucketSums]) -> BucketSums:
    """The total. Sizes and numbers of records are added as digests are, which wrap around far above them."""
    return BucketSums(*map(add_digests, zip(*sums, strict=True)))


def _keys_with_versions(refs: References) -> Iterator[bytes]:
    """Includes the keys, so that swapping two files changes the digest."""
    versions = [file.stat.version for file in refs.files]
    ends = [f"\0{version}".encode() if version else b"" for version in versions]
    return (key + end for key, end in zip(refs.key.tolist(), (ends[i] for i in refs.file), strict=True) if end)
