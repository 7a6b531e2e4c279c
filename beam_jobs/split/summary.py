"""The report on a conversion, as JSON for programs and people, one file per split; and options that
are valid but surely a mistake, which a dry run and a conversion both refuse or warn about.

The commit writes the report, so detached jobs have one, too. It has times and speeds, while the
manifest depends on shards only."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from beam_jobs.converter import ConversionJob
from beam_jobs.split.ledger import Ledger, SourceSummary
from beam_jobs.split.plan import SplitPlan
from pipeline.errors import ConversionError, OptionError
from pipeline.shards.manifest import ShardEntry, SplitEntry
from pipeline.shards.naming import summary_file
from pipeline.sizes import counted, format_bytes
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import find_file, write_file

_SHOWN = 10
_STRATIFY = "--stratify holds out the same fraction of each class."
_OF_FOLDERS = "Each folder is a class and keeps its number, even without files."


def check_places(raw_data: str, output_dir: str) -> None:
    """Raises OptionError if one directory is the other or is inside it. Follows symbolic links on a
    disk.

    The next run would take shards for raw data, and removing one directory would remove the
    other."""
    for option, place in (("--raw-data-dir", raw_data), ("--output", output_dir)):
        if not place:
            raise OptionError(f"{option} is empty. Give a directory; the current one is '.'.")
    raw = _parts(raw_data)
    output = _parts(output_dir)
    if raw[: len(output)] == output and len(raw) > len(output):
        problem = (
            f"--output={output_dir} contains the raw data ({raw_data}): shards would be mixed with "
            "it"
        )
    elif output[: len(raw)] == raw:
        problem = (
            f"--output={output_dir} {'is the directory of' if output == raw else 'is inside'} the "
            f"raw data ({raw_data}): a second run would convert shards"
        )
    else:
        return
    if not find_file(open_storage(raw_data), raw_data):
        raise OptionError(f"{problem}. Give an output directory outside the raw data.")


def check_size(plan: SplitPlan) -> None:
    """Raises ConversionError if there are no records, or if --target-shard-bytes would give more
    shards than records."""
    job = plan.job
    records = plan.total.records
    if not records:
        raise ConversionError(
            f"split {plan.split!r} has no records: its sources contain nothing to convert. If it "
            "is a fraction of them, they have too few groups: equal rows of a table stay together, "
            "and so does what --split-by says. Give another --validation-fraction or "
            "--test-fraction; 0 means no such split. For image folders, --raw-data-dir has to be "
            "the folder that contains the folders of the classes."
        )
    size = plan.sampled.scaled(plan.total.bytes)
    if job.num_shards.get(plan.split) or job.target_shard_bytes * records >= size:
        return
    raise ConversionError(
        f"--target-shard-bytes={job.target_shard_bytes} (bytes) is less than the mean record of "
        f"split {plan.split!r}, {format_bytes(size / records)}: {plan.num_shards:,} shards for "
        f"{records:,} records. A number without a unit is in bytes; 100MB to 1GB is usual. If you "
        "want empty shards, give the number of shards instead."
    )


def empty_shards(plan: SplitPlan, records: Sequence[int]) -> Iterator[str]:
    """Yields a warning if more shards were requested than there are records. records: per shard."""
    if plan.num_shards > max(1, sum(records)):
        yield (
            f"{plan.num_shards:,} shards were requested for {sum(records):,} records: "
            f"{records.count(0):,} of them are empty. These are files of 0 bytes, which the "
            "manifest lists and readers skip; they are of no use."
        )


def odd_shares(plan: SplitPlan, ledger: Ledger, records: Mapping[str, int]) -> Iterator[str]:
    """Yields warnings if a held-out split has far more or fewer records than requested, or none of
    a class. records: by split; 0 if an older infeed wrote it."""
    held_out = getattr(plan.job.converter, "held_out", None)
    asked = getattr(held_out, plan.split, 0.0)
    if not held_out or not asked:
        return
    counts = [records[split] for split in held_out.splits]
    if all(counts) and abs((share := ledger.records / sum(counts)) - asked) > asked / 3:
        yield (
            f"split {plan.split!r} has {ledger.records:,} of {sum(counts):,} records, {share:.1%}; "
            f"{asked:.1%} was asked for. A hash decides where what belongs together goes, so the "
            "shares of few groups are up to chance."
        )
    labels = plan.job.converter.labels
    sums = ledger.columns.get(labels.key) if labels else None
    counts = sums.classes if sums else ledger.classes
    if labels and counts:
        present = {int(number) - labels.base for number in counts}
        absent = [name for number, name in enumerate(labels.names) if number not in present]
        if absent:
            yield empty_classes(f"split {plan.split!r}", absent, _STRATIFY, "records")


def _parts(directory: str) -> Sequence[str]:
    if is_remote(directory):
        return directory.rstrip("/").split("/")
    return Path(directory).resolve().parts


def summarize(
    plan: SplitPlan,
    entry: SplitEntry,
    notes: Mapping[str, int],
    fresh: Sequence[ShardEntry],
    warnings: Sequence[str],
) -> dict[str, Any]:
    """The report of a complete split, as JSON. Sizes are in bytes, times in seconds.

    notes: see Converted, with the number of records. fresh: the shards that this run wrote.
    warnings: additional ones."""
    job = plan.job
    sizes = [shard.bytes for shard in entry.shards]
    # rounded first, so that the rates agree with what is reported
    seconds = max(round(time.time() - job.started, 3), 1e-3)
    return {
        "split": plan.split,
        "plan_digest": plan.digest,
        "records": entry.num_records,
        "rejected": entry.rejected,
        "bytes": entry.num_bytes,
        "shards": len(sizes),
        "shards_finished_before": len(sizes) - len(fresh),  # by earlier runs
        "started": job.started,  # Unix seconds
        "local_processes": job.local_processes,
        "seconds": seconds,  # since the start of the job, which may convert other splits as well
        # written by this run
        "records_per_second": round(sum(shard.records for shard in fresh) / seconds, 3),
        "bytes_per_second": round(sum(shard.bytes for shard in fresh) / seconds, 3),
        "warnings": [
            *warnings,
            *(
                note.format(f"{count:,}.")
                if "{}" in note
                else f"in {count:,} of {entry.num_records:,} records {note}."
                for note, count in sorted(notes.items())
            ),
            *empty_shards(plan, [shard.records for shard in entry.shards]),
        ],
    }


def write_summary(job: ConversionJob, summary: Mapping[str, Any]) -> None:
    """Publishes the report. If this run wrote no shards, an existing report stays."""
    path = job.path(summary_file(summary["split"]))
    data = (json.dumps(summary, indent=1) + "\n").encode()
    if summary["shards_finished_before"] == summary["shards"]:
        job.output.create(path, data)
    else:
        write_file(job.output, path, data)


def in_words(summary: Mapping[str, Any]) -> str:
    """The report in one line."""
    before = summary["shards_finished_before"]
    shards = summary["shards"]
    total = (
        f"{counted(summary['records'], 'record')}, {format_bytes(summary['bytes'])} in "
        f"{counted(shards, 'shard')}"
    )
    if before == shards:
        return f"{total}, all finished before"
    again = f" ({before} of them finished before)" if before else ""
    processes = summary["local_processes"]
    several = f" in {processes} processes" if processes > 1 else ""
    speed = (
        f"{summary['records_per_second']:,.0f} records/s, "
        f"{format_bytes(round(summary['bytes_per_second']))}/s"
    )
    return f"{total}{again}, {summary['seconds']:.1f} s{several}, {speed}"


def empty_folders(plan: SplitPlan, summaries: Iterable[SourceSummary]) -> Iterator[str]:
    """Yields a warning if folders of classes have no records. odd_shares warns about held-out
    splits."""
    empty = sorted(each.source for each in summaries if not each.records)
    sources = (plan.job.sources[number] for number in empty)
    names = [source.tag for source in sources if source.kind == "folder" and source.tag]
    if names and not getattr(plan.job.converter, "held_out", None):
        yield empty_classes(f"split {plan.split!r}", names)


def empty_classes(
    where: str, names: Sequence[str], more: str = _OF_FOLDERS, what: str = "files"
) -> str:
    """The warning that some classes have no files. more: a sentence to end with."""
    shown = ", ".join(repr(name) for name in names[:_SHOWN]) + (
        ", ..." if len(names) > _SHOWN else ""
    )
    many = f"{len(names):,} of its classes" if len(names) > 1 else "one of its classes"
    return f"{where} has no {what} in {many}: {shown}. {more}"
