"""Receipts and verdicts: small JSON files by which the steps of a conversion trust each other.

A receipt says what one finished shard holds; it is written after the shard. A verdict says how one run ended, for its
launcher, which removes it; one that nobody asks for goes with a later commit."""

import base64
import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from beam_jobs.job import Job
from beam_jobs.plan import SplitPlan
from pipeline.shards.errors import InfeedError, StorageError
from pipeline.shards.naming import receipt_file, verdict_file
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import Stat, Storage, file_crc32c, join

__all__ = [
    "Receipt",
    "Rejected",
    "Verdict",
    "finished_shard",
    "finished_shards",
    "read_receipts",
    "sweep_verdicts",
    "verdict_on_error",
]

_KEPT_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class Rejected:
    """One line of the ledger."""

    key: str
    uri: str
    offset: int
    stage: str  # scan | convert
    error: str


@dataclass(frozen=True)
class Receipt:
    """What one finished shard holds."""

    plan: str  # digest
    split: str
    shard: int
    num_shards: int
    records: int
    bytes: int
    crc32c: int
    key_digest: str  # of the records written
    handled_digest: str  # of the keys of all rows that arrived, rejected ones too
    index: str  # base64 of little-endian uint32 [records, 2]: length, crc32c
    fixups: Mapping[str, int]
    rejected: tuple[Rejected, ...]
    largest_bytes: int = 0  # of the payload of the largest record
    largest_key: str = ""
    notes: Mapping[str, int] = field(default_factory=dict)

    def index_rows(self) -> np.ndarray:
        """uint32 [records, 2]."""
        return np.frombuffer(base64.b64decode(self.index), "<u4").reshape(-1, 2)

    def write(self, storage: Storage, output_dir: str) -> None:
        """Publishes the receipt; the shard must be there already."""
        _write_json(storage, join(output_dir, receipt_file(self.split, self.shard, self.num_shards)), self)

    @property
    def stat(self) -> Stat:
        """What the storage must say of the shard."""
        return Stat(self.bytes, self.crc32c)


def _decoded(data: bytes) -> Receipt | None:
    """None if it is not readable: the shard is then written anew."""
    try:
        fields = json.loads(data)
        return Receipt(**{**fields, "rejected": tuple(Rejected(**r) for r in fields["rejected"])})
    except (ValueError, KeyError, TypeError):
        return None


def read_receipts(storage: Storage, plan: SplitPlan) -> Iterator[tuple[Receipt | None, Stat | None]]:
    """For each shard in order: its receipt, and what is there of the shard; None where there is nothing (readable).

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
        receipt = _decoded(next(contents)) if shard in sizes else None
        yield receipt, shards.get(plan.shard_file(shard))


def finished_shards(storage: Storage, plan: SplitPlan) -> Iterator[Receipt]:
    """The receipts of the shards that an earlier run of the same plan finished, going by size (and crc32c on gs://)."""
    for receipt, there in read_receipts(storage, plan):
        if receipt and receipt.plan == plan.digest and there and there.agrees_with(receipt.stat):
            yield receipt


def finished_shard(storage: Storage, plan: SplitPlan, shard: int) -> Receipt | None:
    """The receipt of one shard that is finished by now; None if it has to be written.

    It counts as finished when it has its size, with --verify_existing only when all its bytes have their checksum."""
    job = plan.job
    path = join(job.output_dir, receipt_file(plan.split, shard, plan.num_shards))
    receipt = _decoded(storage.read(path)) if storage.exists(path) else None
    if receipt is None or receipt.plan != plan.digest:
        return None
    path = join(job.output_dir, plan.shard_file(shard))
    if not storage.exists(path) or not storage.stat(path).agrees_with(receipt.stat):
        return None
    intact = not job.verify_existing or file_crc32c(storage, path) == receipt.crc32c
    return receipt if intact else None


@dataclass(frozen=True)
class Verdict:
    """How one split of one run ended."""

    run_id: str
    split: str
    ok: bool
    message: str  # for people: totals if ok, else all that went wrong
    rejected: int = 0
    warnings: tuple[str, ...] = ()
    at: float = field(default_factory=time.time, compare=False)  # Unix seconds

    def write(self, storage: Storage, output_dir: str) -> None:
        """Publishes the verdict."""
        _write_json(storage, join(output_dir, verdict_file(self.split, self.run_id)), self)

    @staticmethod
    def fetch(storage: Storage, output_dir: str, split: str, run_id: str) -> "Verdict | None":
        """The verdict of this run, which is then gone; None if it left none.

        Never that of another run: it may be of another plan, which says nothing of what this one was to write."""
        path = join(output_dir, verdict_file(split, run_id))
        if not storage.exists(path):
            return None
        fields = json.loads(storage.read(path))
        verdict = Verdict(**{**fields, "warnings": tuple(fields["warnings"])})
        with contextlib.suppress(InfeedError):  # one that may not be deleted is left, and no reason to fail
            storage.delete(path)
        return verdict


def sweep_verdicts(storage: Storage, output_dir: str, split: str, now: float) -> None:
    """Removes the verdicts that nobody fetched for a day: their launchers were killed, or did not wait."""
    for name in storage.list(join(output_dir, "_shards")):
        if fnmatchcase(f"_shards/{name}", verdict_file(split, "*")):
            path = join(output_dir, f"_shards/{name}")
            with contextlib.suppress(StorageError):  # its launcher was first
                if json.loads(storage.read(path))["at"] < now - _KEPT_SECONDS:
                    storage.delete(path)


@contextlib.contextmanager
def verdict_on_error(job: Job, split: str) -> Iterator[None]:
    """Leaves the message of an InfeedError as the split's verdict, because runners bury it in tracebacks."""
    try:
        yield
    except InfeedError as e:
        with contextlib.suppress(InfeedError):  # a full disk takes no verdict either; the first error counts
            Verdict(job.run_id, split, ok=False, message=str(e)).write(open_storage(job.output_dir), job.output_dir)
        raise


def _write_json(storage: Storage, path: str, value: Any) -> None:
    with storage.publish(path) as sink:
        sink.write((json.dumps(dataclasses.asdict(value)) + "\n").encode())
