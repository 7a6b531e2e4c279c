"""Gather: writes one shard from its rows, in one pass over ranged reads, with one record in memory,
never a shard.

Keeps a shard that an earlier run finished; compares bytes where sizes and receipts are not enough.
The same plan produces the same bytes on any worker, so retries and workers that were presumed dead
do no harm."""

import base64
import dataclasses
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import google_crc32c
import numpy as np

from beam_jobs.converter import Packer, Reject
from beam_jobs.rows.column_sums import RecordSums
from beam_jobs.rows.packed_rows import PackedRecords, PackedRows, joined
from beam_jobs.rows.references import Reference, References, concat, encoded, in_order
from beam_jobs.split.claims import read_claim
from beam_jobs.split.ledger import Ledger, Receipt, Rejected, check_rejected, finished_shard
from beam_jobs.split.plan import Rows, SplitPlan
from beam_jobs.split.shard_rows import PackedShard, RawShard, name_of, recorded_rows
from pipeline.errors import RawDataError
from pipeline.shards.copies import content_digest, content_digests
from pipeline.shards.example import example_pieces
from pipeline.shards.frames import crc32c, crc32c_of, frame_ends, frames
from pipeline.shards.naming import add_digests, key_digest
from pipeline.storage.storage import Sink, pieces_of

_PIECE_BYTES = 8 * 1024**2


def write_shard(plan: SplitPlan, shard: int, rows: Sequence[Rows]) -> tuple[Receipt, bool]:
    """Publishes one shard and its receipt, which lists bad records, or keeps a finished one.
    Returns the receipt, and whether the shard was kept.

    Raises StorageError, RawDataError if raw data cannot be read."""
    job = plan.job
    all_rows = rows_of_shard(plan, rows)
    if receipt := _finished(plan, shard, all_rows):
        return receipt, True
    check_rejected(job, plan.split, all_rows.num_rejected, all_rows.rejected())
    with job.output.publish(job.path(plan.shard_file(shard))) as sink:
        writing = _Writing(plan, sink)
        writing.ledger.rejected += all_rows.rejected()
        if isinstance(all_rows, PackedShard):
            for records in all_rows.records():
                writing.copy(records)
        else:  # the last read is before the shard becomes visible
            for ref, data in all_rows.read():
                writing.convert(ref, data)
    receipt = writing.receipt(shard, all_rows)
    receipt.write(job)
    return receipt, False


def rows_of_shard(plan: SplitPlan, rows: Sequence[Rows]) -> RawShard | PackedShard:
    """All rows of a shard, from all buckets."""
    if isinstance(plan.job.converter, Packer):
        packed = (part for part in rows if isinstance(part, PackedRows))
        return PackedShard(plan, joined(sorted(packed, key=lambda part: part.rows["rank"][0])))
    refs = concat([part for part in rows if isinstance(part, References)])
    return RawShard(plan, in_order(plan.job.seed, plan.split, refs))


