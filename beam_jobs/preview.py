"""--dry_run: scan and assign in threads, without Beam, and say what a conversion would do. Writes nothing."""

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from beam_jobs.converter import Source
from beam_jobs.plan import BucketSums, Job, SplitPlan, by_bucket, framed_bytes, measure
from beam_jobs.references import References
from pipeline.shards.errors import printable
from pipeline.shards.schemes import open_storage

__all__ = ["SplitPreview", "preview"]


@dataclass(frozen=True)
class SplitPreview:
    """What the conversion of one split would come to."""

    split: str
    plan_digest: str
    records: int
    rejected: tuple[str, ...]  # "key: error", of what the scan alone can tell
    shard_bytes: tuple[int, ...]  # predicted
    read_requests: int


def preview(job: Job, threads: int = 32) -> Iterator[SplitPreview]:
    """A preview of each split. Raises what the scan raises."""
    for split in job.splits:
        pieces: dict[int, list[References]] = defaultdict(list)
        with ThreadPoolExecutor(threads) as pool:
            for batches in pool.map(lambda source: _scan(job, source), (s for s in job.sources if s.split == split)):
                for bucket, refs in batches:
                    pieces[bucket].append(refs)
        sums: dict[int, BucketSums] = {
            bucket: sum((measure(job, refs) for refs in batch), BucketSums()) for bucket, batch in pieces.items()
        }
        yield _of_plan(SplitPlan(job, split, sums), pieces)


def _scan(job: Job, source: Source) -> list[tuple[int, References]]:
    batches = job.converter.scan(open_storage(source.uri), source)
    return [piece for refs in batches for piece in by_bucket(job, source.split, refs)]


def _of_plan(plan: SplitPlan, pieces: dict[int, list[References]]) -> SplitPreview:
    shard_bytes = np.zeros(plan.num_shards, np.int64)
    rejected, records = [], 0
    for bucket, batch in sorted(pieces.items()):
        for shard, refs in plan.assign(bucket, batch):
            shard_bytes[shard] += framed_bytes(plan.job, refs).sum()
            records += int(refs.good.sum())
            rejected += [printable(f"{ref.key}: {ref.error}") for ref in refs.take(~refs.good)]
    return SplitPreview(plan.split, plan.digest, records, tuple(sorted(rejected)), tuple(shard_bytes.tolist()), records)
