"""Decides which finished shards a run keeps; compares bytes where sizes and receipts are not enough."""

import base64
import dataclasses

import google_crc32c
import numpy as np

from beam_jobs.claims import Claim, read_claim
from beam_jobs.raw_rows import name_of, raw_crcs, raw_rows
from beam_jobs.receipts import Receipt, Rejected, finished_shard
from beam_jobs.references import Reference, References, escaped
from beam_jobs.shard_plan import SplitPlan
from pipeline.errors import RawDataError
from pipeline.shards.frames import read_frames
from pipeline.shards.key_digest import key_digest
from pipeline.shards.naming import plan_file
from pipeline.storage.storage import Storage, join, pieces_of

__all__ = ["kept_shard"]

_PIECE_BYTES = 8 * 1024**2


def kept_shard(raw: Storage, output: Storage, plan: SplitPlan, shard: int, refs: References) -> Receipt | None:
    """The receipt of a finished shard; None if the shard has to be written. refs: its rows, in order.

    With --verify_existing, or if the receipt has no checksum, reads all bytes of the shard and of its raw data first.
    Raises RawDataError if the shard was written from other raw data."""
    job, receipt = plan.job, finished_shard(output, plan, shard)
    if receipt is None:
        return None
    by_bytes = job.verify_existing or not receipt.has_checksum
    if not by_bytes and receipt.raw_checksum == plan.raw_checksum:
        return receipt
    if by_bytes and not _holds(output, plan, receipt, refs):
        return None
    before, rows = receipt.raw_rows(), raw_rows(job.seed, plan.split, refs)
    if by_bytes:
        rows["crc32c"] = raw_crcs(job, raw, refs)
    if receipt.has_checksum:
        column = "crc32c" if by_bytes else "version"
        if changed := _first_other(before[["rank", column]], rows[["rank", column]], refs):
            _refuse_other_bytes(output, plan, receipt, changed)
            return None
    elif _claim(output, plan).raw_checksum not in (None, plan.raw_checksum):
        return None  # version 0.1 did not record its raw data
    encoded = base64.b64encode((rows if by_bytes else before).tobytes()).decode()
    renewed = dataclasses.replace(receipt, raw=encoded, raw_checksum=plan.raw_checksum, has_checksum=True)
    if renewed != receipt or not receipt.has_checksum:
        renewed.write(output, job.output_dir)
    return renewed


def _first_other(before: np.ndarray, rows: np.ndarray, refs: References) -> Reference | None:
    """The first row that has changed."""
    if len(before) != len(rows):
        return next(iter(refs), None)
    return next(iter(refs.take(before != rows)), None)


def _refuse_other_bytes(output: Storage, plan: SplitPlan, receipt: Receipt, changed: Reference) -> None:
    """Does nothing if shard and claim are of different raw data, as after a run that stopped at an older shard."""
    job = plan.job
    if not job.verify_existing or job.overwrite or _claim(output, plan).raw_checksum != receipt.raw_checksum:
        return
    raise RawDataError(
        f"{job.output_dir} holds split {plan.split!r} of other raw data: {name_of(job, changed.file.uri)} "
        f"has other bytes than when {plan.shard_file(receipt.shard)} was written. Restore it, give another directory, "
        "or replace the shards with --overwrite --verify_existing."
    )


def _claim(storage: Storage, plan: SplitPlan) -> Claim:
    return read_claim(storage, join(plan.job.output_dir, plan_file(plan.split)))


def _holds(storage: Storage, plan: SplitPlan, receipt: Receipt, refs: References) -> bool:
    """Whether the shard's bytes are the records of these rows, as its receipt states.

    Compares everything except the repair counts and conversion errors, which no shard contains."""
    try:
        rows = receipt.index_rows()
    except ValueError:
        return False
    path, checksum = join(plan.job.output_dir, plan.shard_file(receipt.shard)), google_crc32c.Checksum()
    pieces = pieces_of(storage, path, receipt.bytes, _PIECE_BYTES, checksum)
    sound = not any(frame.problem for frame in read_frames(pieces, rows))
    for _ in pieces:  # bytes after the last record
        pass
    crc = int.from_bytes(checksum.digest(), "big")
    intact = sound and (len(rows), crc) == (receipt.records, receipt.crc32c)
    return intact and _is_of(receipt, rows[:, 0].tolist(), refs)


def _is_of(receipt: Receipt, lengths: list[int], refs: References) -> bool:
    """Whether keys, key digests, rejected rows and the largest record match the rows, which are in order."""
    bad = refs.take(~refs.good)
    found = {line.key for line in receipt.rejected[len(bad) :] if line.stage == "convert"}
    keys = [key for key in refs.key[refs.good].tolist() if escaped(key.decode("utf-8", "surrogateescape")) not in found]
    if len(keys) != len(lengths) or len(keys) + len(receipt.rejected) != len(refs):
        return False
    largest = max(zip(lengths, keys, strict=True), default=(0, b""))
    return (
        [_anywhere(line) for line in receipt.rejected[: len(bad)]]
        == [_anywhere(Rejected.of(ref, "scan", ref.error)) for ref in bad]
        and receipt.key_digest == f"{key_digest(keys):032x}"
        and receipt.handled_digest == f"{key_digest(refs.key.tolist()):032x}"
        and (receipt.largest_bytes, receipt.largest_key) == (largest[0], largest[1].decode("utf-8", "backslashreplace"))
        and all(count <= len(refs) for count in (*receipt.fixups.values(), *receipt.notes.values()))
    )


def _anywhere(line: Rejected) -> Rejected:
    """The line without its location, as the raw data may have been moved."""
    return dataclasses.replace(line, uri="")
