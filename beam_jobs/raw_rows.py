"""Records which raw data a shard was written from: for each row, the raw file's version and the
checksum of its bytes.

They take 16 bytes per row in a receipt, 28 MB for 1.3 million records. A later run compares them
with the raw data it finds, so a split never mixes shards of old and new raw data."""

import base64
import hashlib
from collections.abc import Iterator

import numpy as np

from beam_jobs.converter import ConversionJob
from beam_jobs.ledger import Receipt
from beam_jobs.packed_files import is_packed, source_of_packed, stats_of
from beam_jobs.references import Reference, References
from pipeline.errors import RawDataError
from pipeline.shards.frames import crc32c
from pipeline.shards.naming import ranks
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Stat

# rank: identifies the record. version: hash of the file's size and Stat.version. crc32c: 0 for rows
# the scan rejects.
RAW_ROW = np.dtype([("rank", "<u8"), ("version", "<u4"), ("crc32c", "<u4")])


def raw_rows(seed: int, split: str, refs: References) -> np.ndarray:
    """RAW_ROW [rows], without checksums."""
    stats = (f"{file.stat.bytes} {file.stat.version}".encode() for file in refs.files)
    versions = [hashlib.blake2b(stat, digest_size=4).digest() for stat in stats]
    rows = np.zeros(len(refs), RAW_ROW)
    if len(refs):
        rows["rank"] = ranks(seed, split, refs.key)
        rows["version"] = np.frombuffer(b"".join(versions), "<u4")[refs.file]
    return rows


def read_rows(refs: References) -> Iterator[tuple[Reference, bytes]]:
    """Each row with its raw bytes, in order. All files of a split are in one storage."""
    if len(refs):
        uris = (refs.files[i].uri for i in refs.file)
        ranges = zip(uris, refs.offset.tolist(), refs.size.tolist(), strict=True)
        yield from zip(refs, open_storage(refs.files[0].uri).read_ranges(ranges), strict=True)


def raw_crcs(job: ConversionJob, refs: References) -> np.ndarray:
    """uint32 [rows]: checksums of the rows' raw bytes, which it reads. Raises RawDataError,
    StorageError."""
    crcs = np.zeros(len(refs), np.uint32)
    good = refs.take(refs.good)
    crcs[refs.good] = [crc32c(data) for _, data in read_rows(good)]
    check_unchanged(job, good)
    return crcs


def check_unchanged(job: ConversionJob, refs: References) -> None:
    """Raises RawDataError naming a file that changed since the scan."""
    # their records have checksums
    files = [file for file in refs.files if not is_packed(job, file.uri)]
    stats = stats_of(files)  # in folders, each record is a file
    # their Stat has the stamp of the original
    temporary = {source.uri for source in job.sources if source.origin}
    for file, stat in zip(files, stats, strict=True):
        before = file.stat._replace(stamp=None) if file.uri in temporary else file.stat
        if stat.agrees_with(before):
            continue
        what = (
            "was written again since it was scanned"
            if Stat(stat.bytes, stat.crc32c).agrees_with(before)
            else f"has {stat}; it had {before} when it was scanned"
        )
        raise RawDataError(
            f"{name_of(job, file.uri)} {what}. It changed during the conversion. Restore it, or "
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


def name_of(job: ConversionJob, uri: str) -> str:
    """The raw file's name for users: for a temporary file, the file or source it was made from."""
    if is_packed(job, uri):
        return source_of_packed(job, uri)
    origins = (source.origin for source in job.sources if source.uri == uri and source.origin)
    return next(origins, uri)


def recorded_rows(receipt: Receipt) -> np.ndarray:
    """RAW_ROW [rows]: those from which the shard of a receipt was written."""
    return np.frombuffer(base64.b64decode(receipt.raw), RAW_ROW)
