"""Proves that a split is complete: every scanned record was written or rejected, input by input.

It trusts no runner. It receives only a few numbers per source and shard, and reads the rest from the receipts."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from beam_jobs.conversion_job import ConversionJob
from beam_jobs.receipts import Findings, Receipt, read_receipts, receipts_of
from beam_jobs.shard_plan import SplitPlan
from pipeline.errors import ConversionError, LostDataError, StorageError
from pipeline.shards.keys import add_digests
from pipeline.shards.manifest import ShardEntry
from pipeline.shards.naming import receipt_file
from pipeline.storage.storage import Storage, join


@dataclass(frozen=True)
class SourceSummary:
    """Totals of the scan of one source. The runner passes it to commit along with the rows."""

    source: int  # its number in the job
    records: int
    key_digest: int


@dataclass(frozen=True)
class ShardResult:
    """A few numbers per shard, passed from gather to commit. The rest is in the shard's receipt."""

    split: str
    shard: int
    records: int
    rejected: int
    bytes: int
    crc32c: int
    handled_digest: int
    reused: bool = field(default=False, compare=False)  # finished by an earlier run

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


def check_scanned(plan: SplitPlan, summaries: Iterable[SourceSummary]) -> None:
    """Raises ConversionError naming every source that the runner lost or scanned twice.

    Runs before the claim, so that such a run does not claim the split for a wrong plan."""
    job, summaries = plan.job, list(summaries)
    expected = {number for number, source in enumerate(job.sources) if source.split == plan.split}
    problems = [*_miscounted("input", Counter(s.source for s in summaries), expected, lambda n: job.sources[n].name)]
    scanned = sum(summary.records for summary in summaries)
    keys = add_digests(summary.key_digest for summary in summaries)
    if not problems and (scanned, keys) != (plan.total.records, plan.total.key_digest):
        problems.append(f"{scanned} records scanned, {plan.total.records} planned, or not the same ones")
    _refuse_lost(plan.split, problems)
    check_expected(job, plan.split, scanned)


def check_expected(job: ConversionJob, split: str, scanned: int) -> None:
    """Raises ConversionError if the raw data does not have the expected number of records."""
    expected = job.expected.get(split)
    if expected is not None and scanned != expected:
        raise ConversionError(
            f"split {split!r} has {scanned:,} records in the raw data; the full set has {expected:,}. Files are "
            "missing, or do not belong there. Copy it again, or leave out the option that requires the full set."
        )


def check_written(plan: SplitPlan, results: Sequence[ShardResult]) -> None:
    """Raises ConversionError if shards or records were lost, or differ from the scanned ones."""
    problems = [*_miscounted("shard", Counter(r.shard for r in results), set(range(plan.num_shards)), str)]
    written, rejected = sum(r.records for r in results), sum(r.rejected for r in results)
    if not problems and written + rejected != plan.total.records:
        problems.append(f"{plan.total.records} records scanned, {written} written, {rejected} rejected")
    # If one record is lost and another repeated, the counts are right, so key digests are compared as well.
    if not problems and add_digests(r.handled_digest for r in results) != plan.total.key_digest:
        problems.append("as many records arrived as were scanned, but not the same ones")
    _refuse_lost(plan.split, problems)


@contextlib.contextmanager
def distrusting_receipts(storage: Storage, plans: Sequence[SplitPlan]) -> Iterator[None]:
    """If data was lost, removes the receipts of each split whose receipts do not add up.

    The receipt of a shard that lost rows looks like any other, so later runs would take that shard for finished."""
    try:
        yield
    except LostDataError:
        for plan in plans:
            stored = receipts_of(storage, plan.job.output_dir, plan.split, plan.num_shards)
            receipts = [receipt for receipt in stored if receipt and receipt.plan == plan.digest]
            if add_digests(int(receipt.handled_digest, 16) for receipt in receipts) != plan.total.key_digest:
                for receipt in receipts:
                    path = join(plan.job.output_dir, receipt_file(plan.split, receipt.shard, plan.num_shards))
                    with contextlib.suppress(StorageError):  # some buckets forbid deletion
                        storage.delete(path)
        raise


def _refuse_lost(split: str, problems: Sequence[str]) -> None:
    if problems:
        more = f"; and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise LostDataError(
            f"split {split!r}: the runner lost or repeated data: {'; '.join(problems[:10])}{more}. No manifest was "
            "written. Run the same command again; if it happens again, choose another --runner."
        )


def _miscounted(what: str, seen: Counter[int], expected: set[int], name: Callable[[int], str]) -> Iterator[str]:
    for number in sorted(expected | set(seen)):
        wanted = int(number in expected)
        if seen[number] != wanted:
            yield f"{what} {name(number) if wanted else number} arrived {seen[number]} times instead of {wanted}"


@dataclass
class CompleteSplit(Findings):
    """All receipts of a split combined, in shard order."""

    shards: list[ShardEntry] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)  # of the index

    def add(self, file: str, receipt: Receipt) -> None:
        """Adds the next shard. file: its name."""
        self.shards.append(ShardEntry(file, receipt.records, receipt.bytes, receipt.crc32c))
        self.rows.append(receipt.index_rows())
        self.key_digest = add_digests([self.key_digest, int(receipt.key_digest, 16)])
        self.fixups.update(receipt.fixups)
        self.notes.update(receipt.notes)
        self.totals.update(receipt.totals)
        for column, sums in receipt.columns.items():
            self.columns[column].add(sums)
        self.rejected += receipt.rejected


def prove(storage: Storage, plan: SplitPlan, results: Sequence[ShardResult]) -> CompleteSplit:
    """Raises ConversionError unless each shard matches its receipt, and each receipt the result from this run."""
    whole, output_dir = CompleteSplit(), plan.job.output_dir
    for result, (receipt, there) in zip(results, read_receipts(storage, plan), strict=True):
        file = plan.shard_file(result.shard)
        if receipt is None or receipt.plan != plan.digest or ShardResult.of(receipt) != result:
            raise ConversionError(
                f"the receipt of shard {result.shard} of {plan.split!r} in {output_dir} is missing, damaged or another "
                "plan's. If a second conversion writes here, stop one of them. Then run the same command again."
            )
        if there is None or not there.agrees_with(receipt.stat):
            raise ConversionError(
                f"{join(output_dir, file)} {f'has {there}' if there else 'is missing'}; its receipt states "
                f"{receipt.stat}. Something else wrote there. Run the same command again."
            )
        whole.add(file, receipt)
    return whole
