"""Commit: proves that a split is complete, then publishes index, ledger, sidecars and, last, the
manifest.

It is the last step of the Beam graph, so detached jobs need no launcher. It is idempotent, so
runners may retry it.

A verdict states how one split of one run ended, in a small JSON file that the launcher reads and
removes. If the launcher was killed or did not wait, the commit of a later run removes it."""

import contextlib
import dataclasses
import fnmatch
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from beam_jobs.converter import ConversionJob
from beam_jobs.split.claims import check_mergeable, renew_claim
from beam_jobs.split.copies import Counted
from beam_jobs.split.ledger import (
    Ledger,
    SourceSummary,
    Written,
    check_rejected,
    check_scanned,
    prove,
)
from beam_jobs.split.plan import SplitPlan
from beam_jobs.split.summary import empty_folders, in_words, odd_shares, summarize, write_summary
from pipeline.errors import ConversionError, InfeedError, StorageError
from pipeline.packages import version_of
from pipeline.shards.copies import update_copies
from pipeline.shards.index_writer import write_index
from pipeline.shards.manifest import Manifest, SplitEntry, find_manifest, update_manifest
from pipeline.shards.naming import (
    MANIFEST_FILE,
    rejects_file,
    shard_files,
    verdict_file,
)
from pipeline.shards.schema import update_statistics
from pipeline.shards.sidecars import SIDECAR_FILES, write_sidecars
from pipeline.shards.typed_json import JsonFile, read_sealed, sealed_line
from pipeline.storage.storage import Storage, write_file

_MEND = (
    "It reports how a conversion ended, but is damaged. Run the same command again: it keeps the "
    "finished shards."
)


@dataclass(frozen=True)
class Verdict:
    """How one split of one run ended."""

    run_id: str
    split: str
    ok: bool
    message: str  # for people: totals if ok, otherwise every problem
    summary: Mapping[str, Any] = field(default_factory=dict)  # see summarize
    at: float = field(default_factory=time.time, compare=False)  # Unix seconds

    def write(self, job: ConversionJob) -> None:
        """Publishes the verdict."""
        path = job.path(verdict_file(self.split, self.run_id))
        write_file(job.output, path, sealed_line(dataclasses.asdict(self)))

    @staticmethod
    def fetch(job: ConversionJob, split: str) -> "Verdict | None":
        """Returns and removes this run's verdict; None if there is none. Raises ConversionError if
        it is damaged.

        Never returns the verdict of another run: that run may have had another plan."""
        path = job.path(verdict_file(split, job.run_id))
        if not job.output.exists(path):
            return None
        try:
            return _read(job.output, path)
        finally:
            with contextlib.suppress(InfeedError):  # some buckets forbid deletion
                job.output.delete(path)


def _read(storage: Storage, path: str) -> Verdict:
    """The verdict in a file. Raises ConversionError if it is damaged."""
    return read_sealed(JsonFile(path, ConversionError, _MEND), storage.read(path), Verdict)


def _sweep_verdicts(job: ConversionJob, split: str) -> None:
    """Removes damaged verdicts, and those of runs that ended before this one started."""
    files = (f"_shards/{name}" for name in job.output.list(job.path("_shards")))
    for path in map(job.path, fnmatch.filter(files, verdict_file(split, "*"))):
        with contextlib.suppress(StorageError):  # its launcher has just removed it
            with contextlib.suppress(ConversionError):  # a damaged one is removed, too
                if _read(job.output, path).at >= job.started:
                    continue
            job.output.delete(path)


def buried_messages(text: str) -> list[str]:
    """Messages of InfeedErrors in the text of a runner's error, which quotes the tracebacks of its
    workers."""
    module = re.escape(InfeedError.__module__)  # tracebacks print it before the class name
    return re.findall(rf"^{module}\.\w+: (.*?)(?: \[while running .*\])?$", text, re.MULTILINE)


@contextlib.contextmanager
def verdict_on_error(job: ConversionJob, split: str) -> Iterator[None]:
    """Writes the message of an InfeedError as the split's verdict, because runners bury it in
    tracebacks."""
    try:
        yield
    except InfeedError as e:
        if job.dry_run:
            raise
        # on a full disk this fails, too; the first error matters
        with contextlib.suppress(InfeedError):
            Verdict(job.run_id, split, ok=False, message=str(e)).write(job)
        raise


