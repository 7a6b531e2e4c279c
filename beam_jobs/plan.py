"""Which record goes into which shard: ranks, bucket sums, the assignment. Pure, no I/O, no Beam.

Records stand in the order of a keyed hash of their names, so the order needs no shuffle and no central list: a
billion references are sorted bucket by bucket, and a prefix sum of 64 numbers tells each bucket where it begins."""

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from beam_jobs.converter import Converter, Source
from beam_jobs.references import References, concat
from pipeline.shards.naming import shard_file
from pipeline.shards.record import FRAME_BYTES

__all__ = [
    "BucketSums",
    "Job",
    "SplitPlan",
    "add_sums",
    "bucket_of",
    "by_bucket",
    "in_order",
    "key_digest",
    "measure",
    "ranks",
]

ENCODER_VERSION = 1  # of pipeline.shards.example and record: a change of their bytes is a change of plan
_BYTES_PER_BUCKET = 4 * 10**9  # of raw data; ~36,000 ImageNet references sort in one element
_MIN_BUCKETS = 8  # each source has a piece for each bucket, ~1 KB however few rows it has


class BucketSums(NamedTuple):
    """What one bucket (or a part of it) adds up to."""

    bytes: int = 0  # framed, of the good rows, as predicted
    records: int = 0  # all rows, rejected ones too
    row_digest: int = 0  # sum of the rows' hashes modulo 2^128: free of order
    key_digest: int = 0  # the same of their keys alone
    raw_digest: int = 0  # the same of their keys and raw files' checksums, of rows whose storage keeps one

    def __add__(self, other: "BucketSums") -> "BucketSums":  # type: ignore[override]
        mask = (1 << 128) - 1
        return BucketSums(
            self.bytes + other.bytes,
            self.records + other.records,
            (self.row_digest + other.row_digest) & mask,
            (self.key_digest + other.key_digest) & mask,
            (self.raw_digest + other.raw_digest) & mask,
        )


