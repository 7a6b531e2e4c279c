"""Runs a job and reports it: the plan (--dry_run), the progress, the verdict. The only place that prints."""

import logging
import sys
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from beam_jobs.plan import Job
from beam_jobs.preview import preview
from beam_jobs.progress import watching
from beam_jobs.receipts import Verdict
from pipeline.shards.errors import ConversionError, InfeedError
from pipeline.shards.sizes import format_bytes
from pipeline.shards.storage import open_storage

__all__ = ["dry_run", "exit_with", "launch"]


def dry_run(job: Job, console: Console) -> None:
    """Prints what the conversion would do."""
    table = Table("split", "records", "rejected", "shards", "smallest", "largest", "read requests", "plan")
    previews = list(preview(job))
    for p in previews:
        sizes = [format_bytes(size) for size in (min(p.shard_bytes), max(p.shard_bytes))]
        counts = [f"{p.records:,}", f"{len(p.rejected):,}", f"{len(p.shard_bytes):,}"]
        table.add_row(p.split, *counts, *sizes, f"{p.read_requests:,}", p.plan_digest[:12])
    console.print(table)
    for line in (line for p in previews for line in p.rejected):
        console.print(f"rejected: {line}", markup=False)
    console.print("Dry run: nothing was written.")


def launch(job: Job, options, console: Console) -> None:
    """Runs the conversion to its end and prints the verdict of every split.

    Raises ConversionError with the verdict's own words when a split is not complete."""
    import apache_beam as beam

    from beam_jobs.graph import build

    # The runner logs a worker's traceback several times over; what went wrong is raised once, below, in words.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    failure: Exception | None = None
    with watching(job, console):
        try:
            pipeline = beam.Pipeline(options=options)
            build(pipeline, job)
            pipeline.run().wait_until_finish()
        except Exception as e:  # the runner's own errors: the verdict below says more
            failure = e
    verdicts = [_verdict(job, split) for split in job.splits]
    for verdict in verdicts:
        if verdict and verdict.ok:
            rejected = f", {verdict.rejected} rejected" if verdict.rejected else ""
            console.print(
                f"{verdict.split}: {verdict.message}{rejected} -> {job.output_dir}", markup=False, soft_wrap=True
            )
    failed = [verdict.message for verdict in verdicts if verdict and not verdict.ok]
    if failed:
        raise ConversionError("\n".join(failed)) from failure
    if failure:
        raise ConversionError(
            f"the runner failed: {_last_line(failure)}. Run the same command again: it goes on."
        ) from failure
    if not all(verdicts):
        missing = ", ".join(s for s, v in zip(job.splits, verdicts, strict=True) if not v)
        raise ConversionError(
            f"the runner reported success, but the commit of {missing} never ran: it lost data. No manifest was "
            "written. Choose another --runner."
        )


def exit_with(main: Callable[[], None]) -> None:
    """Runs a command line's main; an InfeedError becomes one message on stderr and exit status 2."""
    try:
        main()
    except InfeedError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted. Run the same command again: it goes on.", file=sys.stderr)
        sys.exit(130)


def _verdict(job: Job, split: str) -> Verdict | None:
    return Verdict.read(open_storage(job.output_dir), job.output_dir, split, job.run_id)


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
