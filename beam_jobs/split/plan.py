"""The plan of a split: the order-independent sums over its records, a sample of their sizes, and
which records go into which shard. Pure except for the sample: no I/O, no Beam.

Records are ordered by rank. References are sorted bucket by bucket, and large buckets in parts, so
there may be billions of them. If a converter changes the size of records (PNG to JPEG, say), a
sample is converted before the plan: the records of lowest rank, a random choice that does not
depend on the order of scanning. Each batch of the scan offers its lowest ranks, and the lowest of
all are taken."""

import heapq
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from beam_jobs.converter import ConversionJob, Packer, Reject
from beam_jobs.rows.digests import BucketSums, add_sums, hash_sum, mixed, row_hashes, text_hashes
from beam_jobs.rows.packed_rows import PackedRows, merged
from beam_jobs.rows.references import (
    DUPLICATE,
    File,
    Reference,
    References,
    concat,
    encoded,
    in_order,
)
from pipeline.shards.example import encode_example
from pipeline.shards.frames import FRAME_BYTES
from pipeline.shards.naming import hex_digest, key_digest, shard_file
from pipeline.storage.schemes import open_storage

_RECORDS = (
    256  # if sizes vary by half their mean, the ratio is within 3 %; costs ~2 s per split of photos
)
_OFFERED = 1 << 61  # ranks below it are offered: an eighth of all records, so that few are shuffled
_AT_LEAST = 16  # whatever their ranks: an eighth of a few images may be zero
ENCODER_VERSION = (
    1  # of pipeline.shards.example and record: if their bytes change, so does the plan
)


_ROWS_AT_ONCE = 1 << 20  # of a bucket: 300 bytes each while they are sorted
_PACKED_AT_ONCE = 1 << 21  # 120 bytes each
Rows = References | PackedRows


def bucket_sums(job: ConversionJob, split: str, rows: Rows) -> BucketSums:
    """The sums of a batch of rows, which are in one bucket."""
    if isinstance(rows, PackedRows):
        return rows.sums
    rank = rows.ranks(job.seed, split)
    return sums_of(
        framed_bytes(job, rows), row_hashes(rank, rows.decisive), rank, rows.files, rows.file
    )


def sums_of(
    framed: np.ndarray,
    hashes: np.ndarray,
    rank: np.ndarray,
    files: Sequence[File],
    file: np.ndarray,
) -> BucketSums:
    """The sums of rows with these framed sizes, hashes, ranks and indices into `files`."""
    versions = [file.stat.version for file in files]
    of_files = text_hashes(map(encoded, versions))[file]
    known = np.array([*map(bool, versions)], bool)[file]
    # swapping two files changes the digest
    raw = mixed(rank ^ of_files)[known]
    return BucketSums(int(framed.sum()), len(rank), hash_sum(hashes), hash_sum(rank), hash_sum(raw))


def framed_bytes(job: ConversionJob, rows: Rows) -> np.ndarray:
    """int64: the predicted size of each record in its shard; 0 for rejected rows."""
    if isinstance(rows, PackedRows):
        return rows.framed_bytes
    if not len(rows):
        return np.zeros(0, np.int64)
    assert not isinstance(job.converter, Packer)
    return np.where(rows.good, job.converter.record_bytes(rows) + FRAME_BYTES, 0)


class Candidate(NamedTuple):
    """A record that may be in the sample."""

    rank: int
    predicted: int  # bytes of its frame
    ref: Reference


@dataclass(frozen=True)
class Sampled:
    """The framed bytes of the sampled records, predicted and written. Equal if nothing was
    sampled."""

    predicted: int = 1
    written: int = 1

    def scaled(self, predicted: int) -> int:
        """The estimated written size for a predicted size."""
        return predicted * self.written // self.predicted