def commit_split(
    plan: SplitPlan,
    summaries: Sequence[SourceSummary],
    written: Iterable[Written],
    counted: Counted,
    uncommitted: Collection[str] = (),
) -> Verdict:
    """Publishes a complete split and its verdict; returns the verdict.

    counted: the copies in all splits. uncommitted: splits whose files may still be those of an
    earlier run. Raises ConversionError if records were lost or, after writing the ledger, if too
    many were rejected."""
    job = plan.job
    split = plan.split
    written = sorted(written, key=attrgetter("shard"))
    check_scanned(plan, summaries)
    proven = Ledger()
    records = sum(each.records for each in written)
    rows = _proven_rows(plan, written, proven)
    index_crc32c = write_index(job.output, job.output_dir, split, records, rows)
    entry = _entry(plan, proven, index_crc32c)
    fresh = [shard for shard, each in zip(entry.shards, written, strict=True) if not each.reused]
    warnings = [
        *empty_folders(plan, summaries),
        *odd_shares(plan, proven, counted.records),
    ]
    warnings += _publish_copies(plan, entry, counted, uncommitted)
    summary = summarize(plan, entry, proven.notes, fresh, warnings)
    # only a report; some buckets forbid replacing the first one
    with contextlib.suppress(StorageError):
        write_summary(job, summary)
    if proven.columns:
        names: Any = getattr(job.converter, "class_names", {})
        columns = {
            name: sums.statistics(names.get(name, ()))
            for name, sums in sorted(proven.columns.items())
        }
        update_statistics(job.output, job.output_dir, split, columns)
    _publish_manifest(job, split, entry)
    _sweep(plan)
    verdict = Verdict(
        job.run_id,
        split,
        ok=True,
        message=in_words(summary),
        summary=summary,
    )
    verdict.write(job)
    return verdict


def _proven_rows(
    plan: SplitPlan, written: Sequence[Written], proven: Ledger
) -> Iterator[np.ndarray]:
    """Yields the rows of the index. After the last, publishes the list of rejected records, and
    raises if there are too many, so that no index appears."""
    yield from prove(plan, written, proven)
    renew_claim(plan)
    job = plan.job
    rejected = sorted(proven.rejected, key=attrgetter("key", "uri", "offset"))
    check_rejected(job, plan.split, len(rejected), rejected)
    listed = job.path(rejects_file(plan.split))
    with job.output.publish(listed) as sink:
        for line in rejected:
            sink.write(sealed_line(dataclasses.asdict(line)))
    check_rejected(job, plan.split, len(rejected), rejected, listed)
    if not proven.records:
        raise ConversionError(
            f"split {plan.split!r} has no records: its {len(rejected)} inputs were all rejected. "
            f"{listed} lists them."
        )


def _entry(plan: SplitPlan, proven: Ledger, index_crc32c: int) -> SplitEntry:
    job = plan.job
    sources = job.sources_of(plan.split)
    return SplitEntry(
        shards=tuple(proven.shards),
        index_crc32c=index_crc32c,
        plan_digest=plan.digest,
        key_digest=f"{proven.key_digest:032x}",
        seed=job.seed,
        rejected=len(proven.rejected),
        fixups=dict(sorted(proven.fixups.items())),
        totals=dict(sorted(proven.totals.items())),
        sources={"inputs": len(sources), "bytes": sum(source.bytes for source in sources)},
    )


def _publish_copies(
    plan: SplitPlan, entry: SplitEntry, counted: Counted, uncommitted: Collection[str]
) -> Iterator[str]:
    """Publishes the copies within this split, and in it and each committed split; yields warnings
    about them.

    Leaves out splits with uncounted records: an older infeed wrote them."""
    job = plan.job
    split = plan.split
    manifest = find_manifest(job.output_dir, job.output)
    entries = {**(manifest.splits if manifest else {}), split: entry}
    prints = {
        name: each.fingerprint
        for name, each in entries.items()
        if counted.records[name] == each.num_records and name not in uncommitted
    }
    pairs = [{each: prints[each] for each in sorted({split, name})} for name in prints]
    copies = [counted.of(job, pair) for pair in pairs if split in prints]
    with contextlib.suppress(StorageError):  # as for the summary
        update_copies(job.output, job.output_dir, split, copies)
    held_out = getattr(job.converter, "held_out", None)
    for each in copies:
        if each.records:
            remedy = " --split-by=content would keep them together." if len(each.splits) > 1 else ""
            apart = held_out and held_out.by != "content"
            yield f"{each.in_words(entries)}{remedy if apart else ''}"


def _publish_manifest(job: ConversionJob, split: str, entry: SplitEntry) -> None:
    """Merges the split into the existing manifest: splits may be converted together or weeks
    apart."""
    converter = job.converter

    def merged(current: Manifest | None) -> Manifest:
        check_mergeable(current, job)
        splits = {**(current.splits if current else {}), split: entry}
        writer = f"infeed {version_of('infeed')}".rstrip()
        manifest = Manifest(converter.name, converter.schema, splits, converter.labels, writer)
        write_sidecars(job.output, job.output_dir, manifest)
        for name, content in job.files.items():
            write_file(job.output, job.path(name), content)
        return manifest

    update_manifest(job.output, job.output_dir, merged)


def _sweep(plan: SplitPlan) -> None:
    """Removes partial files that killed workers of this split left, and verdicts of earlier
    runs."""
    job = plan.job
    split = plan.split
    shards = shard_files(split, plan.num_shards, job.converter.schema.files)
    job.output.sweep(job.output_dir, [shards, MANIFEST_FILE, *SIDECAR_FILES])
    receipts = shard_files(split, plan.num_shards)
    for directory in ("_shards", "_index", "_rejects", "_summary"):
        job.output.sweep(job.path(directory), [f"{receipts}.json", f"{split}.*"])
    _sweep_verdicts(job, split)
