"""Commit: proves that a split is whole, then publishes index, ledger, sidecars and, last, the manifest.

It is the last step of the Beam graph, so detached jobs finish by themselves; it is idempotent, so a retry may
repeat it. It trusts no runner: what was scanned must be what was written and rejected, input by input."""

import dataclasses
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from beam_jobs.claims import check_mergeable
from beam_jobs.plan import Job, SplitPlan
from beam_jobs.receipts import Receipt, Rejected, Verdict, read_receipts, sweep_verdicts
from pipeline.shards.errors import ConversionError, printable
from pipeline.shards.index import encode_index
from pipeline.shards.manifest import Manifest, ShardEntry, SplitEntry, update_manifest
from pipeline.shards.naming import MANIFEST_FILE, index_file, rejects_file
from pipeline.shards.record import crc32c
from pipeline.shards.sidecars import SIDECAR_FILES, write_sidecars
from pipeline.shards.sizes import format_bytes
from pipeline.shards.storage import Storage, join

__all__ = ["ShardResult", "SourceSummary", "check_scanned", "commit_split"]


@dataclass(frozen=True)
class SourceSummary:
    """What the scan of one source found; travels beside the rows, so that commit can add up."""

    source: int  # its number in the job
    records: int
    key_digest: int


@dataclass(frozen=True)
class ShardResult:
    """What travels from gather to commit: a few numbers a shard. The rest is in its receipt."""

    split: str
    shard: int
    records: int
    rejected: int
    bytes: int
    crc32c: int
    handled_digest: int

    @staticmethod
    def of(receipt: Receipt) -> "ShardResult":
        """The summary of a receipt."""
        return ShardResult(
            split=receipt.split,
            shard=receipt.shard,
            records=receipt.records,
            rejected=len(receipt.rejected),
            bytes=receipt.bytes,
            crc32c=receipt.crc32c,
            handled_digest=int(receipt.handled_digest, 16),
        )


def commit_split(
    storage: Storage, plan: SplitPlan, summaries: Iterable[SourceSummary], results: Iterable[ShardResult]
) -> Verdict:
    """Publishes a split that is whole, and its verdict; returns the verdict.

    Raises ConversionError, after the ledger is written, when records were lost or too many were rejected."""
    job, split = plan.job, plan.split
    results = sorted(results, key=lambda result: result.shard)
    check_scanned(plan, summaries)
    _check_written(plan, results)
    whole = _prove(storage, plan, results)
    rejected = sorted(whole.rejected, key=lambda line: (line.key, line.uri, line.offset))
    _write_ledger(storage, job.output_dir, split, rejected)
    records = sum(result.records for result in results)
    if len(rejected) > job.max_bad_records:
        raise ConversionError(_rejected_message(job, split, rejected))
    if not records:
        raise ConversionError(f"split {split!r} has no records: its sources hold nothing to convert.")
    entry = _publish_index(storage, plan, whole)
    _publish_manifest(storage, job, split, entry)
    _sweep(storage, plan)
    message = f"{records:,} records, {format_bytes(entry.num_bytes)} in {plan.num_shards} shards"
    verdict = Verdict(job.run_id, split, True, message, records, entry.num_bytes, plan.num_shards, len(rejected))
    verdict.write(storage, job.output_dir)
    return verdict


def check_scanned(plan: SplitPlan, summaries: Iterable[SourceSummary]) -> None:
    """Raises ConversionError naming every source that the runner lost, or scanned twice, on the way to the plan.

    Before the claim, so that such a run does not leave the claim of a plan that nobody wants."""
    job, summaries = plan.job, list(summaries)
    expected = {number for number, source in enumerate(job.sources) if source.split == plan.split}
    problems = [*_miscounted("input", Counter(s.source for s in summaries), expected, lambda n: job.sources[n].name)]
    scanned = sum(summary.records for summary in summaries)
    keys = _modulo(summary.key_digest for summary in summaries)
    if not problems and (scanned, keys) != (plan.total.records, plan.total.key_digest):
        problems.append(f"{scanned} records scanned, {plan.total.records} planned, or not the same ones")
    _refuse_lost(plan.split, problems)


def _check_written(plan: SplitPlan, results: Sequence[ShardResult]) -> None:
    problems = [*_miscounted("shard", Counter(r.shard for r in results), set(range(plan.num_shards)), str)]
    written, rejected = sum(r.records for r in results), sum(r.rejected for r in results)
    if not problems and written + rejected != plan.total.records:
        problems.append(f"{plan.total.records} records scanned, {written} written, {rejected} rejected")
    # One record lost and another one twice leave the counts right, so the keys are added up as well.
    if not problems and _modulo(r.handled_digest for r in results) != plan.total.key_digest:
        problems.append("the records that arrived are as many as were scanned, but not the same ones")
    _refuse_lost(plan.split, problems)


def _refuse_lost(split: str, problems: Sequence[str]) -> None:
    if problems:
        more = f"; and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise ConversionError(
            f"split {split!r}: the runner lost or repeated data: {'; '.join(problems[:10])}{more}. No manifest was "
            "written. Run the same command again; if it happens again, choose another --runner."
        )


