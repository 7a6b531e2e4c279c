"""Commit: proves that a split is complete, then publishes index, ledger, sidecars and, last, the manifest.

It is the last step of the Beam graph, so detached jobs need no launcher. It is idempotent, so it may be retried."""

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from beam_jobs.claims import check_mergeable, renew_claim
from beam_jobs.converter import ConversionJob, Packer
from beam_jobs.ledger import Ledger, Rejected, SourceSummary, Written, check_scanned, prove
from beam_jobs.plan import SplitPlan
from beam_jobs.report import empty_folders, in_words, summarize, write_summary
from beam_jobs.verdicts import Verdict, sweep_verdicts
from pipeline.commands.program import version_of
from pipeline.errors import ConversionError, StorageError
from pipeline.shards.manifest import Manifest, SplitEntry, update_manifest
from pipeline.shards.naming import MANIFEST_FILE, index_file, rejects_file, shard_files
from pipeline.shards.record import crc32c
from pipeline.shards.schema import update_statistics
from pipeline.shards.sidecars import SIDECAR_FILES, write_sidecars
from pipeline.shards.split_index import encode_index
from pipeline.shards.typed_json import sealed_line
from pipeline.sizes import counted
from pipeline.storage.storage import Storage, join, write_file


def commit_split(
    storage: Storage, plan: SplitPlan, summaries: Iterable[SourceSummary], written: Iterable[Written]
) -> Verdict:
    """Publishes a complete split and its verdict; returns the verdict.

    Raises ConversionError if records were lost or, after writing the ledger, if too many were rejected."""
    job, split = plan.job, plan.split
    summaries = list(summaries)
    written = sorted(written, key=lambda each: each.shard)
    check_scanned(plan, summaries)
    proven = prove(storage, plan, written)
    renew_claim(storage, plan)
    rejected = sorted(proven.rejected, key=lambda line: (line.key, line.uri, line.offset))
    with storage.publish(join(job.output_dir, rejects_file(split))) as sink:
        for line in rejected:
            sink.write(sealed_line(dataclasses.asdict(line)))
    if len(rejected) > job.max_bad_records:
        raise ConversionError(*_rejected_message(job, split, rejected))
    if not proven.records:
        listed = join(job.output_dir, rejects_file(split))
        raise ConversionError(
            f"split {split!r} has no records: its {len(rejected)} inputs were all rejected. {listed} lists them."
        )
    entry = _publish_index(storage, plan, proven)
    fresh = [shard for shard, each in zip(entry.shards, written, strict=True) if not each.reused]
    empty = sorted(summary.source for summary in summaries if not summary.records)
    warnings = list(empty_folders(split, (job.sources[number] for number in empty)))
    summary = summarize(plan, entry, proven, fresh=fresh, warnings=warnings, now=time.time())
    with contextlib.suppress(StorageError):  # only a report; some buckets forbid replacing the first one
        write_summary(storage, job.output_dir, summary)
    if proven.columns:
        names: Any = getattr(job.converter, "class_names", {})
        columns = {name: sums.statistics(names.get(name, ())) for name, sums in sorted(proven.columns.items())}
        update_statistics(storage, job.output_dir, split, columns)
    _publish_manifest(storage, job, split, entry)
    _sweep(storage, plan)
    done, warnings = in_words(summary), tuple(summary["warnings"])
    verdict = Verdict(job.run_id, split, ok=True, message=done, rejected=len(rejected), warnings=warnings)
    verdict.write(storage, job.output_dir)
    return verdict


def _rejected_message(job: ConversionJob, split: str, rejected: Sequence[Rejected]) -> Iterator[str]:
    yield f"split {split!r}: {counted(len(rejected), 'bad record')}; --max-bad-records allows {job.max_bad_records}:"
    for line in rejected[:10]:
        is_file = line.uri.rpartition("/")[2] == line.key.rpartition("/")[2]
        yield f"  {line.uri if is_file else line.key}: {line.error}"
    if len(rejected) > 10:
        yield f"  and {len(rejected) - 10} more"
    listed = join(job.output_dir, rejects_file(split))
    remedy = f"Leave them out with --max-bad-records={len(rejected)}, or repair them and add --overwrite."
    yield f"All are listed in {listed}. {remedy}"


def _publish_index(storage: Storage, plan: SplitPlan, proven: Ledger) -> SplitEntry:
    data = encode_index(np.concatenate(proven.rows))
    write_file(storage, join(plan.job.output_dir, index_file(plan.split)), data)
    sources = plan.job.sources_of(plan.split)
    return SplitEntry(
        shards=tuple(proven.shards),
        index_crc32c=crc32c(data),
        plan_digest=plan.digest,
        key_digest=f"{proven.key_digest:032x}",
        seed=plan.job.seed,
        rejected=len(proven.rejected),
        fixups=dict(sorted(proven.fixups.items())),
        totals=dict(sorted(proven.totals.items())),
        sources={"inputs": len(sources), "bytes": sum(source.bytes for source in sources)},
    )


def _publish_manifest(storage: Storage, job: ConversionJob, split: str, entry: SplitEntry) -> None:
    """Merges the split into the existing manifest: splits may be converted together or weeks apart."""
    converter = job.converter
    files = converter.files() if isinstance(converter, Packer) else {}

    def merged(there: Manifest | None) -> Manifest:
        check_mergeable(there, job)
        splits = {**(there.splits if there else {}), split: entry}
        writer = f"infeed {version_of('infeed')}".rstrip()
        manifest = Manifest(converter.name, converter.schema, splits, converter.labels, writer)
        write_sidecars(storage, job.output_dir, manifest)
        for name, content in files.items():
            write_file(storage, join(job.output_dir, name), content)
        return manifest

    update_manifest(storage, job.output_dir, merged)


def _sweep(storage: Storage, plan: SplitPlan) -> None:
    """Removes partial files that killed workers of this split left, and verdicts of earlier runs."""
    output_dir, split = plan.job.output_dir, plan.split
    shards = shard_files(split, plan.num_shards, plan.job.converter.schema.files)
    storage.sweep(output_dir, [shards, MANIFEST_FILE, *SIDECAR_FILES])
    receipts = shard_files(split, plan.num_shards)
    for directory in ("_shards", "_index", "_rejects", "_summary"):
        storage.sweep(join(output_dir, directory), [f"{receipts}.json", f"{split}.*"])
    sweep_verdicts(storage, plan.job, split)
