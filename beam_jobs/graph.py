"""The Beam graph of a conversion: one linear chain, because some runners lose every other branch.

    Create(sources) -> scan -> GroupByKey(bucket) -> assign -> GroupByKey(shard) -> gather
                          \\-> sums by bucket, sampled sizes by split
        -> GroupByKey(digest) -> count -> GroupByKey(one) -> commit

The sums and sizes are side inputs of assign, gather and commit. Before "by digest" each shard adds
12 bytes per record, for counting copies.

Keys are integers (Python hashes differ between processes) and never None. The payload is never
grouped. Rejects and counts are part of the results: there are no tags and no finish_bundle. The
counters are for the runner's own pages."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam import pvalue
from apache_beam.metrics.metric import Metrics

from beam_jobs.claims import check_claim, claim
from beam_jobs.commit import commit_split, verdict_on_error
from beam_jobs.converter import ConversionJob, Packer, Source
from beam_jobs.copies import Contents, Counted, contents_before, counted
from beam_jobs.digests import BucketSums, add_sums, hash_sum
from beam_jobs.gather import write_shard
from beam_jobs.ledger import (
    SourceSummary,
    Written,
    check_scanned,
    distrusting_receipts,
    finished_shards,
)
from beam_jobs.packed_files import remove_packed_files, scanned
from beam_jobs.plan import (
    Candidate,
    Rows,
    Sampled,
    SplitPlan,
    by_bucket,
    candidates,
    convert_sample,
    lowest,
    measure,
)
from beam_jobs.references import References
from beam_jobs.summary import check_size
from beam_jobs.survey import Survey, pipeline_of_survey, remove_surveys
from pipeline.background import Background
from pipeline.errors import ConversionError, InfeedError, StorageError
from pipeline.shards.naming import add_digests
from pipeline.storage.schemes import is_remote, open_storage

_SUMMARIES = -1  # the key of source summaries in both groupings
_SHARD_BITS = 32  # a grouping key is split number << 32 | bucket or shard
_ONE = 0
_SCANS_AT_ONCE = 16

Keyed = tuple[int, Any]
Values = tuple[int, Iterable[Any]]
Sums = Mapping[int, BucketSums]  # by bucket key
Samples = Mapping[int, Sampled]  # by split number


def pipeline_of(job: ConversionJob, options: Any) -> beam.Pipeline:
    """A pipeline that converts all splits of a job; that of a survey."""
    if isinstance(job, Survey):
        return pipeline_of_survey(job, options)
    pipeline = beam.Pipeline(options=options)
    scanned = (
        pipeline
        | "sources" >> beam.Create(_groups(job))
        | "spread" >> beam.Reshuffle()
        | "scan" >> beam.FlatMap(_scan, job)
    )
    sums = pvalue.AsDict(
        scanned | "measure" >> beam.FlatMap(_measure, job) | "sums" >> beam.CombinePerKey(add_sums)
    )
    sampled = {}
    if job.converter.transforms:
        offered = (
            scanned | "offer" >> beam.FlatMap(_offer, job) | "lowest" >> beam.CombinePerKey(lowest)
        )
        sampled = pvalue.AsDict(offered | "sample" >> beam.FlatMap(_sample, job))
    _ = (
        scanned
        | "by bucket" >> beam.GroupByKey()
        | "assign" >> beam.FlatMap(_assign, job, sums, sampled)
        | "by shard" >> beam.GroupByKey()
        | "gather" >> beam.FlatMap(_gather, job, sums, sampled)
        | "by digest" >> beam.GroupByKey()
        | "count" >> beam.FlatMap(_count)
        | "all" >> beam.GroupByKey()
        | "commit" >> beam.FlatMap(_commit, job, sums, sampled)
    )
    return pipeline


def _groups(job: ConversionJob) -> list[list[tuple[int, Source]]]:
    """The numbered sources, in groups. Those in buckets form groups of 16 to scan in parallel, as
    such scans mostly wait."""
    numbered = list(enumerate(job.sources))
    if isinstance(job.converter, Packer):  # limited by the CPU, and with much in memory
        return [[(number, piece)] for number, each in numbered for piece in job.pieces_of(each)]
    remote = [each for each in numbered if is_remote(each[1].uri)]
    groups = [remote[i : i + _SCANS_AT_ONCE] for i in range(0, len(remote), _SCANS_AT_ONCE)]
    return groups + [[each] for each in numbered if not is_remote(each[1].uri)]


def _scan(element: Sequence[tuple[int, Source]], job: ConversionJob) -> Iterator[Keyed]:
    """[(number, source), ...] -> for each, (bucket key, References) ... and one (_SUMMARIES,
    SourceSummary)."""
    with contextlib.ExitStack() as stack:
        begun = (
            Background(scanned(job, source), limit=1, name="infeed-scan") for _, source in element
        )
        ahead = [stack.enter_context(contextlib.closing(batches)) for batches in begun]
        for (number, source), batches in zip(element, ahead, strict=True):
            yield from _rows(job, number, source, batches)


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
    yield _SUMMARIES, SourceSummary(number, source.piece, records, add_digests([keys]))


def _measure(element: Keyed, job: ConversionJob) -> Iterator[Keyed]:
    """(bucket key, rows) -> (bucket key, BucketSums)."""
    key, rows = element
    if key != _SUMMARIES:
        yield key, measure(job, _unkey(job, key)[0], rows)


def _offer(element: Keyed, job: ConversionJob) -> Iterator[tuple[int, Sequence[Candidate]]]:
    """(bucket key, References) -> (split number, candidates for the sample)."""
    key, refs = element
    if key == _SUMMARIES:
        return
    split, _ = _unkey(job, key)
    if offered := candidates(job, split, refs):
        yield job.splits.index(split), offered


def _sample(
    element: tuple[int, Sequence[Candidate]], job: ConversionJob
) -> Iterator[tuple[int, Sampled]]:
    """(split number, the sample) -> (split number, Sampled)."""
    number, sample = element
    with verdict_on_error(job, job.splits[number]):
        yield number, convert_sample(job, sample)


def _assign(element: Values, job: ConversionJob, sums: Sums, sampled: Samples) -> Iterator[Keyed]:
    """A bucket's rows -> (shard key, References) ...

    The element of summaries claims the splits and adds one value per shard, its result if an
    earlier run wrote it."""
    key, values = element
    if key != _SUMMARIES:
        split, bucket = _unkey(job, key)
        for shard, rows in _plan(job, split, sums, sampled).assign(bucket, [*values]):
            yield _key(job, split, shard), rows
        return
    summaries = list(values)
    plans = [_plan(job, split, sums, sampled) for split in job.splits]
    for plan in plans:  # before the first claim: a job that is refused leaves none
        with verdict_on_error(job, plan.split):
            check_scanned(plan, [s for s in summaries if job.sources[s.source].split == plan.split])
            check_size(plan)
            try:
                check_claim(plan)
            # another plan owns it: nobody needs what was packed for this job
            except ConversionError:
                for split in job.splits:
                    remove_packed_files(job, split, of_job=True)
                raise
    for plan in plans:
        with verdict_on_error(job, plan.split):
            claim(plan)
            # One listing replaces a request per shard in gather, which reads all bytes to verify.
            for each in () if job.verify_existing else finished_shards(plan):
                contents = Contents.of(each, plan.shard_file(each.shard))
                yield _key(job, plan.split, each.shard), (Written.of(each, reused=True), contents)
        for shard in range(plan.num_shards):  # so that shards without rows are written, too
            yield _key(job, plan.split, shard), References.of([])
    for summary in summaries:
        yield _SUMMARIES, summary


def _gather(element: Values, job: ConversionJob, sums: Sums, sampled: Samples) -> Iterator[Keyed]:
    """A shard's rows -> (_SUMMARIES, Written) and, by group, (number, Contents). Writes the shard
    and its receipt. The element of summaries adds the contents of splits converted before."""
    key, values = element
    records = sum(each.records for each in sums.values())
    if key == _SUMMARIES:
        yield from ((_SUMMARIES, summary) for summary in values)
        for contents in contents_before(job):
            yield from contents.by_group(records)
        return
    values = list(values)
    split, shard = _unkey(job, key)
    if finished := [value for value in values if isinstance(value, tuple)]:
        written, contents = finished[0]
        yield _SUMMARIES, written
        yield from contents.by_group(records)
        return
    with verdict_on_error(job, split):
        plan = _plan(job, split, sums, sampled)
        receipt, reused = write_shard(plan, shard, values)
    for name in ("records", "bytes"):
        Metrics.counter("infeed", f"{split}_{name}").inc(getattr(receipt, name))
    yield _SUMMARIES, Written.of(receipt, reused)
    yield from Contents.of(receipt, plan.shard_file(shard)).by_group(records)


def _count(element: Values) -> Iterator[Keyed]:
    """The records with some digests -> (_ONE, Counted)."""
    key, values = element
    yield from ((_ONE, each) for each in (values if key == _SUMMARIES else [counted(values)]))


def _commit(element: Values, job: ConversionJob, sums: Sums, sampled: Samples) -> Iterator[str]:
    """All results and summaries -> the verdict of each split. A single element, because splits
    share a manifest."""
    _, values = element
    arrived = list(values)
    failures = list[InfeedError]()
    copies = Counted()
    for value in arrived:
        if isinstance(value, Counted):
            copies.add(value)
    plans = [_plan(job, split, sums, sampled) for split in job.splits]
    uncommitted = [*job.splits]
    for plan in plans:
        split = plan.split
        summaries = [
            value
            for value in arrived
            if isinstance(value, SourceSummary) and job.sources[value.source].split == split
        ]
        written = [each for each in arrived if isinstance(each, Written) and each.split == split]
        uncommitted.remove(split)
        try:
            with verdict_on_error(job, split), distrusting_receipts(plans):
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


def _plan(job: ConversionJob, split: str, sums: Sums, sampled: Samples) -> SplitPlan:
    number = job.splits.index(split)
    first = number << _SHARD_BITS
    of_split = {key - first: value for key, value in sums.items() if key >> _SHARD_BITS == number}
    return SplitPlan(job, split, of_split, sampled.get(number, Sampled()))


def _key(job: ConversionJob, split: str, number: int) -> int:
    return job.splits.index(split) << _SHARD_BITS | number


def _unkey(job: ConversionJob, key: int) -> tuple[str, int]:
    return job.splits[key >> _SHARD_BITS], key & ((1 << _SHARD_BITS) - 1)
