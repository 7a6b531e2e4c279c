"""The report of a conversion, as JSON for programs and people: one file per split.

The commit writes it, so a detached job leaves it, too. It has times and speeds; the manifest depends on shards only."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from beam_jobs.converter import Source
from beam_jobs.plan import SplitPlan
from beam_jobs.plausible import empty_shards
from beam_jobs.proof import Whole
from pipeline.shards.errors import printable
from pipeline.shards.manifest import ShardEntry, SplitEntry
from pipeline.shards.naming import summary_file
from pipeline.shards.sizes import format_bytes
from pipeline.shards.storage import Storage, join

__all__ = ["Summary", "empty_classes", "empty_folders", "summarize"]

_SHOWN = 10
_LARGE = 4  # a record over a quarter of a shard makes shards differ in size


@dataclass(frozen=True)
class Summary:
    """The report of one split in one run. Sizes are in bytes, times in seconds."""

    split: str
    plan_digest: str
    records: int
    rejected: int
    fixups: Mapping[str, int]
    bytes: int
    shards: int
    shards_finished_before: int  # by earlier runs
    smallest_shard: int
    largest_shard: int
    target_shard: int | None  # None if the number of shards was given
    largest_record: Mapping[str, str | int]  # key, bytes
    raw: Mapping[str, int]
    started: float  # Unix seconds
    seconds: float  # since the start of the job, which may convert other splits as well
    records_per_second: float  # written by this run
    bytes_per_second: float
    warnings: Sequence[str]

    def write(self, storage: Storage, output_dir: str) -> None:
        """Publishes the report. If this run wrote no shards, keeps the report of the run that did."""
        path = join(output_dir, summary_file(self.split))
        data = (json.dumps(dataclasses.asdict(self), indent=1) + "\n").encode()
        if self.shards_finished_before == self.shards:  # some buckets forbid replacing
            storage.create(path, data)
            return
        with storage.publish(path) as sink:
            sink.write(data)

    def __str__(self) -> str:
        """One line, for people."""
        total = f"{self.records:,} records, {format_bytes(self.bytes)} in {self.shards} shards"
        if self.shards_finished_before == self.shards:
            return f"{total}, all finished before"
        again = f" ({self.shards_finished_before} of them finished before)" if self.shards_finished_before else ""
        speed = f"{self.records_per_second:,.0f} records/s, {format_bytes(round(self.bytes_per_second))}/s"
        return f"{total}{again}, {self.seconds:.1f} s, {speed}"


def summarize(
    plan: SplitPlan, entry: SplitEntry, whole: Whole, fresh: Sequence[ShardEntry], warnings: Sequence[str], now: float
) -> Summary:
    """The report of a complete split. fresh: the shards that this run wrote. warnings: additional ones."""
    job = plan.job
    sizes = [shard.bytes for shard in entry.shards]
    seconds = max(now - job.started, 1e-3)
    demanded = (job.num_shards or {}).get(plan.split)
    return Summary(
        split=plan.split,
        plan_digest=plan.digest,
        records=entry.num_records,
        rejected=entry.rejected,
        fixups=entry.fixups,
        bytes=entry.num_bytes,
        shards=len(sizes),
        shards_finished_before=len(sizes) - len(fresh),
        smallest_shard=min(sizes),
        largest_shard=max(sizes),
        target_shard=None if demanded else job.target_shard_bytes,
        largest_record={"key": whole.largest[1], "bytes": whole.largest[0]},
        raw=entry.sources,
        started=job.started,
        seconds=round(seconds, 3),
        records_per_second=round(sum(shard.records for shard in fresh) / seconds, 3),
        bytes_per_second=round(sum(shard.bytes for shard in fresh) / seconds, 3),
        warnings=(
            *warnings,
            *_of_notes(entry, whole.notes),
            *empty_shards(plan, [shard.records for shard in entry.shards]),
            *_of_size(plan, *whole.largest),
        ),
    )


def empty_folders(split: str, sources: Iterable[Source]) -> Iterator[str]:
    """Yields a warning if some of the sources, which have no records, are folders of classes."""
    if names := [source.tag for source in sources if source.kind == "folder" and source.tag]:
        yield empty_classes(f"split {split!r}", names)


def empty_classes(where: str, names: Sequence[str]) -> str:
    """The warning that some classes have no files."""
    shown = ", ".join(repr(name) for name in names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    what, keep = (
        ("class", "It keeps its number") if len(names) == 1 else (f"{len(names):,} classes", "They keep their numbers")
    )
    return f"{where} has no files of {what} {shown}. {keep}: each folder is a class, even without files."


def _of_notes(entry: SplitEntry, notes: Mapping[str, int]) -> Iterator[str]:
    for note, count in sorted(notes.items()):
        yield f"in {count:,} of {entry.num_records:,} records {note}."


def _of_size(plan: SplitPlan, num_bytes: int, key: str) -> Iterator[str]:
    key = printable(key)
    shard = plan.sampled.scaled(plan.total.bytes) / plan.num_shards
    if plan.num_shards > 1 and num_bytes * _LARGE > shard:
        yield (
            f"{key} is a record of {format_bytes(num_bytes)}, over a quarter of a shard ({format_bytes(int(shard))}): "
            "shards differ in size by as much. Larger shards would be more equal (--target_shard_bytes)."
        )
