"""The rows of one shard, and which raw data it was written from: for each row, the version of the
raw file and the checksum of its bytes.

These take 16 bytes per row in a receipt, 28 MB for 1.3 million records. A later run compares them
with the raw data it finds, so a split never mixes shards of old and new raw data."""

import base64
import json
from collections.abc import Iterator

import numpy as np

from beam_jobs.converter import ConversionJob
from beam_jobs.rows.digests import hash_sum
from beam_jobs.rows.packed_rows import PackedRecords, PackedRows
from beam_jobs.rows.references import DUPLICATE, Reference, References, decoded, escaped
from beam_jobs.split.ledger import Receipt, Rejected, rejected_by_scan
from beam_jobs.split.packed_files import stats_of
from beam_jobs.split.plan import Rows, SplitPlan
from pipeline.errors import RawDataError
from pipeline.shards.frames import crc32c
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Stat

# rank: identifies the record. version: hash of the file's size and Stat.version. crc32c: 0 for rows
# the scan rejects.
RAW_ROW = np.dtype([("rank", "<u8"), ("version", "<u4"), ("crc32c", "<u4")])


def raw_rows(seed: int, split: str, rows: Rows) -> np.ndarray:
    """RAW_ROW [rows], without checksums."""
    raw = np.zeros(len(rows), RAW_ROW)
    raw["rank"] = rows.ranks(seed, split)
    raw["version"] = rows.versions
    return raw


class Shard:
    """All rows of a shard, in order.

    good: bool [rows], True unless the scan or the plan rejects the row. num_rejected: of rows that
    they reject. handled: the digest of all ranks."""

    def __init__(self, plan: SplitPlan, rows: Rows) -> None:
        self.rows = rows
        self.good = rows.good
        self.num_rejected = int((~self.good).sum())
        self.handled = hash_sum(rows.ranks(plan.job.seed, plan.split))
        self._plan = plan

    def raw_rows(self) -> np.ndarray:
        """RAW_ROW [rows], without checksums."""
        return raw_rows(self._plan.job.seed, self._plan.split, self.rows)


class RawShard(Shard):
    """A shard whose records are ranges of raw files."""

    rows: References

    def crcs(self) -> Iterator[int]:
        """Yields the checksum of each good row's raw bytes. Reads all. Raises RawDataError,
        StorageError."""
        return (crc32c(data) for _, data in self.read())

    def rejected(self) -> Iterator[Rejected]:
        """The entries of rejected rows, in order."""
        return rejected_by_scan(self.rows)

    def read(self) -> Iterator[tuple[Reference, bytes]]:
        """Yields each good row with its raw bytes, in order. Raises RawDataError after the last one
        if a file has changed."""
        good = self.rows.take(self.good)
        # all files of a split are in one storage
        if len(good):
            uris = (good.files[i].uri for i in good.file)
            ranges = zip(uris, good.offset.tolist(), good.size.tolist(), strict=True)
            yield from zip(good, open_storage(good.files[0].uri).read_ranges(ranges), strict=True)
        check_unchanged(self._plan.job, good)


class PackedShard(Shard):
    """A shard whose records are in packed files. Its methods correspond to those of RawShard."""

    rows: PackedRows

    def crcs(self) -> Iterator[int]:
        """Yields the checksum of each good record. Reads all."""
        for records in self.records():
            yield from records.trailers["crc32c"].tolist()

    def rejected(self) -> Iterator[Rejected]:
        """The entries of rejected rows, in order. Reads each of them."""
        for row in np.flatnonzero(~self.good).tolist():
            one = self.rows.take([row])
            (key,), (payload,), (trailer,) = one.alone()
            repeat = one.files[one.rows["file"][0]].place[0], DUPLICATE
            uri, error = repeat if one.rows["size"][0] else json.loads(payload)
            name, offset = escaped(decoded(key)), int(trailer["offset"])
            yield Rejected(name, escaped(uri), offset, "scan", error)

    def records(self) -> Iterator[PackedRecords]:
        """Yields the good records, in order. Raises RawDataError if one is damaged."""
        return self.rows.records()


def name_of(job: ConversionJob, rows: Rows, row: int) -> str:
    """The name, for users, of the raw file or source that a row is from."""
    if isinstance(rows, References):
        return _name_of(job, rows.files[rows.file[row]].uri)
    place = rows.files[rows.rows["file"][row]].place[:2]
    return next(each.name for each in job.sources if (each.uri, each.offset) == place)


def check_unchanged(job: ConversionJob, refs: References) -> None:
    """Raises RawDataError naming a file that changed since the scan."""
    stats = stats_of(refs.files)  # in folders, each record is a file
    # their Stat has the stamp of the original
    temporary = {source.uri for source in job.sources if source.origin}
    for file, stat in zip(refs.files, stats, strict=True):
        before = file.stat._replace(stamp=None) if file.uri in temporary else file.stat
        if stat.agrees_with(before):
            continue
        what = (
            "was written again since it was scanned"
            if Stat(stat.bytes, stat.crc32c).agrees_with(before)
            else f"has {stat}; it had {before} when it was scanned"
        )
        raise RawDataError(
            f"{_name_of(job, file.uri)} {what}. It changed during the conversion. Restore it, or "
            "run the same command again to scan the new version."
        )


def differing(known: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two bool masks: rows whose version differs from the known rows of their rank, and rows of an
    unknown rank.

    known: sorted by rank. Rows with the same key, all but one of them rejected, may be in any
    order."""
    begin, end = (
        np.searchsorted(known["rank"], rows["rank"], side=side) for side in ("left", "right")
    )
    differ = end > begin
    differ[differ] = rows["version"][differ] != known["version"][begin[differ]]
    for i in np.flatnonzero(differ & (end > begin + 1)):
        differ[i] = rows["version"][i] not in known["version"][begin[i] : end[i]]
    return differ, end == begin


def _name_of(job: ConversionJob, uri: str) -> str:
    """The URI; of a temporary file, the URI of the file that it was made from."""
    origins = (source.origin for source in job.sources if source.uri == uri and source.origin)
    return next(origins, uri)


def recorded_rows(receipt: Receipt) -> np.ndarray:
    """RAW_ROW [rows]: those from which the shard of a receipt was written."""
    return np.frombuffer(base64.b64decode(receipt.raw), RAW_ROW)
