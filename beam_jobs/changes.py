"""Finds what changed in the raw data since shards were written: the first modified, new or missing file.

It scans the raw data again, in one process, so it runs only when a claim shows that something changed."""

import itertools

import numpy as np

from beam_jobs.conversion_job import ConversionJob
from beam_jobs.packed_files import scanned
from beam_jobs.raw_rows import RAW_ROW, differing, name_of, raw_rows
from beam_jobs.receipts import receipts_of
from beam_jobs.references import References
from beam_jobs.shard_plan import SplitPlan
from pipeline.storage.storage import Storage

__all__ = ["first_change"]


def first_change(storage: Storage, plan: SplitPlan, old_digest: str, old_num_shards: int, old_seed: int) -> str:
    """Describes the first change to rows of an old plan's finished shards; "" if they match the current raw data.

    If the plan differs, also reports a new file, or how many records are gone."""
    known, is_complete = _known(storage, plan, old_digest, old_num_shards)
    if not len(known):
        return ""
    new, seen = "", 0
    sources = (source for source in plan.job.sources if source.split == plan.split)
    scans = (scanned(plan.job, source) for source in sources)
    for refs in itertools.chain.from_iterable(scans):
        rows = raw_rows(old_seed, plan.split, refs)
        differ, unknown = differing(known, rows)
        if differ.any():
            return f"{_file(plan.job, refs, differ)} has changed"
        if unknown.any():
            new = new or f"{_file(plan.job, refs, unknown)} is new"
        seen += int((~unknown).sum())
    if plan.digest == old_digest or not is_complete:
        return ""
    gone = len(known) - seen
    return new or (f"{gone:,} of {len(known):,} records {'is' if gone == 1 else 'are'} gone" if gone > 0 else "")


def _known(storage: Storage, plan: SplitPlan, digest: str, num_shards: int) -> tuple[np.ndarray, bool]:
    """The rows of all finished shards of the old plan, sorted by rank, and whether every shard is finished."""
    receipts = receipts_of(storage, plan.job.output_dir, plan.split, num_shards)
    rows = [receipt.raw_rows() for receipt in receipts if receipt and receipt.plan == digest]
    return np.sort(np.concatenate([np.zeros(0, RAW_ROW), *rows]), order="rank"), len(rows) == num_shards


def _file(job: ConversionJob, refs: References, mask: np.ndarray) -> str:
    return name_of(job, refs.files[refs.file[np.flatnonzero(mask)[0]]].uri)