class _Writing:
    """A shard being written, with everything for its receipt: 20 bytes per record, because a shard
    may have a million."""

    def __init__(self, plan: SplitPlan, sink: Sink) -> None:
        self.plan = plan
        self.sink = sink
        self.ledger = Ledger()
        self.crc = google_crc32c.Checksum()
        self.num_bytes = 0
        self.index = array("I")  # length, crc32c of each record
        self.raw_crcs = array("I")
        self.contents = array("Q")
        self.sums = RecordSums(plan.job.converter)
        self.labels = plan.job.converter.labels

    def convert(self, ref: Reference, data: bytes) -> None:
        """Appends one framed record, or one rejected record."""
        job = self.plan.job
        ledger = self.ledger
        assert not isinstance(job.converter, Packer)
        self.raw_crcs.append(crc32c(data))
        try:
            converted = job.converter.convert(ref, data)
        except Reject as e:
            ledger.rejected.append(Rejected.of(ref, "convert", str(e)))
            check_rejected(job, self.plan.split, len(ledger.rejected), ledger.rejected)
            return
        features = converted.features
        pieces = (
            (features,)
            if isinstance(features, bytes)
            else example_pieces(job.converter.schema, features)
        )
        length, crc = sum(map(len, pieces)), crc32c_of(pieces)
        header, footer = frame_ends(length, crc)
        self._append([header, *pieces, footer])
        self.index.extend((length, crc))
        if self.labels and not isinstance(features, bytes):  # else RecordSums counts them
            label: Any = features.get(self.labels.key, ())
            ledger.classes.update(map(str, [label] if isinstance(label, int) else label))
        ledger.key_digest = add_digests((ledger.key_digest, key_digest([encoded(ref.key)])))
        ledger.fixups.update(converted.fixups)
        ledger.notes.update(converted.notes)
        ledger.totals.update(converted.totals)
        self.sums.add(map(b"".join, [pieces]))
        self.contents.append(content_digest(converted.content or data))

    def copy(self, records: PackedRecords) -> None:
        """Appends records that a packer made."""
        converter = self.plan.job.converter
        assert isinstance(converter, Packer)
        payloads, trailers = records.payloads, records.trailers
        crcs = trailers["crc32c"]
        self._append([frames(payloads, crcs)])
        lengths = np.fromiter(map(len, payloads), np.uint32, len(payloads))
        self.index.frombytes(np.stack([lengths, crcs], 1).tobytes())
        self.raw_crcs.frombytes(crcs.tobytes())
        self.contents.frombytes(content_digests(payloads, crcs).tobytes())
        notes, totals = converter.tally(
            {name: trailers[name] for name in trailers.dtype.names or ()}
        )
        ledger = self.ledger
        ledger.notes.update(notes)
        ledger.totals.update(totals)
        ledger.key_digest = add_digests((ledger.key_digest, key_digest(records.keys)))
        self.sums.add(payloads)
        self.sums.columns()  # so that few records are in memory

    def _append(self, pieces: Sequence[bytes]) -> None:
        """Writes framed records, in pieces, because joining them would copy them."""
        for piece in pieces:
            self.sink.write(piece)
            self.crc.update(piece)
            self.num_bytes += len(piece)

    def receipt(self, shard: int, all_rows: RawShard | PackedShard) -> Receipt:
        """The receipt of what was written."""
        plan = self.plan
        ledger = self.ledger
        rows = all_rows.raw_rows()
        rows["crc32c"][all_rows.good] = self.raw_crcs
        return Receipt(
            plan=plan.digest,
            split=plan.split,
            shard=shard,
            num_shards=plan.num_shards,
            records=len(self.index) // 2,
            bytes=self.num_bytes,
            crc32c=int.from_bytes(self.crc.digest(), "big"),
            key_digest=f"{ledger.key_digest:032x}",
            handled_digest=f"{all_rows.handled:032x}",
            index=base64.b64encode(np.array(self.index, "<u4").tobytes()).decode(),
            fixups=dict(sorted(ledger.fixups.items())),
            rejected=tuple(ledger.rejected),
            notes=dict(sorted(ledger.notes.items())),
            totals=dict(sorted(ledger.totals.items())),
            columns=self.sums.columns(),
            classes=dict(sorted(ledger.classes.items())),
            raw=base64.b64encode(rows.tobytes()).decode(),
            raw_checksum=plan.raw_checksum,
            content=base64.b64encode(np.array(self.contents, "<u8").tobytes()).decode(),
        )


def _finished(plan: SplitPlan, shard: int, all_rows: RawShard | PackedShard) -> Receipt | None:
    """The receipt of a finished shard; None if the shard has to be written.

    With --verify-existing, reads all bytes of the shard and of its raw data first. Raises
    RawDataError if the shard was written from other raw data."""
    job = plan.job
    by_bytes = job.verify_existing
    receipt = finished_shard(plan, shard)
    if receipt is None or (by_bytes and not _holds(plan, receipt, all_rows)):
        return None
    if not by_bytes and receipt.raw_checksum == plan.raw_checksum:
        return receipt
    before = recorded_rows(receipt)
    rows = all_rows.raw_rows()
    if by_bytes:
        rows["crc32c"][all_rows.good] = [*all_rows.crcs()]
    columns = ["rank", "crc32c" if by_bytes else "version"]
    changed = np.arange(len(rows))
    if len(before) == len(rows):
        changed = np.flatnonzero(before[columns] != rows[columns])
    if len(changed):
        # A shard of other raw data than the claim's is written again: its run was stopped.
        if (
            by_bytes
            and not job.overwrite
            and read_claim(job, plan.split).raw_checksum == receipt.raw_checksum
        ):
            raise RawDataError(
                f"{job.output_dir} holds split {plan.split!r} of other raw data: "
                f"{name_of(job, all_rows.rows, changed[0])} has other bytes than when "
                f"{plan.shard_file(shard)} was written. Restore it, give another directory, or "
                "replace the shards with --overwrite --verify-existing."
            )
        return None
    raw = base64.b64encode((rows if by_bytes else before).tobytes()).decode()
    renewed = dataclasses.replace(receipt, raw=raw, raw_checksum=plan.raw_checksum)
    if renewed != receipt:
        renewed.write(job)
    return renewed


def _holds(plan: SplitPlan, receipt: Receipt, all_rows: RawShard | PackedShard) -> bool:
    """Whether the shard has the bytes that its receipt states, and the receipt is of these rows.

    The receipt has a checksum, so its statements about written records need no proof."""
    path = plan.job.path(plan.shard_file(receipt.shard))
    checksum = google_crc32c.Checksum()
    for _ in pieces_of(plan.job.output, path, receipt.bytes, _PIECE_BYTES, checksum):
        pass  # each piece goes into the checksum
    return (
        int.from_bytes(checksum.digest(), "big") == receipt.crc32c
        and receipt.handled_digest == f"{all_rows.handled:032x}"
        and _anywhere(line for line in receipt.rejected if line.stage == "scan")
        == _anywhere(all_rows.rejected())
    )


def _anywhere(lines: Iterable[Rejected]) -> list[Rejected]:
    """The lines without their locations, as the raw data may have been moved."""
    return [dataclasses.replace(line, uri="") for line in lines]
