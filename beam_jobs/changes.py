"""Finds what changed in the raw data since shards were written: the first modified, new or missing file.

It scans the raw data again, in one process, so it runs only when a claim shows that something changed."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from beam_jobs.job import Job
from beam_jobs.plan import SplitPlan
from beam_jobs.raw_rows import RAW_ROW, differing, name_of, raw_rows
from beam_jobs.receipts import receipts_of
from beam_jobs.references import References
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import Storage

__all__ = ["OldPlan", "first_change", "source_versions"]


@dataclasses.dataclass(frozen=True)
class OldPlan:
    """The plan of the existing shards, from their claim."""

    digest: str
    num_shards: int
    seed: int


def source_versions(job: Job, split: str) -> dict[str, str]:
    """Size and version of each raw file to scan, by name; without folders, whose files have their own."""
    files = [source for source in job.sources if source.split == split and source.kind != "folder"]
    return {source.origin or source.uri: f"{source.stat.bytes} {source.stat.version}" for source in files}


def first_change(storage: Storage, plan: SplitPlan, old: OldPlan) -> str:
    """Describes the first change to rows of finished shards; "" if they match the current raw data.

    If the plan differs, also reports a new file, or how many records are gone."""
    known, is_complete = _known(storage, plan, old)
    if not len(known):
        return ""
    new, seen = "", 0
    for refs in _scanned(plan):
        rows = raw_rows(old.seed, plan.split, refs)
        differ, unknown = differing(known, rows)
        if differ.any():
            return f"{_file(plan.job, refs, differ)} has changed"
        if unknown.any():
            new = new or f"{_file(plan.job, refs, unknown)} is new"
        seen += int((~unknown).sum())
    if plan.digest == old.digest or not is_complete:
        return ""
    gone = len(known) - seen
    return new or (f"{gone:,} of {len(known):,} records {'is' if gone == 1 else 'are'} gone" if gone > 0 else "")


def _known(storage: Storage, plan: SplitPlan, old: OldPlan) -> tuple[np.ndarray, bool]:
    """The rows of all finished shards of the old plan, sorted by rank, and whether every shard is finished."""
    receipts = receipts_of(storage, plan.job.output_dir, plan.split, old.num_shards)
    rows = [receipt.raw_rows() for receipt in receipts if receipt and receipt.plan == old.digest]
    return np.sort(np.concatenate([np.zeros(0, RAW_ROW), *rows]), order="rank"), len(rows) == old.num_shards


def _scanned(plan: SplitPlan) -> Iterator[References]:
    for source in plan.job.sources:
        if source.split == plan.split:
            yield from plan.job.converter.scan(open_storage(source.uri), source)


def _file(job: Job, refs: References, mask: np.ndarray) -> str:
    return name_of(job, refs.files[refs.file[np.flatnonzero(mask)[0]]].uri)
