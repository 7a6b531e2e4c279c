"""Gather: writes one shard from its rows, in one pass over ranged reads, with one record in memory,
never a shard.

Keeps a shard that an earlier run finished, and compares bytes where sizes and receipts are not
enough. The same plan gives the same bytes on any worker, so retries and workers that were presumed
dead do no harm."""

import base64
import dataclasses
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import google_crc32c
import numpy as np

from beam_jobs.claims import Claim, claim_path, read_claim
from beam_jobs.column_sums import RecordSums
from beam_jobs.converter import Reject
from beam_jobs.ledger import Ledger, Receipt, Rejected, finished_shard
from beam_jobs.plan import SplitPlan
from beam_jobs.raw_rows import (
    check_unchanged,
    name_of,
    raw_crcs,
    raw_rows,
    read_rows,
    recorded_rows,
)
from beam_jobs.references import Reference, References, in_order
from pipeline.errors import RawDataError
from pipeline.shards.example import example_pieces
from pipeline.shards.frames import FRAME_BYTES, crc32c, crc32c_of, frame_ends
from pipeline.shards.naming import add_digests, key_digest
from pipeline.storage.storage import Sink, Storage, join, pieces_of

_PIECE_BYTES = 8 * 1024**2


def write_shard(
    raw: Storage, output: Storage, plan: SplitPlan, shard: int, refs: References
) -> tuple[Receipt, bool]:
    """Publishes one shard and its receipt, which lists bad records; or keeps a finished one.
    Returns which it did.

    Raises StorageError, RawDataError if raw data cannot be read."""
    output_dir = plan.job.output_dir
    refs = in_order(plan.job.seed, plan.split, refs)
    if kept := _kept_shard(raw, output, plan, shard, refs):
        return kept, True
    good = refs.take(refs.good)
    bad = refs.take(~refs.good)
    with output.publish(join(output_dir, plan.shard_file(shard))) as sink:
        writing = _Writing(plan, sink)
        for ref in bad:
            writing.ledger.rejected.append(Rejected.of(ref, "scan", ref.error))
        for ref, data in read_rows(raw, good):
            writing.convert(ref, data)
        # after the last read, before the shard becomes visible
        check_unchanged(plan.job, raw, good)
    receipt = writing.receipt(shard, refs)
    receipt.write(output, output_dir)
    return receipt, False


@dataclass
class _Writing:
    """A shard being written, with everything for its receipt: 12 bytes per record, as a shard may
    have a million."""

    plan: SplitPlan
    sink: Sink
    ledger: Ledger = field(default_factory=Ledger)
    crc: google_crc32c.Checksum = field(default_factory=google_crc32c.Checksum)
    num_bytes: int = 0
    index: "array[int]" = field(default_factory=lambda: array("I"))  # length, crc32c of each record
    raw_crcs: "array[int]" = field(default_factory=lambda: array("I"))

    def __post_init__(self) -> None:
        self.sums = RecordSums(self.plan.job.converter)

    def convert(self, ref: Reference, data: bytes) -> None:
        """Appends one framed record, or one rejected record."""
        converter = self.plan.job.converter
        self.raw_crcs.append(crc32c(data))
        try:
            converted = converter.convert(ref, data)
        except Reject as e:
            self.ledger.rejected.append(Rejected.of(ref, "convert", str(e)))
            return
        features = converted.features
        pieces = (
            (features,)
            if isinstance(features, bytes)
            else example_pieces(converter.schema, features)
        )
        self._append(pieces)
        key = ref.key.encode("utf-8", "surrogateescape")
        ledger = self.ledger
        ledger.key_digest = add_digests((ledger.key_digest, key_digest([key])))
        ledger.fixups.update(converted.fixups)
        ledger.notes.update(converted.notes)
        ledger.totals.update(converted.totals)
        self.sums.add(pieces)

    def _append(self, payload: Sequence[bytes]) -> None:
        """Writes a framed record. The payload is in pieces, because joining them would copy it."""
        length = sum(map(len, payload))
        crc = crc32c_of(payload)
        header, footer = frame_ends(length, crc)
        for piece in (header, *payload, footer):
            self.sink.write(piece)
            self.crc.update(piece)
        self.num_bytes += length + FRAME_BYTES
        self.index.extend((length, crc))

    def receipt(self, shard: int, refs: References) -> Receipt:
        """The receipt of what was written. refs: all rows, in order."""
        rows = raw_rows(self.plan.job.seed, self.plan.split, refs)
        rows["crc32c"][refs.good] = self.raw_crcs
        return Receipt(
            plan=self.plan.digest,
            split=self.plan.split,
            shard=shard,
            num_shards=self.plan.num_shards,
            records=len(self.index) // 2,
            bytes=self.num_bytes,
            crc32c=int.from_bytes(self.crc.digest(), "big"),
            key_digest=f"{self.ledger.key_digest:032x}",
            handled_digest=f"{key_digest(refs.key):032x}",
            index=base64.b64encode(np.array(self.index, "<u4").tobytes()).decode(),
            fixups=dict(sorted(self.ledger.fixups.items())),
            rejected=tuple(self.ledger.rejected),
            notes=dict(sorted(self.ledger.notes.items())),
            totals=dict(sorted(self.ledger.totals.items())),
            columns=self.sums.columns(),
            raw=base64.b64encode(rows.tobytes()).decode(),
            raw_checksum=self.plan.raw_checksum,
        )


