"""The ledger of a split: what is in each finished shard, and the proof that nothing is missing.

A receipt states the content of a shard, in a JSON file written after it. It has a checksum; if it
is damaged, its shard counts as unfinished. The proof trusts no runner: it receives only a few
numbers per source and shard, and reads the rest from the receipts."""

import base64
import contextlib
import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from beam_jobs.converter import ConversionJob
from beam_jobs.rows.column_sums import ColumnSums
from beam_jobs.rows.references import Reference, References, escaped
from beam_jobs.split.plan import SplitPlan
from pipeline.errors import ConversionError, LostDataError, StorageError
from pipeline.shards.manifest import ShardEntry
from pipeline.shards.naming import add_digests, receipt_file
from pipeline.shards.rejects import LedgerLine
from pipeline.shards.typed_json import Count, JsonFile, Number, read_sealed, sealed_line
from pipeline.sizes import counted
from pipeline.storage.storage import Stat, write_file

_SHOWN = 10
_FILE = JsonFile("a receipt", ConversionError, "Its shard is written again.")


class Rejected(LedgerLine):
    """A rejected record."""

    @staticmethod
    def of(ref: Reference, stage: str, error: str) -> "Rejected":
        """The entry of a row. Names are escaped if they are not UTF-8, because the ledger is
        UTF-8."""
        return Rejected(escaped(ref.key), escaped(ref.file.uri), ref.offset, stage, error)


def rejected_by_scan(refs: References) -> Iterator[Rejected]:
    """The entries of the rows that the scan rejects."""
    return (Rejected.of(ref, "scan", ref.error) for ref in refs.take(~refs.good))


def check_rejected(
    job: ConversionJob, split: str, number: int, rejected: Iterable[Rejected], listed: str = ""
) -> None:
    """Raises ConversionError if too many records of a split are rejected.

    number: of known rejected records. rejected: some of them. listed: the file that lists all;
    without one, only more records than are ever listed are an error."""
    if number <= (job.max_bad_records if listed else job.most_rejected):
        return
    shown = list[str]()
    for line in itertools.islice(rejected, _SHOWN):
        name = line.uri.rpartition("/")[2]
        _, is_own, number_in_file = line.key.rpartition(f"/{name}")
        place = number_in_file if is_own else f": {line.key}"
        shown.append(f"  {line.uri}{place}: {line.error}")
    if number > len(shown):
        shown.append(f"  and {number - len(shown)} more")
    remedy = (
        f"All are listed in {listed}. Leave them out with --max-bad-records={number}"
        if listed
        else "The conversion stopped there. Allow more with --max-bad-records"
    )
    raise ConversionError(
        f"split {split!r}: {counted(number, 'bad record')}; --max-bad-records allows "
        f"{job.max_bad_records}:",
        *shown,
        f"{remedy}, or repair them and add --overwrite.",
    )


@dataclass(frozen=True)
class Receipt:
    """The content of one finished shard."""

    plan: str  # digest
    split: str
    shard: Count
    num_shards: Number
    records: Count
    bytes: Count
    crc32c: Count
    key_digest: str  # of the records written
    handled_digest: str  # of the keys of all rows that arrived, including rejected ones
    index: str  # base64 of little-endian uint32 [records, 2]: length, crc32c
    fixups: Mapping[str, Count]
    rejected: tuple[Rejected, ...]
    notes: Mapping[str, Count]
    totals: Mapping[str, Count]
    columns: Mapping[str, ColumnSums]
    raw: str  # base64 of RAW_ROW [rows that arrived], in order
    raw_checksum: str | None  # of all raw files of the split at that time: see SplitPlan
    classes: Mapping[str, Count] = field(default_factory=dict)  # records by label
    content: str = ""  # base64 of little-endian uint64 [records], see content_digest; "": not known

    def index_rows(self) -> np.ndarray:
        """The index of the shard's records: uint32 [records, 2]."""
        return np.frombuffer(base64.b64decode(self.index), "<u4").reshape(-1, 2)

    def content_digests(self) -> np.ndarray:
        """The digest of each record's raw content: uint64 [records]; [0] if an older infeed wrote
        the shard."""
        return np.frombuffer(base64.b64decode(self.content), "<u8")

    def write(self, job: ConversionJob) -> None:
        """Publishes the receipt. The shard must exist already."""
        write_file(job.output, job.path(self.file), sealed_line(dataclasses.asdict(self)))

    @property
    def file(self) -> str:
        """The name of its file."""
        return receipt_file(self.split, self.shard, self.num_shards)

    @property
    def stat(self) -> Stat:
        """The size and checksum that the storage must report for the shard."""
        return Stat(self.bytes, self.crc32c)


