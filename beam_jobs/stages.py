"""The stages of a conversion: functions of one element each, and the chain that they form.

    scan -> BUCKET -> assign -> SHARD -> gather -> DIGEST -> count -> ALL -> commit
          \\-> sums by bucket, sampled sizes by split

Capitals are groupings. The chain is linear, because some runners lose every other branch. Assign,
gather and commit also receive the sums and sizes. To count copies, each shard adds 12 bytes per
record before DIGEST. A dry run runs the beginning of the chain.

Keys are integers (Python hashes differ between processes) and never None. The payload is never
grouped. Rejects and counts are part of the results, without tags or finish_bundle. The counters are
for the runner's own pages."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from beam_jobs.converter import ConversionJob, Source
from beam_jobs.rows.digests import BucketSums, add_sums, hash_sum
from beam_jobs.rows.references import References
from beam_jobs.split.claims import check_claim, claim
from beam_jobs.split.commit import commit_split, verdict_on_error
from beam_jobs.split.copies import Contents, Counted, contents_before, counted
from beam_jobs.split.gather import write_shard
from beam_jobs.split.ledger import (
    SourceSummary,
    Written,
    check_scanned,
    distrusting_receipts,
    finished_shards,
)
from beam_jobs.split.packed_files import remove_packed_files, scanned
from beam_jobs.split.plan import (
    Candidate,
    Rows,
    Sampled,
    SplitPlan,
    bucket_sums,
    by_bucket,
    candidates,
    convert_sample,
    lowest,
)
from beam_jobs.split.summary import check_size
from beam_jobs.stored_job import StoredJob, remove_old_jobs, remove_stored_job
from beam_jobs.survey import remove_surveys
from pipeline.background import Background
from pipeline.errors import ConversionError, InfeedError, StorageError
from pipeline.shards.naming import add_digests
from pipeline.storage.schemes import open_storage

SUMMARIES = -1  # the key of source summaries in both groupings
_SHARD_BITS = 32  # a grouping key is split number << 32 | bucket or shard
_ONE = 0

Keyed = tuple[int, Any]
Values = tuple[int, Iterable[Any]]
Sums = Mapping[int, BucketSums]  # by bucket key
Samples = Mapping[int, Sampled]  # by split number


def planned(start: Any, stored: StoredJob) -> tuple[Any, Any, Any]:
    """Flows of the scanned rows, and of the sums and samples that decide the plans. start: a Flow
    of the numbers of job.scans."""
    found = start.each(scan, stored)
    sums = found.each(measure, stored).per_key("sums", add_sums)
    if not stored.job.converter.transforms:
        return found, sums, {}
    offered = found.each(offer, stored).per_key("lowest", lowest)
    return found, sums, offered.each(sample, stored)


def converted(start: Any, stored: StoredJob) -> Any:
    """The entire chain. start: see planned."""
    found, *sides = planned(start, stored)
    assigned = found.by_key("by bucket").each(assign, stored, *sides)
    gathered = assigned.by_key("by shard").each(gather, stored, *sides)
    return gathered.by_key("by digest").each(count).by_key("all").each(commit, stored, *sides)


def scan(number: int, stored: StoredJob) -> Iterator[Keyed]:
    """A group of scans -> for each, (bucket key, References) ... and one (SUMMARIES,
    SourceSummary)."""
    job: ConversionJob = stored.job
    with contextlib.ExitStack() as stack:
        begun = list[tuple[int, Source, Background[Rows]]]()
        for source_number, piece in job.scans[number]:
            source = job.source(source_number, piece)
            batches = Background(scanned(job, source), limit=1, name="infeed-scan")
            begun.append((source_number, source, stack.enter_context(contextlib.closing(batches))))
        for each in begun:
            yield from _rows(job, *each)


def _rows(
    job: ConversionJob, number: int, source: Source, batches: Iterable[Rows]
) -> Iterator[Keyed]:
    records = keys = 0
    with verdict_on_error(job, source.split):
        for refs in batches:
            records += len(refs)
            keys += hash_sum(refs.ranks(job.seed, source.split))
            for bucket, rows in by_bucket(job, source.split, refs):
                yield _key(job, source.split, bucket), rows
    yield SUMMARIES, SourceSummary(number, source.piece, records, add_digests([keys]))


def measure(element: Keyed, stored: StoredJob) -> Iterator[Keyed]:
    """(bucket key, rows) -> (bucket key, BucketSums)."""
    key, rows = element
    if key != SUMMARIES:
        yield key, bucket_sums(stored.job, _unkey(stored.job, key)[0], rows)


def offer(element: Keyed, stored: StoredJob) -> Iterator[tuple[int, Sequence[Candidate]]]:
    """(bucket key, References) -> (split number, candidates for the sample)."""
    key, refs = element
    if key == SUMMARIES:
        return
    split, _ = _unkey(stored.job, key)
    if offered := candidates(stored.job, split, refs):
        yield stored.job.splits.index(split), offered


def sample(
    element: tuple[int, Sequence[Candidate]], stored: StoredJob
) -> Iterator[tuple[int, Sampled]]:
    """(split number, the sample) -> (split number, Sampled)."""
    number, chosen = element
    with verdict_on_error(stored.job, stored.job.splits[number]):
        yield number, convert_sample(stored.job, chosen)


def assign(element: Values, stored: StoredJob, sums: Sums, sampled: Samples) -> Iterator[Keyed]:
    """A bucket's rows -> (shard key, References) ...

    The element of summaries claims the splits and adds one value per shard: its result if an
    earlier run wrote it, else no rows, so that empty shards are written, too."""
    key, values = element
    if key == SUMMARIES:
        yield from _claimed([*values], stored, plans_of(stored.job, sums, sampled))
        return
    split, bucket = _unkey(stored.job, key)
    for shard, rows in plan_of(stored.job, split, sums, sampled).assign(bucket, values):
        yield _key(stored.job, split, shard), rows


def _claimed(
    summaries: Sequence[SourceSummary], stored: StoredJob, plans: Sequence[SplitPlan]
) -> Iterator[Keyed]:
    job: ConversionJob = stored.job
    for plan in plans:  # before the first claim: a job that is refused leaves none
        with verdict_on_error(job, plan.split):
            check_scanned(plan, _of_split(plan, summaries))
            check_size(plan)
            try:
                check_claim(plan)
            # another plan owns it: nobody needs what was packed for this job
            except ConversionError:
                with contextlib.suppress(StorageError):  # some buckets forbid deletion
                    remove_packed_files(job)
                raise
    for plan in plans:
        with verdict_on_error(job, plan.split):
            claim(plan)
            # One listing replaces a request per shard in gather, which reads all bytes to verify.
            for each in () if job.verify_existing else finished_shards(plan):
                contents = Contents.of(each, plan.shard_file(each.shard))
                yield _key(job, plan.split, each.shard), (Written.of(each, reused=True), contents)
        for shard in range(plan.num_shards):
            yield _key(job, plan.split, shard), References.of([])
    yield from ((SUMMARIES, summary) for summary in summaries)


def gather(element: Values, stored: StoredJob, sums: Sums, sampled: Samples) -> Iterator[Keyed]:
    """A shard's rows -> (SUMMARIES, Written) and (group of digests, Contents) ... Writes the shard
    and its receipt. The element of summaries adds the contents of splits converted before."""
    from apache_beam.metrics.metric import Metrics  # a dry run needs no Beam

    job: ConversionJob = stored.job
    key, values = element
    records = sum(each.records for each in sums.values())
    if key == SUMMARIES:
        yield from ((SUMMARIES, summary) for summary in values)
        for contents in contents_before(job):
            yield from contents.by_group(records)
        return
    values = list(values)
    split, shard = _unkey(job, key)
    if finished := [value for value in values if isinstance(value, tuple)]:
        written, contents = finished[0]
        yield SUMMARIES, written
        yield from contents.by_group(records)
        return
    with verdict_on_error(job, split):
        plan = plan_of(job, split, sums, sampled)
        receipt, reused = write_shard(plan, shard, values)
    for name in ("records", "bytes"):
        Metrics.counter("infeed", f"{split}_{name}").inc(getattr(receipt, name))
    yield SUMMARIES, Written.of(receipt, reused)
    yield from Contents.of(receipt, plan.shard_file(shard)).by_group(records)


def count(element: Values) -> Iterator[Keyed]:
    """The records with some digests -> (_ONE, Counted)."""
    key, values = element
    yield from ((_ONE, each) for each in (values if key == SUMMARIES else [counted(values)]))


def commit(element: Values, stored: StoredJob, sums: Sums, sampled: Samples) -> Iterator[str]:
    """All results and summaries -> the verdict of each split, in a single element, because splits
    share a manifest."""
    if stored.is_committed:  # the runner lost the answer
        return
    job: ConversionJob = stored.job
    arrived = [*element[1]]
    failures = list[InfeedError]()
    copies = Counted()
    for value in arrived:
        if isinstance(value, Counted):
            copies.add(value)
    plans = plans_of(job, sums, sampled)
    uncommitted = [*job.splits]
    for plan in plans:
        split = plan.split
        written = [each for each in arrived if isinstance(each, Written) and each.split == split]
        uncommitted.remove(split)
        try:
            with verdict_on_error(job, split), distrusting_receipts(plans):
                summaries = _of_split(plan, arrived)
                yield commit_split(plan, summaries, written, copies, uncommitted).message
            with contextlib.suppress(StorageError):
                remove_packed_files(job, split)
        except InfeedError as e:  # the other splits may be complete, or have rejects to list
            failures.append(e)
            uncommitted.append(split)
    if failures:
        raise failures[0]
    for path in job.scratch:
        with contextlib.suppress(StorageError):  # some buckets forbid deletion
            open_storage(path).delete(path)
    with contextlib.suppress(StorageError):
        remove_surveys(job)
        if not stored.data:
            remove_old_jobs(job)
            remove_stored_job(job)


def _of_split(plan: SplitPlan, arrived: Iterable[Any]) -> list[SourceSummary]:
    sources = plan.job.sources
    summaries = (each for each in arrived if isinstance(each, SourceSummary))
    return [each for each in summaries if sources[each.source].split == plan.split]


def plans_of(job: ConversionJob, sums: Sums, sampled: Samples) -> list[SplitPlan]:
    """The plan of each split."""
    return [plan_of(job, split, sums, sampled) for split in job.splits]


def plan_of(job: ConversionJob, split: str, sums: Sums, sampled: Samples) -> SplitPlan:
    """The plan of a split. A process computes it once, because its digest covers all sources."""
    if split not in job.plans:
        number = job.splits.index(split)
        first = number << _SHARD_BITS
        of_split = {k - first: value for k, value in sums.items() if k >> _SHARD_BITS == number}
        job.plans[split] = SplitPlan(job, split, of_split, sampled.get(number, Sampled()))
    return job.plans[split]


def _key(job: ConversionJob, split: str, number: int) -> int:
    return job.splits.index(split) << _SHARD_BITS | number


def _unkey(job: ConversionJob, key: int) -> tuple[str, int]:
    return job.splits[key >> _SHARD_BITS], key & ((1 << _SHARD_BITS) - 1)
