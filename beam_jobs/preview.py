"""--dry_run: scans and assigns in threads, without Beam, and reports what a conversion would do. Writes nothing."""

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from beam_jobs.bucket_sums import add_sums, framed_bytes, measure
from beam_jobs.completeness import check_expected
from beam_jobs.conversion_job import ConversionJob
from beam_jobs.converter import Packer, Source
from beam_jobs.packed_files import scanned
from beam_jobs.plausible import check_target, empty_shards
from beam_jobs.references import References
from beam_jobs.report import empty_folders
from beam_jobs.sample import candidates, convert_sample, lowest
from beam_jobs.shard_plan import SplitPlan, by_bucket
from pipeline.errors import printable
from pipeline.storage.storage import in_parallel

__all__ = ["SplitPreview", "preview"]


@dataclass(frozen=True)
class SplitPreview:
    """The predicted result of converting one split."""

    split: str
    plan_digest: str
    records: int
    rejected: tuple[str, ...]  # "key: error", as far as the scan can tell
    shard_bytes: tuple[int, ...]  # predicted
    warnings: tuple[str, ...]


def preview(job: ConversionJob, threads: int = 32) -> Iterator[SplitPreview]:
    """Yields a preview of each split. Raises the scan's errors, and ConversionError if shards are below record size."""
    for split in job.splits:
        pieces: dict[int, list[References]] = defaultdict(list)
        sources, empty = [source for source in job.sources if source.split == split], list[Source]()
        # A window that is packed takes hundreds of megabytes.
        at_once = os.cpu_count() or 1 if isinstance(job.converter, Packer) else threads
        for source, batches in zip(sources, in_parallel(lambda s: _scan(job, s), sources, at_once), strict=True):
            empty += [] if batches else [source]
            for bucket, refs in batches:
                pieces[bucket].append(refs)
        sums = {bucket: add_sums(measure(job.converter, refs) for refs in batch) for bucket, batch in pieces.items()}
        check_expected(job, split, add_sums(sums.values()).records)
        offered = (candidates(job, split, refs) for batch in pieces.values() for refs in batch)
        plan = SplitPlan(job, split, sums, convert_sample(job, lowest(offered)))
        check_target(plan)
        yield _of_plan(plan, pieces, tuple(empty_folders(split, empty)))


def _scan(job: ConversionJob, source: Source) -> list[tuple[int, References]]:
    return [piece for refs in scanned(job, source, write=False) for piece in by_bucket(job, source.split, refs)]


def _of_plan(plan: SplitPlan, pieces: dict[int, list[References]], warnings: tuple[str, ...]) -> SplitPreview:
    shard_bytes, shard_records = np.zeros((2, plan.num_shards), np.int64)
    rejected = []
    for bucket, batch in sorted(pieces.items()):
        for shard, refs in plan.assign(bucket, batch):
            shard_bytes[shard] += framed_bytes(plan.job.converter, refs).sum()
            shard_records[shard] += refs.good.sum()
            rejected += [printable(f"{ref.key}: {ref.error}") for ref in refs.take(~refs.good)]
    scaled = tuple(plan.sampled.scaled(size) for size in shard_bytes.tolist())
    records, warnings = int(shard_records.sum()), (*warnings, *empty_shards(plan, shard_records.tolist()))
    return SplitPreview(plan.split, plan.digest, records, tuple(sorted(rejected)), scaled, warnings)
