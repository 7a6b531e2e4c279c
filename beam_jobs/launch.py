"""Runs a job and reports its progress and verdict, or with --dry_run what it would do.

A dry run scans and assigns in threads, without Beam, and writes nothing."""

import contextlib
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from beam_jobs.bucket_sums import add_sums, framed_bytes, measure
from beam_jobs.completeness import check_expected
from beam_jobs.conversion_job import ConversionJob, Waiting
from beam_jobs.converter import Packer, Source
from beam_jobs.packed_files import scanned
from beam_jobs.plausible import check_target, empty_shards
from beam_jobs.progress_bars import progress_bars
from beam_jobs.references import References
from beam_jobs.report import empty_folders
from beam_jobs.runners import find_runner
from beam_jobs.sample import candidates, convert_sample, lowest
from beam_jobs.shard_plan import SplitPlan, by_bucket
from beam_jobs.verdicts import Verdict, buried_messages
from pipeline.errors import ConversionError, InfeedError, OptionError, printable
from pipeline.logs import quiet_stderr
from pipeline.sizes import format_bytes
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import in_parallel
from pipeline.tools import command
from pipeline.tools.command import Console

_TO_ITS_END = Waiting()
_SCANS_AT_ONCE = 32


@dataclass(frozen=True)
class SplitPreview:
    """The predicted result of converting one split."""

    split: str
    plan_digest: str
    records: int
    rejected: tuple[str, ...]  # "key: error", as far as the scan can tell
    shard_bytes: tuple[int, ...]  # predicted
    warnings: tuple[str, ...]


def dry_run(job: ConversionJob, console: Console) -> bool:
    """Prints what the conversion would do. Returns False if the scan already shows that it would fail."""
    with console.status("scanning the raw data"):
        previews = list(preview(job))
    failures = [failure for p in previews for failure in _predicted_failures(job, p)]
    for p in previews:
        sizes = f"{format_bytes(min(p.shard_bytes))}..{format_bytes(max(p.shard_bytes))}"
        console.print(
            f"{p.split}: {p.records:,} records, {format_bytes(sum(p.shard_bytes))} in {len(p.shard_bytes):,} shards of "
            f"{sizes}, {len(p.rejected)} rejected, plan {p.plan_digest}",
            soft_wrap=True,
            highlight=False,
        )
        for line in p.rejected:
            console.print(f"  rejected: {line}", markup=False, soft_wrap=True)
        for warning in p.warnings:
            console.print(f"warning: {warning}", markup=False, soft_wrap=True)
    for failure in failures:
        console.print(f"{failure}: the conversion would fail.", markup=False, highlight=False, soft_wrap=True)
    console.print("Dry run: nothing was written.")
    return not failures


def _predicted_failures(job: ConversionJob, preview: SplitPreview) -> Iterator[str]:
    rejects = len(preview.rejected)
    if rejects > job.max_bad_records:
        what = "bad record" if rejects == 1 else "bad records"
        yield f"{preview.split}: at least {rejects} {what}, more than --max_bad_records={job.max_bad_records}"
    if not preview.records:
        yield f"{preview.split}: no records"


def preview(job: ConversionJob) -> Iterator[SplitPreview]:
    """Yields a preview of each split. Raises the scan's errors, and ConversionError if shards are below record size."""
    for split in job.splits:
        pieces: dict[int, list[References]] = defaultdict(list)
        sources, empty = [source for source in job.sources if source.split == split], list[Source]()
        # A window that is packed takes hundreds of megabytes.
        at_once = os.cpu_count() or 1 if isinstance(job.converter, Packer) else _SCANS_AT_ONCE
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
    return SplitPreview(
        split=plan.split,
        plan_digest=plan.digest,
        records=int(shard_records.sum()),
        rejected=tuple(sorted(rejected)),
        shard_bytes=scaled,
        warnings=(*warnings, *empty_shards(plan, shard_records.tolist())),
    )


def launch(job: ConversionJob, options, console: Console, waiting: Waiting = _TO_ITS_END) -> None:
    """Runs the conversion and prints the verdict of every split, unless told not to wait for it.

    Raises ConversionError with the verdict's message if a split is not complete."""
    preset = find_runner(options.get_all_options()["runner"])
    preset.check_job(job)
    output = open_storage(job.output_dir)
    output.exists(job.output_dir)  # reports a missing bucket before the scan
    failure = None
    if sys.flags.safe_path:  # of `python -P`, which Beam does not pass on to the workers that it starts
        os.environ["PYTHONSAFEPATH"] = "1"
    # Local workers log their start and end, and a failure as six tracebacks, and have no option to stop this. The
    # verdict or the exception has the reason.
    quiet = quiet_stderr() if preset.quiet else contextlib.nullcontext()
    with progress_bars(job, console) as watched, quiet:
        try:
            with preset.around(options):
                if not preset.run(watched, options, console, waiting):
                    return
        except OptionError:
            raise
        except Exception as e:  # runners wrap errors in classes of their own
            if isinstance(e.__context__, KeyboardInterrupt):
                raise e.__context__ from None
            failure = e
    verdicts = [Verdict.fetch(output, job.output_dir, split, job.run_id) for split in job.splits]
    for verdict in verdicts:
        if verdict and verdict.ok:
            rejected = f", {verdict.rejected} rejected" if verdict.rejected else ""
            message = f"{verdict.split}: {verdict.message}{rejected} -> {job.output_dir}"
            console.print(message, markup=False, soft_wrap=True)
            for warning in verdict.warnings:
                console.print(f"warning: {warning}", markup=False, soft_wrap=True)
    failed = [line for verdict in verdicts if verdict and not verdict.ok for line in verdict.message.split("\n")]
    if failed:
        raise ConversionError(*failed) from failure
    if failure:
        raise _without_verdict(failure) from failure
    if not all(verdicts):
        missing = ", ".join(split for split, verdict in zip(job.splits, verdicts, strict=True) if not verdict)
        raise ConversionError(
            f"the runner reported success, but the commit of {missing} never ran: it lost data. No manifest was "
            "written. Choose another --runner."
        )


def _without_verdict(failure: Exception) -> Exception:
    """The error to raise if a run failed without a verdict: the disk was full, a permission missing, or a bug."""
    ours = buried_messages(str(failure))
    message = ours[-1] if ours else str(failure).partition(" [while running ")[0]
    if ours or isinstance(failure, InfeedError):
        return ConversionError(message)
    return RuntimeError(f"the runner failed with an unknown error: {failure}")


def exit_with(main: Callable[[], int | None]) -> None:
    """Runs a command line's main function, and exits as pipeline.tools.command does."""
    command.exit_with(main, "interrupted. Run the same command again to resume.")