def candidates(job: ConversionJob, split: str, rows: Rows) -> list[Candidate]:
    """The rows of a batch that may be in the sample. Empty if sizes are known or the number of
    shards is given."""
    if not job.converter.transforms or job.num_shards.get(split) or not len(rows):
        return []
    assert isinstance(rows, References)
    refs = rows.take(rows.good)
    rank = refs.ranks(job.seed, split)
    order = np.argsort(rank, kind="stable")
    chosen = order[: max(_AT_LEAST, int((rank < _OFFERED).sum()))]
    sizes = framed_bytes(job, refs)[chosen].tolist()
    offered = zip(rank[chosen].tolist(), sizes, refs.take(chosen), strict=True)
    return lowest([list(itertools.starmap(Candidate, offered))])


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
    assert not isinstance(job.converter, Packer)
    raw = open_storage(sample[0].ref.file.uri)
    data = raw.read_ranges((each.ref.file.uri, each.ref.offset, each.ref.size) for each in sample)
    predicted = written = 0
    for each, payload in zip(sample, data, strict=True):
        try:
            features = job.converter.convert(each.ref, payload).features
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
        """The number that the job states, or else the one that brings shards closest to the target
        size; at least 1."""
        size = self.sampled.scaled(self.total.bytes)
        return self.job.num_shards.get(self.split) or max(
            1, round(size / self.job.target_shard_bytes)
        )

    @cached_property
    def digest(self) -> str:
        """32 hex digits that change with any byte of the split. Resume and refusal compare them."""
        return _digest(self._fields)

    @property
    def settings(self) -> Mapping[str, str]:
        """A digest of each value that `digest` depends on, to name those that differ."""
        each = {**self._fields, **self._fields["converter"]}
        return {name: _digest(value)[:8] for name, value in each.items()}

    @cached_property
    def _fields(self) -> Mapping[str, Any]:
        sources = self.job.sources_of(self.split)
        return {
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

    def shard_file(self, shard: int) -> str:
        """The shard's file name."""
        return shard_file(self.split, shard, self.num_shards, self.job.converter.schema.files)

    @cached_property
    def raw_checksum(self) -> str | None:
        """32 hex digits that change with any raw file's checksum (on a disk, its stamp); None if no
        file has either.

        Not part of `digest`: the same data gives the same manifest from a disk and a bucket."""
        return f"{self.total.raw_digest:032x}" if self.total.raw_digest else None

    def assign(self, bucket: int, values: Iterable[Any]) -> Iterator[tuple[int, Rows]]:
        """Yields (shard, rows) for the shards that a bucket overlaps, some more than once: rows in
        order, duplicates rejected.

        values: References or PackedRows, iterated several times if there are many, for one range
        of ranks at a time."""
        before = sum(sums.bytes for b, sums in self.sums.items() if b < bucket)
        for pieces in self._parts(bucket, values):
            rows, sizes = self._in_order(pieces)
            del pieces  # before the next ones are read
            for shard, begin, end in self._cuts(before, sizes):
                yield shard, rows.take(slice(begin, end))
            before += int(sizes.sum())
            del rows

    def _parts(self, bucket: int, values: Iterable[Any]) -> Iterator[Sequence[Any]]:
        """Yields the rows of a bucket by range of ranks, in ascending order."""
        at_once = _PACKED_AT_ONCE if isinstance(self.job.converter, Packer) else _ROWS_AT_ONCE
        count = self.sums[bucket].records // at_once + 1
        if count == 1:
            yield [*values]
            return
        size = (1 << 64) // self.job.num_buckets
        begin, part_size = np.uint64(bucket * size), np.uint64(size // count + 1)

        def part_of(rows: Rows) -> np.ndarray:  # a byte per row: hashing keys again takes longer
            part = (rows.ranks(self.job.seed, self.split) - begin) // part_size
            return part.astype(np.min_scalar_type(count))

        parts = [*map(part_of, values)]
        for number in range(count):
            pieces = (rows.take(part == number) for rows, part in zip(values, parts, strict=True))
            yield [rows for rows in pieces if len(rows)]

    def _in_order(self, pieces: Sequence[Any]) -> tuple[Rows, np.ndarray]:
        """The rows in order, and their framed sizes."""
        if isinstance(self.job.converter, Packer):
            rows = merged(pieces, self.job.most_rejected)
            return rows, rows.framed_bytes
        rows = in_order(self.job.seed, self.split, concat(pieces))
        repeats = np.concatenate([[False], rows.key[1:] == rows.key[:-1]])
        return rows.with_errors(repeats, DUPLICATE), framed_bytes(self.job, rows)

    def _cuts(self, before: int, sizes: np.ndarray) -> Iterator[tuple[int, int, int]]:
        """(shard, begin, end) for every shard that rows overlap. before: framed bytes of all rows
        before them. sizes: framed_bytes of each.

        shard = floor((bytes before the record + half its own) * shards / total bytes), in exact
        integers."""
        if not len(sizes):
            return
        twice_middle = 2 * (before + np.cumsum(sizes) - sizes) + sizes
        first, last = map(self._shard_of, twice_middle[[0, -1]].tolist())
        # Shard s starts at the first row whose twice_middle reaches its lower edge. Python
        # integers, because at 100 TB bytes times shards exceeds 2^63.
        edges = [
            -(-2 * self.total.bytes * s // self.num_shards) for s in range(first + 1, last + 1)
        ]
        cuts = [0, *np.searchsorted(twice_middle, edges).tolist(), len(sizes)]
        for shard, (begin, end) in enumerate(itertools.pairwise(cuts), start=first):
            if begin < end:
                yield shard, begin, end

    def _shard_of(self, twice_middle: int) -> int:
        if not self.total.bytes:  # only rejected rows: they go with the first shard
            return 0
        return min(self.num_shards - 1, twice_middle * self.num_shards // (2 * self.total.bytes))


def buckets_of(job: ConversionJob, rank: np.ndarray) -> np.ndarray:
    """int64: the leading bits of each rank, which are its bucket."""
    return (rank >> np.uint64(65 - job.num_buckets.bit_length())).astype(np.int64)


def by_bucket(job: ConversionJob, split: str, rows: Rows) -> Iterator[tuple[int, Rows]]:
    """A batch of rows cut into (bucket, rows). Packed rows are of one bucket already."""
    buckets = buckets_of(job, rows.ranks(job.seed, split))
    if isinstance(rows, PackedRows):
        yield int(buckets[0]), rows
        return
    for bucket in np.unique(buckets).tolist():
        yield bucket, rows.take(buckets == bucket)


def _digest(value: Any) -> str:
    return hex_digest(json.dumps(value, sort_keys=True).encode())
