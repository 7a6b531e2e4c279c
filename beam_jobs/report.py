"""The report of a conversion, as JSON for programs and people: one file per split.

The commit writes it, so a detached job leaves it, too. It has times and speeds; the manifest depends on shards only."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from beam_jobs.completeness import CompleteSplit
from beam_jobs.converter import Source
from beam_jobs.plausible import empty_shards
from beam_jobs.shard_plan import SplitPlan
from pipeline.shards.manifest import ShardEntry, SplitEntry
from pipeline.shards.naming import summary_file
from pipeline.sizes import counted, format_bytes
from pipeline.storage.storage import Storage, join, write_file

_SHOWN = 10


def summarize(
    plan: SplitPlan,
    entry: SplitEntry,
    whole: CompleteSplit,
    fresh: Sequence[ShardEntry],
    warnings: Sequence[str],
    now: float,
) -> dict[str, Any]:
    """The report of a complete split, as JSON. Sizes are in bytes, times in seconds.

    fresh: the shards that this run wrote. warnings: additional ones."""
    job = plan.job
    sizes = [shard.bytes for shard in entry.shards]
    seconds = max(round(now - job.started, 3), 1e-3)  # rounded first, so that the rates agree with what is reported
    return {
        "split": plan.split,
        "plan_digest": plan.digest,
        "records": entry.num_records,
        "rejected": entry.rejected,
        "bytes": entry.num_bytes,
        "shards": len(sizes),
        "shards_finished_before": len(sizes) - len(fresh),  # by earlier runs
        "started": job.started,  # Unix seconds
        "seconds": seconds,  # since the start of the job, which may convert other splits as well
        "records_per_second": round(sum(shard.records for shard in fresh) / seconds, 3),  # written by this run
        "bytes_per_second": round(sum(shard.bytes for shard in fresh) / seconds, 3),
        "warnings": [
            *warnings,
            *(f"in {count:,} of {entry.num_records:,} records {note}." for note, count in sorted(whole.notes.items())),
            *empty_shards(plan, [shard.records for shard in entry.shards]),
        ],
    }


def write_summary(storage: Storage, output_dir: str, summary: Mapping[str, Any]) -> None:
    """Publishes the report. If this run wrote no shards, keeps the report of the run that did."""
    path, data = join(output_dir, summary_file(summary["split"])), (json.dumps(summary, indent=1) + "\n").encode()
    if summary["shards_finished_before"] == summary["shards"]:
        storage.create(path, data)
        return
    write_file(storage, path, data)


def in_words(summary: Mapping[str, Any]) -> str:
    """The report in one line."""
    before, shards = summary["shards_finished_before"], summary["shards"]
    total = f"{counted(summary['records'], 'record')}, {format_bytes(summary['bytes'])} in {counted(shards, 'shard')}"
    if before == shards:
        return f"{total}, all finished before"
    again = f" ({before} of them finished before)" if before else ""
    speed = f"{summary['records_per_second']:,.0f} records/s, {format_bytes(round(summary['bytes_per_second']))}/s"
    return f"{total}{again}, {summary['seconds']:.1f} s, {speed}"


def empty_folders(split: str, sources: Iterable[Source]) -> Iterator[str]:
    """Yields a warning if some of the sources, which have no records, are folders of classes."""
    if names := [source.tag for source in sources if source.kind == "folder" and source.tag]:
        yield empty_classes(f"split {split!r}", names)


def empty_classes(where: str, names: Sequence[str]) -> str:
    """The warning that some classes have no files."""
    shown = ", ".join(repr(name) for name in names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    many = f"{len(names):,} of its classes" if len(names) > 1 else "one of its classes"
    return f"{where} has no files in {many}: {shown}. Each folder is a class and keeps its number, even without files."