@dataclass
class Ledger:
    """The sums over the records of a shard that is being written, or of all shards of a split, in
    order."""

    records: int = 0
    key_digest: int = 0  # of the records written
    handled_digest: int = 0  # of the keys of all rows, including rejected ones
    fixups: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)  # by label
    columns: dict[str, ColumnSums] = field(default_factory=lambda: defaultdict(ColumnSums))
    rejected: list[Rejected] = field(default_factory=list)
    shards: list[ShardEntry] = field(default_factory=list)

    def add(self, file: str, receipt: Receipt) -> None:
        """Adds the next shard. file: its name."""
        self.shards.append(ShardEntry(file, receipt.records, receipt.bytes, receipt.crc32c))
        self.records += receipt.records
        self.key_digest = add_digests([self.key_digest, int(receipt.key_digest, 16)])
        self.handled_digest = add_digests([self.handled_digest, int(receipt.handled_digest, 16)])
        self.fixups.update(receipt.fixups)
        self.notes.update(receipt.notes)
        self.totals.update(receipt.totals)
        self.classes.update(receipt.classes)
        for column, sums in receipt.columns.items():
            self.columns[column].add(sums)
        self.rejected += receipt.rejected


def parse_receipt(data: bytes) -> Receipt | None:
    """The receipt; None if it is damaged, so that its shard is written again."""
    try:
        return read_sealed(_FILE, data, Receipt)
    except ConversionError:
        return None


def read_receipts(plan: SplitPlan) -> Iterator[tuple[Receipt | None, Stat | None]]:
    """Yields the receipt of each shard, as receipts_of does, and the shard's Stat; None where
    missing."""
    shards = plan.job.output.list(plan.job.output_dir)
    for shard, receipt in enumerate(receipts_of(plan, plan.num_shards)):
        yield receipt, shards.get(plan.shard_file(shard))


def receipts_of(plan: SplitPlan, num_shards: int) -> Iterator[Receipt | None]:
    """Yields the receipt of each shard of the split, in order; None where it is missing or damaged.

    Makes one listing and reads ahead of the caller: in a bucket, one request after the other would
    take minutes."""
    job = plan.job
    listed = job.output.list(job.path("_shards"))
    files = [receipt_file(plan.split, shard, num_shards) for shard in range(num_shards)]
    stats = [listed.get(file.removeprefix("_shards/")) for file in files]
    contents = job.output.read_ranges(
        (job.path(file), 0, stat.bytes) for file, stat in zip(files, stats, strict=True) if stat
    )
    for shard, stat in enumerate(stats):
        receipt = parse_receipt(next(contents)) if stat else None
        intact = receipt and (receipt.split, receipt.shard) == (plan.split, shard)
        yield receipt if intact else None


def unfinished(plan: SplitPlan, shard: int, receipt: Receipt | None, stat: Stat | None) -> str:
    """The reason why a shard of the plan is not finished; "" if it is. stat: of its file, compared
    by size and, on gs://, by crc32c."""
    job = plan.job
    split = plan.split
    if receipt is None or (receipt.plan, receipt.split, receipt.shard) != (
        plan.digest,
        split,
        shard,
    ):
        return (
            f"the receipt of shard {shard} of {split!r} in {job.output_dir} is missing, damaged or "
            "another plan's. If a second conversion writes here, stop one of them. Then run the "
            "same command again."
        )
    if stat is None or not stat.agrees_with(receipt.stat):
        return (
            f"{job.path(plan.shard_file(shard))} {f'has {stat}' if stat else 'is missing'}; its "
            f"receipt states {receipt.stat}. Something else wrote there. Run the same command "
            "again."
        )
    return ""


def finished_shard(plan: SplitPlan, shard: int) -> Receipt | None:
    """The receipt of a shard if it is finished, else None."""
    job = plan.job
    storage = job.output
    path = job.path(receipt_file(plan.split, shard, plan.num_shards))
    receipt = parse_receipt(storage.read(path)) if storage.exists(path) else None
    path = job.path(plan.shard_file(shard))
    stat = storage.stat(path) if receipt and storage.exists(path) else None
    return None if unfinished(plan, shard, receipt, stat) else receipt


def finished_shards(plan: SplitPlan) -> Iterator[Receipt]:
    """Yields the receipts of finished shards that were written from the same raw files."""
    for shard, (receipt, stat) in enumerate(read_receipts(plan)):
        if (
            receipt
            and receipt.raw_checksum == plan.raw_checksum
            and not unfinished(plan, shard, receipt, stat)
        ):
            yield receipt


@dataclass(frozen=True)
class SourceSummary:
    """Totals of the scan of one source, or of a piece of one, which the runner passes to commit."""

    source: int  # its number in the job
    piece: Any
    records: int
    key_digest: int


