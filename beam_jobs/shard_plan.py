"""Assigns records to shards, by buckets and sizes. Pure: no I/O, no Beam.

Records are ordered by rank. References are sorted bucket by bucket, so there may be a billion of them."""

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from beam_jobs.bucket_sums import BucketSums, add_sums, framed_bytes
from beam_jobs.conversion_job import ConversionJob
from beam_jobs.references import References, concat, in_order
from beam_jobs.sample import Sampled
from pipeline.shards.keys import key_digest, ranks
from pipeline.shards.naming import shard_file

ENCODER_VERSION = 1  # of pipeline.shards.example and record: if their bytes change, so does the plan


@dataclass(frozen=True)
class SplitPlan:
    """The layout of one split: a pure function of the job, the bucket sums and, if sizes change, a sample."""

    job: ConversionJob
    split: str
    sums: Mapping[int, BucketSums]  # by bucket
    sampled: Sampled = field(default_factory=Sampled)

    @cached_property
    def total(self) -> BucketSums:
        """The sums of the entire split."""
        return add_sums(self.sums.values())

    @cached_property
    def num_shards(self) -> int:
        """The number from the job, or else the one that brings shards closest to the target size; at least 1."""
        demanded = self.job.num_shards.get(self.split)
        return demanded or max(1, round(self.sampled.scaled(self.total.bytes) / self.job.target_shard_bytes))

    @cached_property
    def digest(self) -> str:
        """32 hex digits that change with any byte of the split. Resume and refusal compare them."""
        sources = self.job.sources_of(self.split)
        fields = {
            "encoder": ENCODER_VERSION,
            "split": self.split,
            "seed": self.job.seed,
            "num_shards": self.num_shards,
            "schema": self.job.converter.schema.to_json(),
            "converter": dict(self.job.converter.digest_fields()),
            "records": self.total.records,
            "rows": f"{self.total.row_digest:032x}",
            "sources": f"{key_digest(str(source.bytes).encode() for source in sources):032x}",
        }
        return hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=16).hexdigest()

    def shard_file(self, shard: int) -> str:
        """The shard's file name."""
        return shard_file(self.split, shard, self.num_shards, self.job.converter.schema.files)

    @cached_property
    def raw_checksum(self) -> str | None:
        """32 hex digits that change with any raw file's checksum (on a disk, its stamp); None if no file has either.

        Not part of `digest`: the same data gives the same manifest from a disk and from gs://."""
        return f"{self.total.raw_digest:032x}" if self.total.raw_digest else None

    def assign(self, bucket: int, pieces: Iterable[References]) -> Iterator[tuple[int, References]]:
        """Yields (shard, rows) for every shard that a bucket overlaps: rows in order, duplicates rejected.

        shard = floor((bytes before the record + half its own) * shards / total bytes), in exact integers."""
        refs = in_order(self.job.seed, self.split, concat(list(pieces)))
        sizes = framed_bytes(self.job.converter, refs)
        before = sum(sums.bytes for b, sums in self.sums.items() if b < bucket)
        twice_middle = 2 * (before + np.cumsum(sizes) - sizes) + sizes
        repeats = np.concatenate([[False], refs.key[1:] == refs.key[:-1]])
        refs = refs.with_errors(repeats, "duplicate key: another record of this split has the same name")
        first, last = (self._shard_of(int(m)) for m in (twice_middle[0], twice_middle[-1]))
        # Shard s starts at the first row whose twice_middle reaches its lower edge. Python integers, because at 100 TB
        # bytes times shards exceeds 2^63.
        edges = [-(-2 * self.total.bytes * s // self.num_shards) for s in range(first + 1, last + 1)]
        cuts = [0, *np.searchsorted(twice_middle, edges).tolist(), len(refs)]
        for shard, (begin, end) in enumerate(itertools.pairwise(cuts), start=first):
            if begin < end:
                yield shard, refs.take(np.arange(begin, end))

    def _shard_of(self, twice_middle: int) -> int:
        if not self.total.bytes:  # only rejected rows: they go with the first shard
            return 0
        return min(self.num_shards - 1, twice_middle * self.num_shards // (2 * self.total.bytes))


def by_bucket(job: ConversionJob, split: str, refs: References) -> Iterator[tuple[int, References]]:
    """A batch of rows cut into (bucket, rows). The leading bits of a row's rank are its bucket."""
    shift = 64 - (job.num_buckets.bit_length() - 1)
    buckets = (ranks(job.seed, split, refs.key) >> np.uint64(shift)).astype(np.int64)
    for bucket in np.unique(buckets).tolist():
        yield bucket, refs.take(buckets == bucket)
