"""Receipts: what each finished shard holds, in a small JSON file that is written after the shard.

A receipt has a checksum of itself; a damaged one means an unfinished shard."""

import base64
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from beam_jobs.plan import SplitPlan
from beam_jobs.raw_rows import RAW_ROW
from beam_jobs.references import Reference
from pipeline.shards.errors import ConversionError
from pipeline.shards.naming import receipt_file
from pipeline.shards.sealed import sealed_line, unsealed
from pipeline.shards.storage import Stat, Storage, join
from pipeline.shards.typed_json import Count, JsonFile, Number

__all__ = ["Receipt", "Rejected", "escaped", "finished_shard", "finished_shards", "parse_receipt", "read_receipts"]

_FILE = JsonFile("a receipt", ConversionError, "Its shard is written anew.")


@dataclass(frozen=True)
class Rejected:
    """One line of the ledger."""

    key: str
    uri: str
    offset: Count
    stage: str  # scan | convert
    error: str

    @staticmethod
    def of(ref: Reference, stage: str, error: str) -> "Rejected":
        """Odd bytes in names are written as escapes: the ledger is UTF-8."""
        return Rejected(escaped(ref.key), escaped(ref.file.uri), ref.offset, stage, error)


def escaped(name: str) -> str:
    """A name in raw data, as it stands in receipts and ledger."""
    return name.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True)
class Receipt:
    """What one finished shard holds."""

    plan: str  # digest
    split: str
    shard: Count
    num_shards: Number
    records: Count
    bytes: Count
    crc32c: Count
    key_digest: str  # of the records written
    handled_digest: str  # of the keys of all rows that arrived, rejected ones too
    index: str  # base64 of little-endian uint32 [records, 2]: length, crc32c
    fixups: Mapping[str, Count]
    rejected: tuple[Rejected, ...]
    largest_bytes: Count = 0  # of the payload of the largest record
    largest_key: str = ""
    notes: Mapping[str, Count] = field(default_factory=dict)
    raw: str = ""  # base64 of RAW_ROW [rows that arrived], in order
    raw_checksum: str | None = None  # of all raw files of the split at that time: see SplitPlan
    has_checksum: bool = field(default=True, compare=False)  # version 0.1 wrote none; not a field of the file

    def index_rows(self) -> np.ndarray:
        """uint32 [records, 2]."""
        return np.frombuffer(base64.b64decode(self.index), "<u4").reshape(-1, 2)

    def raw_rows(self) -> np.ndarray:
        """RAW_ROW [rows]; none of version 0.1."""
        return np.frombuffer(base64.b64decode(self.raw), RAW_ROW)

    def write(self, storage: Storage, output_dir: str) -> None:
        """Publishes the receipt; the shard must be there already."""
        fields = dataclasses.asdict(self)
        del fields["has_checksum"]
        with storage.publish(join(output_dir, receipt_file(self.split, self.shard, self.num_shards))) as sink:
            sink.write(sealed_line(fields))

    @property
    def stat(self) -> Stat:
        """What the storage must say of the shard."""
        return Stat(self.bytes, self.crc32c)


def parse_receipt(data: bytes) -> Receipt | None:
    """None if it is damaged: the shard is then written anew."""
    try:
        fields, has_checksum = unsealed(_FILE, data)
        receipt = _FILE.typed({**fields, "has_checksum": has_checksum}, Receipt)
        return receipt if has_checksum or not receipt.raw else None
    except ConversionError:
        return None


def read_receipts(storage: Storage, plan: SplitPlan) -> Iterator[tuple[Receipt | None, Stat | None]]:
    """For each shard in order: its receipt, and what is there of the shard; None where there is nothing (intact).

    A receipt without a checksum is not among them: its shard has to be read first (see resume).

    One listing of each directory, and the receipts read ahead of the caller: on gs:// requests for each shard alone,
    one after the other, would take minutes."""
    output_dir, split, num_shards = plan.job.output_dir, plan.split, plan.num_shards
    shards, receipts = storage.list(output_dir), storage.list(join(output_dir, "_shards"))
    files = {shard: receipt_file(split, shard, num_shards) for shard in range(num_shards)}
    sizes = {
        s: receipts[name].bytes for s, file in files.items() if (name := file.removeprefix("_shards/")) in receipts
    }
    contents = storage.read_ranges((join(output_dir, files[shard]), 0, size) for shard, size in sizes.items())
    for shard in range(num_shards):
        receipt = parse_receipt(next(contents)) if shard in sizes else None
        intact = receipt and receipt.has_checksum and (receipt.split, receipt.shard) == (split, shard)
        yield receipt if intact else None, shards.get(plan.shard_file(shard))


def finished_shards(storage: Storage, plan: SplitPlan) -> Iterator[Receipt]:
    """The receipts of the shards that an earlier run of the same plan finished, going by size (and crc32c on gs://).

    Only where no raw file has changed since: else the rows of each shard have to be compared (see resume)."""
    for receipt, there in read_receipts(storage, plan):
        is_of_plan = receipt and (receipt.plan, receipt.raw_checksum) == (plan.digest, plan.raw_checksum)
        if receipt and is_of_plan and there and there.agrees_with(receipt.stat):
            yield receipt


def finished_shard(storage: Storage, plan: SplitPlan, shard: int) -> Receipt | None:
    """The receipt of one shard that is finished by now, going by size (and crc32c on gs://); None if it is not."""
    output_dir = plan.job.output_dir
    path = join(output_dir, receipt_file(plan.split, shard, plan.num_shards))
    receipt = parse_receipt(storage.read(path)) if storage.exists(path) else None
    if receipt is None or (receipt.plan, receipt.split, receipt.shard) != (plan.digest, plan.split, shard):
        return None
    path = join(output_dir, plan.shard_file(shard))
    there = storage.exists(path) and storage.stat(path).agrees_with(receipt.stat)
    return receipt if there else None
