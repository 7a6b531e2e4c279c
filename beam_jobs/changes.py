"""What changed in the raw data since shards were written: the first file that is not the same, or new, or missing.

Asked only where a claim says that something did: it scans the raw data once more, in one process."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from beam_jobs.job import Job
from beam_jobs.plan import SplitPlan
from beam_jobs.raw_rows import RAW_ROW, differing, name_of, raw_rows
from beam_jobs.receipts import parse_receipt
from beam_jobs.references import References
from pipeline.shards.naming import receipt_file
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import Storage, join

__all__ = ["OldPlan", "first_change", "source_versions"]


@dataclasses.dataclass(frozen=True)
class OldPlan:
    """What a claim says of the shards that are there."""

    digest: str
    num_shards: int
    seed: int


def source_versions(job: Job, split: str) -> dict[str, str]:
    """Size and version of each raw file that is scanned; of folders, each image has its own."""
    files = [source for source in job.sources if source.split == split and source.kind != "folder"]
    return {source.origin or source.uri: f"{source.stat.bytes} {source.stat.version}" for source in files}


def first_change(storage: Storage, plan: SplitPlan, old: OldPlan) -> str:
    """In words, the first change of rows that are in finished shards; "" if they are of the raw data as it is now.

    Where the plan is another one, also a file that is new, or how many are gone."""
    known, is_whole = _known(storage, plan, old)
    if not len(known):
        return ""
    new, seen = "", 0
    for refs in _scanned(plan):
        rows = raw_rows(old.seed, plan.split, refs)
        differ, unknown = differing(known, rows)
        if differ.any():
            return f"{_file(plan.job, refs, differ)} is not the file that it was"
        if unknown.any():
            new = new or f"{_file(plan.job, refs, unknown)} is new"
        seen += int((~unknown).sum())
    if plan.digest == old.digest or not is_whole:
        return ""
    gone = len(known) - seen
    return new or (f"{gone:,} of {len(known):,} records {'is' if gone == 1 else 'are'} gone" if gone > 0 else "")


def _known(storage: Storage, plan: SplitPlan, old: OldPlan) -> tuple[np.ndarray, bool]:
    """The rows of all finished shards of a plan, by rank, and whether these are all of its shards."""
    listed = storage.list(join(plan.job.output_dir, "_shards"))
    names = [receipt_file(plan.split, shard, old.num_shards) for shard in range(old.num_shards)]
    there = [name for name in names if name.removeprefix("_shards/") in listed]
    ranges = ((join(plan.job.output_dir, name), 0, listed[name.removeprefix("_shards/")].bytes) for name in there)
    receipts = [parse_receipt(data) for data in storage.read_ranges(ranges)]
    rows = [r.raw_rows() for r in receipts if r and r.has_checksum and r.plan == old.digest]
    return np.sort(np.concatenate([np.zeros(0, RAW_ROW), *rows]), order="rank"), len(rows) == old.num_shards


def _scanned(plan: SplitPlan) -> Iterator[References]:
    for source in plan.job.sources:
        if source.split == plan.split:
            yield from plan.job.converter.scan(open_storage(source.uri), source)


def _file(job: Job, refs: References, mask: np.ndarray) -> str:
    return name_of(job, refs.files[refs.file[np.flatnonzero(mask)[0]]].uri)
