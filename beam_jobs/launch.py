"""Runs a job and reports its verdict or, with --dry-run, what it would do.

A dry run scans and assigns in threads, without Beam, and writes nothing."""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_jobs import stages
from beam_jobs.converter import ConversionJob, Waiting
from beam_jobs.graph import Flow
from beam_jobs.progress import progress_bars, survey_status
from beam_jobs.runners.by_name import find_runner
from beam_jobs.split.commit import Verdict, buried_messages
from beam_jobs.split.gather import rows_of_shard
from beam_jobs.split.ledger import check_expected
from beam_jobs.split.plan import framed_bytes
from beam_jobs.split.summary import check_size, empty_folders, empty_shards
from beam_jobs.stored_job import StoredJob, remove_stored_job
from beam_jobs.survey import Survey
from pipeline.console import parser
from pipeline.console.console import Console, say
from pipeline.errors import ConversionError, InfeedError, OptionError, StorageError, printable
from pipeline.machine import num_cores
from pipeline.quiet import quiet_stderr
from pipeline.sizes import counted, format_bytes

_TO_ITS_END = Waiting()


@dataclass(frozen=True)
class SplitPreview:
    """The predicted result of converting one split."""

    split: str
    plan_digest: str
    records: int
    rejected: Sequence[str]  # "key: error", of records that the scan rejects
    shard_bytes: Sequence[int]  # predicted
    warnings: Sequence[str]


def dry_run(job: ConversionJob, console: Console) -> bool:
    """Prints what the conversion would do. Returns False if the scan already shows that it would
    fail."""
    with console.status("scanning the raw data"):
        previews = list(preview(job))
    failures = list[str]()
    for p in previews:
        sizes = f"{format_bytes(min(p.shard_bytes))}..{format_bytes(max(p.shard_bytes))}"
        shards = (
            f"{format_bytes(sum(p.shard_bytes))} in {counted(len(p.shard_bytes), 'shard')} of "
            f"{sizes}"
        )
        say(
            console,
            (
                f"{p.split}: {counted(p.records, 'record')}, {shards}, {len(p.rejected)} rejected, "
                f"plan {p.plan_digest}"
            ),
        )
        for line in p.rejected[: job.most_rejected]:
            say(console, f"  rejected: {line}")
        for warning in p.warnings:
            say(console, f"warning: {warning}")
        if len(p.rejected) > job.max_bad_records:
            failures.append(
                f"{p.split}: at least {counted(len(p.rejected), 'bad record')}, more than "
                f"--max-bad-records={job.max_bad_records}"
            )
        if not p.records:
            failures.append(f"{p.split}: no records")
    for failure in failures:
        say(console, f"{failure}: the conversion would fail.")
    parser.FACTS["splits"] = {
        p.split: {
            "records": p.records,
            "rejected": len(p.rejected),
            "bytes": sum(p.shard_bytes),
            "shards": len(p.shard_bytes),
            "warnings": p.warnings,
        }
        for p in previews
    }
    say(console, "Dry run: nothing was written.")
    return not failures


def preview(job: ConversionJob) -> Iterator[SplitPreview]:
    """Yields a preview of each split. Raises the scan's errors, and ConversionError if shards are
    below record size."""
    for split in job.splits:
        of_split = dataclasses.replace(job, sources=tuple(job.sources_of(split)), dry_run=True)
        stored = StoredJob.of(of_split)
        # One element per core: packing a window takes hundreds of megabytes.
        found, *sides = stages.planned(Flow(range(of_split.num_elements), num_cores()), stored)
        buckets = dict(found.by_key("by bucket").elements)
        yield from Flow([buckets]).each(_preview, stored, *sides).elements


def _preview(
    buckets: dict[int, Sequence[Any]], stored: StoredJob, sums: Any, sampled: Any
) -> Iterator[SplitPreview]:
    """Yields the preview of the only split. buckets: the results of the scan."""
    job = stored.job
    (plan,) = stages.plans_of(job, sums, sampled)
    check_expected(job, plan.split, plan.total.records)
    check_size(plan)
    shard_bytes, shard_records = np.zeros((2, plan.num_shards), np.int64)
    rejected = []
    summaries = buckets.pop(stages.SUMMARIES)
    for bucket, values in sorted(buckets.items()):
        for shard, rows in plan.assign(bucket, values):
            assigned = rows_of_shard(plan, [rows])
            shard_bytes[shard] += framed_bytes(job, rows)[assigned.good].sum()
            shard_records[shard] += assigned.good.sum()
            rejected += [printable(f"{x.key}: {x.error}") for x in assigned.rejected()]
    yield SplitPreview(
        plan.split,
        plan.digest,
        int(shard_records.sum()),
        sorted(rejected),
        list(map(plan.sampled.scaled, shard_bytes.tolist())),
        [*empty_folders(plan, summaries), *empty_shards(plan, shard_records.tolist())],
    )


