"""Runs a job and reports the plan (--dry_run), the progress and the verdict."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

from beam_jobs.conversion_job import ConversionJob, Waiting
from beam_jobs.preview import SplitPreview, preview
from beam_jobs.progress_bars import progress_bars
from beam_jobs.runners import find_runner
from beam_jobs.verdicts import Verdict, buried_messages
from pipeline.errors import ConversionError, InfeedError, OptionError
from pipeline.logs import quiet_stderr
from pipeline.sizes import format_bytes
from pipeline.storage.schemes import open_storage
from pipeline.tools import command
from pipeline.tools.command import Console

__all__ = ["dry_run", "exit_with", "launch"]

_TO_ITS_END = Waiting()


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