@dataclass(frozen=True)
class Job:
    """One conversion, as its launcher describes it to every worker."""

    converter: Converter
    sources: tuple[Source, ...]
    output_dir: str
    target_shard_bytes: int = 100 * 10**6
    num_shards: Mapping[str, int] | None = None  # of a split; None or absent: by target_shard_bytes
    seed: int = 0
    max_bad_records: int = 0
    overwrite: bool = False  # a split of another plan is replaced, not refused
    verify_existing: bool = False  # finished shards are read again, not only measured
    scratch: tuple[str, ...] = ()  # temporary files among the sources, removed by the commit
    run_id: str = ""  # names this run in its verdict; never in data

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits to write, sorted: their numbers are part of the shuffle keys."""
        return tuple(sorted({source.split for source in self.sources}))

    @cached_property
    def num_buckets(self) -> int:
        """A power of two that follows the size of the input. It changes no byte of output."""
        wanted = sum(source.bytes for source in self.sources) // _BYTES_PER_BUCKET
        return max(_MIN_BUCKETS, 1 << wanted.bit_length())


@dataclass(frozen=True)
class SplitPlan:
    """How one split is laid out: a pure function of the job and of its bucket sums."""

    job: Job
    split: str
    sums: Mapping[int, BucketSums]  # by bucket

    @cached_property
    def total(self) -> BucketSums:
        """Of the whole split."""
        return add_sums(self.sums.values())

    @cached_property
    def num_shards(self) -> int:
        """As demanded, or as many as bring the shards nearest to the target size; at least one."""
        demanded = (self.job.num_shards or {}).get(self.split)
        return demanded or max(1, round(self.total.bytes / self.job.target_shard_bytes))

    @cached_property
    def digest(self) -> str:
        """32 hex digits that change with any byte of the split: the identity that resume and refusal go by."""
        sources = [source for source in self.job.sources if source.split == self.split]
        fields = {
            "encoder": ENCODER_VERSION,
            "split": self.split,
            "seed": self.job.seed,
            "num_shards": self.num_shards,
            "schema": self.job.converter.schema.to_json(),
            "converter": dict(self.job.converter.digest_fields()),
            "records": self.total.records,
            "rows": f"{self.total.row_digest:032x}",
            "sources": f"{_sum_of_hashes(str(source.bytes).encode() for source in sources):032x}",
        }
        return hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=16).hexdigest()

    def shard_file(self, shard: int) -> str:
        """The shard's name."""
        return shard_file(self.split, shard, self.num_shards, self.job.converter.schema.files)

    @cached_property
    def raw_checksum(self) -> str | None:
        """32 hex digits that change with any byte of the raw files; None for files on a disk, which has no checksums.

        Not in `digest`: the same data give the same manifest from a disk and from gs://."""
        return f"{self.total.raw_digest:032x}" if self.total.raw_digest else None

    def assign(self, bucket: int, pieces: Iterable[References]) -> Iterator[tuple[int, References]]:
        """(shard, rows) for every shard that a bucket reaches into; rows in order, duplicates rejected.

        shard = floor((bytes before the record + half its own) * shards / all bytes), in exact integers."""
        refs = in_order(self.job, self.split, concat(list(pieces)))
        sizes = framed_bytes(self.job, refs)
        before = sum(sums.bytes for b, sums in self.sums.items() if b < bucket)
        twice_middle = 2 * (before + np.cumsum(sizes) - sizes) + sizes
        refs = refs.with_errors(_repeats(refs), "duplicate key: another record of this split has the same name")
        first, last = (self._shard_of(int(m)) for m in (twice_middle[0], twice_middle[-1]))
        # Row r is in shard s iff twice_middle[r] reaches s's lower edge. Python integers: at 100 TB the product
        # of bytes and shards passes 2^63.
        edges = [-(-2 * self.total.bytes * s // self.num_shards) for s in range(first + 1, last + 1)]
        cuts = [0, *np.searchsorted(twice_middle, edges).tolist(), len(refs)]
        for shard, (begin, end) in enumerate(itertools.pairwise(cuts), start=first):
            if begin < end:
                yield shard, refs.take(np.arange(begin, end))

    def _shard_of(self, twice_middle: int) -> int:
        if not self.total.bytes:  # nothing but rejected rows: they travel with the first shard
            return 0
        return min(self.num_shards - 1, twice_middle * self.num_shards // (2 * self.total.bytes))


def ranks(seed: int, split: str, keys: np.ndarray) -> np.ndarray:
    """uint64: the place of each record in its split. FORMAT.md fixes this hash; it must never change."""
    prefix = f"{seed}\0{split}\0".encode()
    digests = b"".join(hashlib.blake2b(prefix + key, digest_size=8).digest() for key in keys.tolist())
    return np.frombuffer(digests, ">u8").astype(np.uint64)


def bucket_of(job: Job, split: str, refs: References) -> np.ndarray:
    """int64: the bucket of each row, by the leading bits of its rank."""
    shift = 64 - (job.num_buckets.bit_length() - 1)
    return (ranks(job.seed, split, refs.key) >> np.uint64(shift)).astype(np.int64)


def by_bucket(job: Job, split: str, refs: References) -> Iterator[tuple[int, References]]:
    """A batch of rows cut into (bucket, rows)."""
    buckets = bucket_of(job, split, refs)
    for bucket in np.unique(buckets).tolist():
        yield bucket, refs.take(buckets == bucket)


def framed_bytes(job: Job, refs: References) -> np.ndarray:
    """int64: the predicted size of each record in its shard; 0 for rejected rows."""
    return np.where(refs.good, job.converter.record_bytes(refs) + FRAME_BYTES, 0) if len(refs) else np.zeros(0, int)


def measure(job: Job, refs: References) -> BucketSums:
    """The sums of a batch of rows."""
    return BucketSums(
        int(framed_bytes(job, refs).sum()),
        len(refs),
        _sum_of_hashes(repr(row).encode() for row in refs.values()),
        key_digest(refs.key.tolist()),
        _sum_of_hashes(_keys_with_checksums(refs)),
    )


def add_sums(sums: Iterable[BucketSums]) -> BucketSums:
    """The sum of sums. (`sum` starts at 0, which is no BucketSums.)"""
    total = BucketSums()
    for each in sums:
        total += each
    return total


def key_digest(keys: Iterable[bytes]) -> int:
    """The sum of the keys' 128-bit hashes modulo 2^128: equal for equal sets of keys in any order."""
    return _sum_of_hashes(keys)


def in_order(job: Job, split: str, refs: References) -> References:
    """The rows sorted by (rank, key); rows of one key by place, so that the choice among duplicates is stable."""
    uris = np.array([file.uri.encode("utf-8", "surrogateescape") for file in refs.files] or [b""], "S")
    place = uris[refs.file] if len(refs) else refs.key
    return refs.take(np.lexsort((refs.offset, place, refs.key, ranks(job.seed, split, refs.key))))


def _keys_with_checksums(refs: References) -> Iterator[bytes]:
    """Keys are in it so that two files that changed places are seen."""
    ends = [None if file.stat.crc32c is None else b"\0%08x" % file.stat.crc32c for file in refs.files]
    return (key + end for key, end in zip(refs.key.tolist(), (ends[i] for i in refs.file), strict=True) if end)


def _repeats(refs: References) -> np.ndarray:
    """bool: rows whose key is that of the row before."""
    return np.concatenate([[False], refs.key[1:] == refs.key[:-1]])


def _sum_of_hashes(items: Iterable[bytes]) -> int:
    total = 0
    for item in items:
        total += int.from_bytes(hashlib.blake2b(item, digest_size=16).digest(), "big")
    return total & ((1 << 128) - 1)