def _modulo(digests: Iterable[int]) -> int:
    return sum(digests) & ((1 << 128) - 1)


def _miscounted(what: str, seen: Counter[int], expected: set[int], name: Callable[[int], str]) -> Iterator[str]:
    for number in sorted(expected | set(seen)):
        wanted = int(number in expected)
        if seen[number] != wanted:
            yield f"{what} {name(number) if wanted else number} arrived {seen[number]} times instead of {wanted}"


@dataclass
class _Whole:
    """What all receipts of a split add up to, in shard order."""

    shards: list[ShardEntry] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)  # of the index
    key_digest: int = 0
    fixups: Counter[str] = field(default_factory=Counter)
    rejected: list[Rejected] = field(default_factory=list)

    def add(self, receipt: Receipt) -> None:
        self.shards.append(ShardEntry(receipt.file, receipt.records, receipt.bytes, receipt.crc32c))
        self.rows.append(receipt.index_rows())
        self.key_digest = _modulo([self.key_digest, int(receipt.key_digest, 16)])
        self.fixups.update(receipt.fixups)
        self.rejected += receipt.rejected


def _prove(storage: Storage, plan: SplitPlan, results: Sequence[ShardResult]) -> _Whole:
    """Raises ConversionError unless each shard is there as its receipt says, and its receipt as the run says."""
    whole, output_dir = _Whole(), plan.job.output_dir
    for result, (receipt, there) in zip(results, read_receipts(storage, plan), strict=True):
        if receipt is None or receipt.plan != plan.digest or ShardResult.of(receipt) != result:
            raise ConversionError(
                f"the receipt of shard {result.shard} of {plan.split!r} in {output_dir} is gone or is another plan's: "
                "a second conversion writes here. Stop one of them and run the other again."
            )
        if there is None or not there.agrees_with(receipt.stat):
            raise ConversionError(
                f"{join(output_dir, receipt.file)} {f'has {there}' if there else 'is gone'}, its receipt says "
                f"{receipt.stat}. Something else wrote there. Run the same command again."
            )
        whole.add(receipt)
    return whole


def _write_ledger(storage: Storage, output_dir: str, split: str, rejected: Sequence[Rejected]) -> None:
    with storage.publish(join(output_dir, rejects_file(split))) as sink:
        for line in rejected:
            sink.write((json.dumps(dataclasses.asdict(line)) + "\n").encode())


def _rejected_message(job: Job, split: str, rejected: Sequence[Rejected]) -> str:
    shown = "".join(f"\n  {printable(f'{line.key}: {line.error}')}" for line in rejected[:10])
    more = f"\n  and {len(rejected) - 10} more" if len(rejected) > 10 else ""
    return (
        f"split {split!r}: {len(rejected)} bad records, allowed are {job.max_bad_records} (--max_bad_records):"
        f"{shown}{more}\n"
        f"All are listed in {join(job.output_dir, rejects_file(split))}. Repair them, or allow that many."
    )


def _publish_index(storage: Storage, plan: SplitPlan, whole: _Whole) -> SplitEntry:
    data = encode_index(np.concatenate(whole.rows))
    with storage.publish(join(plan.job.output_dir, index_file(plan.split))) as sink:
        sink.write(data)
    sources = [source for source in plan.job.sources if source.split == plan.split]
    return SplitEntry(
        shards=tuple(whole.shards),
        index_crc32c=crc32c(data),
        plan_digest=plan.digest,
        key_digest=f"{whole.key_digest:032x}",
        seed=plan.job.seed,
        rejected=len(whole.rejected),
        fixups=dict(sorted(whole.fixups.items())),
        sources={"inputs": len(sources), "bytes": sum(source.bytes for source in sources)},
    )


def _publish_manifest(storage: Storage, job: Job, split: str, entry: SplitEntry) -> None:
    """Merges the split into what is there: train today, validation next week, or both at once."""
    converter = job.converter

    def merged(there: Manifest | None) -> Manifest:
        check_mergeable(there, job)
        splits = {**(there.splits if there else {}), split: entry}
        manifest = Manifest(converter.name, converter.schema, splits, converter.labels, _writer())
        write_sidecars(storage, job.output_dir, manifest)
        return manifest

    update_manifest(storage, job.output_dir, merged)


def _sweep(storage: Storage, plan: SplitPlan) -> None:
    """Removes what killed workers of this split left half-written, and verdicts for killed launchers."""
    output_dir, split = plan.job.output_dir, plan.split
    shards = f"{split}-*-of-{plan.num_shards:05d}"
    storage.sweep(output_dir, [shards, MANIFEST_FILE, *SIDECAR_FILES])
    for directory in ("_shards", "_index", "_rejects"):
        storage.sweep(join(output_dir, directory), [f"{shards}.json", f"{split}.*"])
    sweep_verdicts(storage, output_dir, split, time.time())


def _writer() -> str:
    try:
        return f"infeed {version('infeed')}"
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "infeed"
