"""Estimates how a converter changes the size of records (of a PNG to JPEG, say) by converting a sample before the plan.

The sample is the records of lowest rank, a random choice that does not depend on the order of scanning: each piece of
the scan offers its lowest, and the lowest of all are taken."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from beam_jobs.bucket_sums import framed_bytes
from beam_jobs.conversion_job import ConversionJob
from beam_jobs.converter import Reject
from beam_jobs.references import Reference, References
from pipeline.shards.example import encode_example
from pipeline.shards.keys import ranks
from pipeline.shards.record import FRAME_BYTES
from pipeline.storage.schemes import open_storage

_RECORDS = 256  # if sizes vary by half their mean, the ratio is within 3 %; costs ~2 s per split of photos
_OFFERED = 1 << 61  # ranks below it are offered: an eighth of all records, so that few are shuffled
_AT_LEAST = 16  # whatever their ranks: an eighth of a few images may be none


class Candidate(NamedTuple):
    """A record that may be in the sample."""

    rank: int
    key: str
    predicted: int  # bytes of its frame
    ref: Reference


@dataclass(frozen=True)
class Sampled:
    """Framed bytes of the sampled records, as predicted and as written. Equal if nothing was sampled."""

    predicted: int = 1
    written: int = 1

    def scaled(self, predicted: int) -> int:
        """The estimated written size for a predicted size."""
        return predicted * self.written // self.predicted


def candidates(job: ConversionJob, split: str, refs: References) -> list[Candidate]:
    """The rows of a batch that may be in the sample. Empty if sizes are known or the number of shards is given."""
    if not job.converter.transforms or job.num_shards.get(split) or not len(refs):
        return []
    refs = refs.take(refs.good)
    rank = ranks(job.seed, split, refs.key)
    order = np.argsort(rank, kind="stable")
    chosen = order[: max(_AT_LEAST, int((rank < _OFFERED).sum()))]
    sizes = framed_bytes(job.converter, refs)[chosen].tolist()
    rows = zip(rank[chosen].tolist(), sizes, refs.take(chosen), strict=True)
    return lowest([[Candidate(place, ref.key, size, ref) for place, size, ref in rows]])


def lowest(groups: Iterable[Sequence[Candidate]]) -> list[Candidate]:
    """The candidates of lowest rank: up to 256 with ranks below a bound, but at least 16 if there are enough."""
    found = heapq.nsmallest(_RECORDS, (each for group in groups for each in group), key=_place)
    return found[: max(_AT_LEAST, sum(each.rank < _OFFERED for each in found))]


def _place(candidate: Candidate) -> tuple[Any, ...]:
    """The sort key. Rows with the same key compare by their content, so their order of arrival does not matter."""
    ref = candidate.ref
    return candidate.rank, candidate.key, ref.file.uri, ref.offset, ref.size, sorted(ref.columns.items())


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
        record = features if isinstance(features, bytes) else encode_example(job.converter.schema, features)
        predicted, written = predicted + each.predicted, written + len(record) + FRAME_BYTES
    return Sampled(predicted, written) if predicted else Sampled()