@dataclass(frozen=True)
class Written:
    """A finished shard, as gather announces it to commit. Its receipt, which has the same crc32c,
    states its content."""

    split: str
    shard: int
    crc32c: int
    records: int
    reused: bool  # finished by an earlier run

    @staticmethod
    def of(receipt: Receipt, reused: bool) -> "Written":
        """The announcement of a receipt."""
        return Written(receipt.split, receipt.shard, receipt.crc32c, receipt.records, reused)


def check_scanned(plan: SplitPlan, summaries: Sequence[SourceSummary]) -> None:
    """Raises ConversionError naming each source that the runner lost or scanned twice.

    Runs before the claim, so that no run claims the split for a wrong plan."""
    job = plan.job
    scans = itertools.chain.from_iterable(job.scans)
    expected = {each for each in scans if job.sources[each[0]].split == plan.split}
    arrived = [(summary.source, summary.piece) for summary in summaries]
    problems = _miscounted("input", arrived, expected, lambda each: job.sources[each[0]].name)
    scanned = sum(summary.records for summary in summaries)
    keys = add_digests(summary.key_digest for summary in summaries)
    if not problems and (scanned, keys) != (plan.total.records, plan.total.key_digest):
        problems.append(
            f"{scanned} records scanned, {plan.total.records} planned, or not the same ones"
        )
    _refuse_lost(plan.split, problems)
    check_expected(job, plan.split, scanned)


def check_expected(job: ConversionJob, split: str, scanned: int) -> None:
    """Raises ConversionError if the raw data does not have the expected number of records."""
    expected = job.expected.get(split)
    if expected is not None and scanned != expected:
        raise ConversionError(
            f"split {split!r} has {scanned:,} records in the raw data; the full set has "
            f"{expected:,}. Files are missing, or do not belong there. Copy it again, or leave out "
            "the option that requires the full set."
        )


@contextlib.contextmanager
def distrusting_receipts(plans: Sequence[SplitPlan]) -> Iterator[None]:
    """If data was lost, removes the receipts of each split whose receipts do not add up.

    The receipt of a shard that lost rows looks like any other, so later runs would consider that
    shard finished."""
    try:
        yield
    except LostDataError:
        for plan in plans:
            digests = {
                receipt.shard: int(receipt.handled_digest, 16)
                for receipt in receipts_of(plan, plan.num_shards)
                if receipt and receipt.plan == plan.digest
            }
            lost = add_digests(digests.values()) != plan.total.key_digest
            for shard in digests if lost else ():
                file = receipt_file(plan.split, shard, plan.num_shards)
                with contextlib.suppress(StorageError):  # some buckets forbid deletion
                    plan.job.output.delete(plan.job.path(file))
        raise


def _refuse_lost(split: str, problems: Sequence[str]) -> None:
    if problems:
        more = f"; and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise LostDataError(
            f"split {split!r}: the runner lost or repeated data: {'; '.join(problems[:10])}{more}. "
            "No manifest was written. Run the same command again; if it happens again, choose "
            "another --runner."
        )


def _miscounted(
    what: str, arrived: Iterable[Any], expected: Collection[Any], name: Callable[[Any], str]
) -> list[str]:
    counts = Counter(arrived)
    wrong = (each for each in {*expected, *counts} if counts[each] != (each in expected))
    return [
        f"{what} {name(each) if each in expected else each} arrived {counts[each]} times "
        f"instead of {int(each in expected)}"
        for each in sorted(wrong, key=repr)
    ]


def prove(plan: SplitPlan, written: Sequence[Written], ledger: Ledger) -> Iterator[np.ndarray]:
    """Adds each shard of a split to its ledger, which then has every planned record. Yields the
    index rows of one shard at a time, because those of all shards would not fit into memory.

    written: in the order of shards. Raises LostDataError, possibly after the last shard, if shards
    or records were lost or repeated; ConversionError unless each shard has a receipt of this plan
    and the bytes that it states."""
    arrived = [each.shard for each in written]
    _refuse_lost(plan.split, _miscounted("shard", arrived, range(plan.num_shards), str))
    planned = plan.total
    for each, (stored, stat) in zip(written, read_receipts(plan), strict=True):
        receipt = stored if stored and stored.crc32c == each.crc32c else None
        problem = unfinished(plan, each.shard, receipt, stat)
        if problem or receipt is None:
            raise ConversionError(problem)
        ledger.add(plan.shard_file(each.shard), receipt)
        yield receipt.index_rows()
    problems = []
    rejected = len(ledger.rejected)
    if ledger.records + rejected != planned.records:
        problems.append(
            f"{planned.records} records scanned, {ledger.records} written, {rejected} rejected"
        )
    # If one record is lost and another repeated, the counts are right, so key digests are compared
    # as well.
    elif ledger.handled_digest != planned.key_digest:
        problems.append("as many records arrived as were scanned, but not the same ones")
    _refuse_lost(plan.split, problems)
