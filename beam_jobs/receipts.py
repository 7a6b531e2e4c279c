"""Receipts: the content of each finished shard, in a small JSON file written after the shard.

A receipt has a checksum; if it is damaged, its shard counts as unfinished."""

import base64
import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from beam_jobs.column_sums import ColumnSums
from beam_jobs.conversion_job import ConversionJob
from beam_jobs.packed_files import scanned
from beam_jobs.raw_rows import RAW_ROW, differing, name_of, raw_rows
from beam_jobs.references import Reference, References, escaped
from beam_jobs.shard_plan import SplitPlan
from pipeline.errors import ConversionError
from pipeline.shards.naming import receipt_file
from pipeline.shards.sidecars import LedgerLine
from pipeline.shards.typed_json import Count, JsonFile, Number, read_sealed, sealed_line
from pipeline.storage.storage import Stat, Storage, join, write_file

_FILE = JsonFile("a receipt", ConversionError, "Its shard is written again.")


class Rejected(LedgerLine):
    """A rejected record."""

    @staticmethod
    def of(ref: Reference, stage: str, error: str) -> "Rejected":
        """Names are escaped where they are not UTF-8, because the ledger is."""
        return Rejected(escaped(ref.key), escaped(ref.file.uri), ref.offset, stage, error)


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

    def index_rows(self) -> np.ndarray:
        """uint32 [records, 2]."""
        return np.frombuffer(base64.b64decode(self.index), "<u4").reshape(-1, 2)

    def raw_rows(self) -> np.ndarray:
        """RAW_ROW [rows]."""
        return np.frombuffer(base64.b64decode(self.raw), RAW_ROW)

    def write(self, storage: Storage, output_dir: str) -> None:
        """Publishes the receipt. The shard must exist already."""
        path = join(output_dir, receipt_file(self.split, self.shard, self.num_shards))
        write_file(storage, path, sealed_line(dataclasses.asdict(self)))

    @property
    def stat(self) -> Stat:
        """The size and checksum that the storage must report for the shard."""
        return Stat(self.bytes, self.crc32c)


@dataclass(kw_only=True)
class Findings:
    """What was found in records: those of a shard that is being written, or those of all shards of a split."""

    key_digest: int = 0  # of the records written
    fixups: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)
    columns: dict[str, ColumnSums] = field(default_factory=lambda: defaultdict(ColumnSums))
    rejected: list[Rejected] = field(default_factory=list)


def parse_receipt(data: bytes) -> Receipt | None:
    """None if the receipt is damaged: its shard is then written again."""
    try:
        return read_sealed(_FILE, data, Receipt)
    except ConversionError:
        return None


def read_receipts(storage: Storage, plan: SplitPlan) -> Iterator[tuple[Receipt | None, Stat | None]]:
    """For each shard in order: its receipt as in receipts_of, and the Stat of the shard; None where missing."""
    shards = storage.list(plan.job.output_dir)
    for shard, receipt in enumerate(receipts_of(storage, plan.job.output_dir, plan.split, plan.num_shards)):
        yield receipt, shards.get(plan.shard_file(shard))


def receipts_of(storage: Storage, output_dir: str, split: str, num_shards: int) -> Iterator[Receipt | None]:
    """The receipt of each shard, in order; None where it is missing or damaged.

    Makes one listing and reads ahead of the caller: on gs://, one request after the other would take minutes."""
    listed = storage.list(join(output_dir, "_shards"))
    files = [receipt_file(split, shard, num_shards) for shard in range(num_shards)]
    stats = [listed.get(file.removeprefix("_shards/")) for file in files]
    found = ((join(output_dir, file), 0, stat.bytes) for file, stat in zip(files, stats, strict=True) if stat)
    contents = storage.read_ranges(found)
    for shard, stat in enumerate(stats):
        receipt = parse_receipt(next(contents)) if stat else None
        intact = receipt and (receipt.split, receipt.shard) == (split, shard)
        yield receipt if intact else None


def finished_shards(storage: Storage, plan: SplitPlan) -> Iterator[Receipt]:
    """Receipts of finished shards of the same plan and raw files, judged by size (and crc32c on gs://). See write."""
    for receipt, there in read_receipts(storage, plan):
        is_of_plan = receipt and (receipt.plan, receipt.raw_checksum) == (plan.digest, plan.raw_checksum)
        if receipt and is_of_plan and there and there.agrees_with(receipt.stat):
            yield receipt


def first_change(storage: Storage, plan: SplitPlan, old_digest: str, old_num_shards: int, old_seed: int) -> str:
    """Describes the first change to rows of an old plan's finished shards; "" if they match the current raw data.

    It scans the raw data again, in one process, so it runs only when a claim shows that something changed.
    If the plan differs, also reports a new file, or how many records are gone."""
    known, is_complete = _known(storage, plan, old_digest, old_num_shards)
    if not len(known):
        return ""
    new, seen = "", 0
    scans = (scanned(plan.job, source) for source in plan.job.sources_of(plan.split))
    for refs in itertools.chain.from_iterable(scans):
        rows = raw_rows(old_seed, plan.split, refs)
        differ, unknown = differing(known, rows)
        if differ.any():
            return f"{_file(plan.job, refs, differ)} has changed"
        if unknown.any():
            new = new or f"{_file(plan.job, refs, unknown)} is new"
        seen += int((~unknown).sum())
    if plan.digest == old_digest or not is_complete:
        return ""
    gone = len(known) - seen
    change = new or (f"{gone:,} of {len(known):,} records {'is' if gone == 1 else 'are'} gone" if gone > 0 else "")
    if not change or getattr(plan.job.converter, "held_out", None) is None:
        return change
    return f"{change} {'in' if new else 'from'} this split, as with another --validation-fraction"


def _known(storage: Storage, plan: SplitPlan, digest: str, num_shards: int) -> tuple[np.ndarray, bool]:
    """The rows of all finished shards of the old plan, sorted by rank, and whether every shard is finished."""
    receipts = receipts_of(storage, plan.job.output_dir, plan.split, num_shards)
    rows = [receipt.raw_rows() for receipt in receipts if receipt and receipt.plan == digest]
    return np.sort(np.concatenate([np.zeros(0, RAW_ROW), *rows]), order="rank"), len(rows) == num_shards


def _file(job: ConversionJob, refs: References, mask: np.ndarray) -> str:
    return name_of(job, refs.files[refs.file[np.flatnonzero(mask)[0]]].uri)
