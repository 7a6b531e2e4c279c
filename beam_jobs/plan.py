"""The plan of a split: the order-independent sums over its records, a sample of their sizes, and
which records go into which shard. Pure but for the sample: no I/O, no Beam.

Records are ordered by rank. References are sorted bucket by bucket, so there may be a billion of
them. Where a converter changes the size of records (of a PNG to JPEG, say), a sample is converted
before the plan: the records of lowest rank, a random choice that does not depend on the order of
scanning: each piece of the scan offers its lowest, and the lowest of all are taken."""

import hashlib
import heapq
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from beam_jobs.converter import ConversionJob, Converter, Packer, Reject
from beam_jobs.references import Reference, References, concat, in_order
from pipeline.shards.example import encode_example
from pipeline.shards.frames import FRAME_BYTES
from pipeline.shards.naming import add_digests, key_digest, ranks, shard_file
from pipeline.storage.schemes import open_storage

_RECORDS = (
    256  # if sizes vary by half their mean, the ratio is within 3 %; costs ~2 s per split of photos
)
_OFFERED = 1 << 61  # ranks below it are offered: an eighth of all records, so that few are shuffled
_AT_LEAST = 16  # whatever their ranks: an eighth of a few images may be none
ENCODER_VERSION = (
    1  # of pipeline.shards.example and record: if their bytes change, so does the plan
)


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
    return (
        np.where(refs.good, converter.record_bytes(refs) + FRAME_BYTES, 0)
        if len(refs)
        else np.zeros(0, int)
    )


def add_sums(sums: Iterable[BucketSums]) -> BucketSums:
    """The total. Sizes and numbers of records are added like digests, which wrap around far above
    them."""
    return BucketSums(*map(add_digests, zip(*sums, strict=True)))


def _keys_with_versions(refs: References) -> Iterator[bytes]:
    """The keys, each followed by the version of its raw file: swapping two files changes the
    digest."""
    versions = [file.stat.version for file in refs.files]
    for key, file in zip(refs.key.tolist(), refs.file.tolist(), strict=True):
        if versions[file]:
            yield key + f"\0{versions[file]}".encode()


class Candidate(NamedTuple):
    """A record that may be in the sample."""

    rank: int
    predicted: int  # bytes of its frame
    ref: Reference


@dataclass(frozen=True)
class Sampled:
    """Framed bytes of the sampled records, as predicted and as written. Equal if nothing was
    sampled."""

    predicted: int = 1
    written: int = 1

    def scaled(self, predicted: int) -> int:
        """The estimated written size for a predicted size."""
        return predicted * self.written // self.predicted


def candidates(job: ConversionJob, split: str, refs: References) -> list[Candidate]:
    """The rows of a batch that may be in the sample. Empty if sizes are known or the number of
    shards is given."""
    if not job.converter.transforms or job.num_shards.get(split) or not len(refs):
        return []
    refs = refs.take(refs.good)
    rank = ranks(job.seed, split, refs.key)
    order = np.argsort(rank, kind="stable")
    chosen = order[: max(_AT_LEAST, int((rank < _OFFERED).sum()))]
    sizes = framed_bytes(job.converter, refs)[chosen].tolist()
    rows = zip(rank[chosen].tolist(), sizes, refs.take(chosen), strict=True)
    return lowest([list(itertools.starmap(Candidate, rows))])


def lowest(groups: Iterable[Sequence[Candidate]]) -> list[Candidate]:
    """The candidates of lowest rank: up to 256 with ranks below a bound, but at least 16 if there
    are enough."""
    sample = heapq.nsmallest(_RECORDS, itertools.chain.from_iterable(groups), key=_place)
    return sample[: max(_AT_LEAST, sum(each.rank < _OFFERED for each in sample))]


def _place(candidate: Candidate) -> tuple[Any, ...]:
    """The sort key of a candidate. Rows with the same key compare by their content, so their order
    of arrival does not matter."""
    ref = candidate.ref
    return (
        candidate.rank,
        ref.key,
        ref.file.uri,
        ref.offset,
        ref.size,
        sorted(ref.columns.items()),
    )


def convert_sample(job: ConversionJob, sample: Sequence[Candidate]) -> Sampled:
    """Converts the sample. Raises StorageError. Ignores rejected records, which gather reports."""
    if not sample:
        return Sampled()
    raw = open_storage(sample[0].ref.file.uri)
    data = raw.read_ranges((each.ref.file.uri, each.ref.offset, each.ref.size) for each in sample)
    predicted = written = 0
    for each, encoded in zip(sample, data, strict=True):
        try:
            features = job.converter.convert(each.ref, encoded).features
        except Reject:
            continue
        record = (
            features
            if isinstance(features, bytes)
            else encode_example(job.converter.schema, features)
        )
        predicted += each.predicted
        written += len(record) + FRAME_BYTES
    return Sampled(predicted, written) if predicted else Sampled()


@dataclass(frozen=True)
class SplitPlan:
    """The layout of one split: a pure function of the job, the bucket sums and, if sizes change, a
    sample."""

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
        """The number from the job, or else the one that brings shards closest to the target size;
        at least 1."""
        size = self.sampled.scaled(self.total.bytes)
        return self.job.num_shards.get(self.split) or max(
            1, round(size / self.job.target_shard_bytes)
        )

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
        return hashlib.blake2b(
            json.dumps(fields, sort_keys=True).encode(), digest_size=16
        ).hexdigest()

    def shard_file(self, shard: int) -> str:
        """The shard's file name."""
        return shard_file(self.split, shard, self.num_shards, self.job.converter.schema.files)

    @cached_property
    def raw_checksum(self) -> str | None:
        """32 hex digits that change with any raw file's checksum (on a disk, its stamp); None if no
        file has either.

        Not part of `digest`: the same data gives the same manifest from a disk and from gs://."""
        return f"{self.total.raw_digest:032x}" if self.total.raw_digest else None

    def assign(self, bucket: int, pieces: Iterable[References]) -> Iterator[tuple[int, References]]:
        """Yields (shard, rows) for every shard that a bucket overlaps: rows in order, duplicates
        rejected.

        shard = floor((bytes before the record + half its own) * shards / total bytes), in exact
        integers."""
        refs = in_order(self.job.seed, self.split, concat(list(pieces)))
        sizes = framed_bytes(self.job.converter, refs)
        before = sum(sums.bytes for b, sums in self.sums.items() if b < bucket)
        twice_middle = 2 * (before + np.cumsum(sizes) - sizes) + sizes
        repeats = np.concatenate([[False], refs.key[1:] == refs.key[:-1]])
        refs = refs.with_errors(
            repeats, "duplicate key: another record of this split has the same name"
        )
        first, last = map(self._shard_of, twice_middle[[0, -1]].tolist())
        # Shard s starts at the first row whose twice_middle reaches its lower edge. Python
        # integers, because at 100 TB bytes times shards exceeds 2^63.
        edges = [
            -(-2 * self.total.bytes * s // self.num_shards) for s in range(first + 1, last + 1)
        ]
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
    shift = 65 - job.num_buckets.bit_length()
    buckets = (ranks(job.seed, split, refs.key) >> np.uint64(shift)).astype(np.int64)
    for bucket in np.unique(buckets).tolist():
        yield bucket, refs.take(buckets == bucket)