def launch(job: ConversionJob, options, console: Console, waiting: Waiting = _TO_ITS_END) -> None:
    """Runs the conversion and, if it waits for the end, prints the verdict of every split.

    Raises ConversionError with the verdict's message if a split is not complete."""
    splits = parser.FACTS["splits"] = {}
    with progress_bars(job, console):
        has_ended, failure = _run(job, options, console, waiting)
    if not has_ended:
        return
    verdicts = {split: Verdict.fetch(job, split) for split in job.splits}
    failed = list[str]()
    for verdict in filter(None, verdicts.values()):
        if verdict.ok:
            summary = verdict.summary
            rejected = f", {summary['rejected']} rejected" if summary["rejected"] else ""
            say(console, f"{verdict.split}: {verdict.message}{rejected} -> {job.output_dir}")
            splits[verdict.split] = summary
            for warning in summary["warnings"]:
                say(console, f"warning: {warning}")
        else:
            failed += verdict.message.split("\n")
    if failed:
        raise ConversionError(*failed) from failure
    if failure:
        raise _without_verdict(failure) from failure
    if missing := [split for split, verdict in verdicts.items() if not verdict]:
        raise ConversionError(
            f"the runner reported success, but the commit of {', '.join(missing)} never ran: it "
            "lost data. No manifest was written. Choose another --runner."
        )


def run_survey(job: Survey, options, console: Console) -> None:
    """Runs a survey to its end. Raises ConversionError if it failed for some sources."""
    with survey_status(job, console):
        _, failure = _run(job, options, console, Waiting(cancel_on_interrupt=True))
    if failure and job.num_seen() < len(job.groups):
        raise _without_verdict(failure) from failure


def _run(
    job: ConversionJob, options, console: Console, waiting: Waiting
) -> tuple[bool, Exception | None]:
    """Returns whether the job has ended, and the exception that it failed with."""
    runner = find_runner(options.get_all_options()["runner"])
    runner.check_job(job)
    job.output.exists(job.output_dir)  # reports a missing bucket before the scan
    # `python -P`, which Beam does not pass on to the workers that it starts
    if sys.flags.safe_path:
        os.environ["PYTHONSAFEPATH"] = "1"
    # Local workers log their start and end, and a failure as six tracebacks, and have no option to
    # stop this. The verdict or the exception has the reason.
    quiet = quiet_stderr() if runner.quiet else contextlib.nullcontext()
    has_ended = True
    with quiet, contextlib.ExitStack() as stack:
        stack.callback(lambda: _remove_job(job) if has_ended else None)
        try:
            has_ended = runner.run(job, options, console, waiting)
            return has_ended, None
        except SystemExit:  # the service continues the job
            has_ended = False
            raise
        except OptionError:
            raise
        except Exception as e:  # runners wrap errors in classes of their own
            if isinstance(e.__context__, KeyboardInterrupt):
                raise e.__context__ from None
            return True, e


def _remove_job(job: ConversionJob) -> None:
    with contextlib.suppress(StorageError):  # some buckets forbid deletion
        remove_stored_job(job)


def _without_verdict(failure: Exception) -> Exception:
    """The error to raise if a run failed without a verdict: the disk was full, a permission
    missing, or a bug."""
    ours = buried_messages(str(failure))
    message = ours[-1] if ours else str(failure).partition(" [while running ")[0]
    if ours or isinstance(failure, InfeedError):
        return ConversionError(message)
    return RuntimeError(f"the runner failed with an unknown error: {failure}")


def exit_with(main: Callable[[], int | None]) -> None:
    """Runs a command line's main function, and exits as pipeline.console.parser does."""
    parser.exit_with(main, "interrupted. Run the same command again to resume.", facts=True)