def _kept_shard(
    raw: Storage, output: Storage, plan: SplitPlan, shard: int, refs: References
) -> Receipt | None:
    """The receipt of a finished shard; None if the shard has to be written. refs: its rows, in
    order.

    With --verify-existing, reads all bytes of the shard and of its raw data first. Raises
    RawDataError if the shard was written from other raw data."""
    job = plan.job
    receipt = finished_shard(output, plan, shard)
    if receipt is None:
        return None
    by_bytes = job.verify_existing
    if not by_bytes and receipt.raw_checksum == plan.raw_checksum:
        return receipt
    if by_bytes and not _holds(output, plan, receipt, refs):
        return None
    before = recorded_rows(receipt)
    rows = raw_rows(job.seed, plan.split, refs)
    if by_bytes:
        rows["crc32c"] = raw_crcs(job, raw, refs)
    column = "crc32c" if by_bytes else "version"
    if changed := _first_other(before[["rank", column]], rows[["rank", column]], refs):
        _refuse_other_bytes(output, plan, receipt, changed)
        return None
    encoded = base64.b64encode((rows if by_bytes else before).tobytes()).decode()
    renewed = dataclasses.replace(receipt, raw=encoded, raw_checksum=plan.raw_checksum)
    if renewed != receipt:
        renewed.write(output, job.output_dir)
    return renewed


def _first_other(before: np.ndarray, rows: np.ndarray, refs: References) -> Reference | None:
    """The first row that has changed."""
    if len(before) != len(rows):
        return next(iter(refs), None)
    return next(iter(refs.take(before != rows)), None)


def _refuse_other_bytes(
    output: Storage, plan: SplitPlan, receipt: Receipt, changed: Reference
) -> None:
    """Does nothing if shard and claim are of different raw data, as after a run that stopped at an
    older shard."""
    job = plan.job
    if (
        not job.verify_existing
        or job.overwrite
        or _claim(output, plan).raw_checksum != receipt.raw_checksum
    ):
        return
    raise RawDataError(
        f"{job.output_dir} holds split {plan.split!r} of other raw data: "
        f"{name_of(job, changed.file.uri)} has other bytes than when "
        f"{plan.shard_file(receipt.shard)} was written. Restore it, give another directory, or "
        "replace the shards with --overwrite --verify-existing."
    )


def _claim(storage: Storage, plan: SplitPlan) -> Claim:
    return read_claim(storage, claim_path(plan))


def _holds(storage: Storage, plan: SplitPlan, receipt: Receipt, refs: References) -> bool:
    """Whether the shard's bytes are those that its receipt states, and the receipt is of these
    rows.

    The receipt proves itself, so what it states of the records that were written needs no proof."""
    path = join(plan.job.output_dir, plan.shard_file(receipt.shard))
    checksum = google_crc32c.Checksum()
    for _ in pieces_of(storage, path, receipt.bytes, _PIECE_BYTES, checksum):
        pass  # each piece goes into the checksum
    return (
        int.from_bytes(checksum.digest(), "big") == receipt.crc32c
        and receipt.handled_digest == f"{key_digest(refs.key.tolist()):032x}"
        and [_anywhere(line) for line in receipt.rejected if line.stage == "scan"]
        == [_anywhere(Rejected.of(ref, "scan", ref.error)) for ref in refs.take(~refs.good)]
    )


def _anywhere(line: Rejected) -> Rejected:
    """The line without its location, as the raw data may have been moved."""
    return dataclasses.replace(line, uri="")
