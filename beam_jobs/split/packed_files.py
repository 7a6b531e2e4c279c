"""Packed files: temporary files of records that consist of several pieces of raw data each.

A row of packed text contains several documents, and a row of a table is encoded anew, so no range
of the raw data holds the bytes of such a record. The scan therefore writes the records of some
windows of a source to <output>/_scratch, sorted by rank, and gathering reads ranges of that file:
see packed_rows. A file appears when it is complete, and is named by a hash of everything that its
bytes depend on, so a conversion that was killed packs nothing twice. It ends with a table of its
rows. The commit removes it."""

import hashlib
import io
import itertools
import json
import operator
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from beam_jobs.converter import ConversionJob, Pack, Packer, Source, files_of
from beam_jobs.rows.digests import row_hashes, text_hashes
from beam_jobs.rows.packed_rows import CHECK_BYTES, ROW, PackedFile, PackedRows, trailer_type
from beam_jobs.rows.references import File, bounded, encoded
from beam_jobs.scratch import remove_scratch
from beam_jobs.split.ledger import Rejected, check_rejected, rejected_by_scan
from beam_jobs.split.plan import Rows, buckets_of, sums_of
from pipeline.errors import RawDataError
from pipeline.shards.frames import crc32c
from pipeline.shards.naming import ranks
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Sink, Stat, Storage, in_parallel

_VERSION = 5  # of the files' layout, and of the windows of all converters
_LENGTH_BYTES = 8  # of the table's length, at the end
_RANGE_BYTES = 1 << 16  # of a file that gathering reads for a shard
_LEAST_BYTES, _MOST_BYTES = 1 << 24, _RANGE_BYTES * 10_000  # of a file; a scan holds twice as much
_ROWS_AT_ONCE = 4096
_TABLE = {"windows", "pieces", "trailer", "rows", "hash"}


def scanned(job: ConversionJob, source: Source) -> Iterator[Rows]:
    """Yields references to all records of a source, or PackedRows of one bucket each. A dry run
    writes no files.

    Raises ConversionError if too many records are rejected."""
    if isinstance(job.converter, Packer):
        yield from _packed(job, job.converter, source)
        return
    number = 0
    for refs in job.converter.scan(open_storage(source.uri), source):
        number += int((~refs.good).sum())
        check_rejected(job, source.split, number, rejected_by_scan(refs))
        yield refs


def remove_packed_files(job: ConversionJob, split: str = "") -> None:
    """Removes the packed files of a split, including those that earlier plans and killed workers
    left; without a split, only those of this job. Raises StorageError."""
    if not isinstance(job.converter, Packer):
        return
    if split:
        remove_scratch(job, f"{split}.*", re.compile(rf"{split}\.[0-9a-f]{{16}}-\d+").fullmatch)
        return
    names = {_name(job, job.source(*scan)) for scan in itertools.chain.from_iterable(job.scans)}
    remove_scratch(job, "", lambda name: name.rpartition("-")[0] in names)


def _packed(job: ConversionJob, packer: Packer, source: Source) -> Iterator[PackedRows]:
    name = _name(job, source)
    file_bytes = _file_bytes(job)
    windows = enumerate(packer.windows(open_storage(source.uri), source))
    rejected = list[Rejected]()
    for number in itertools.count():
        path = job.path(f"_scratch/{name}-{number}")
        table = None if job.dry_run else _find_table(job.output, path)
        body = None
        if table:
            again = itertools.islice(windows, int(table["windows"]))  # packed by an earlier run
            if sum(len(window) for _, window in again) != table["pieces"]:
                raise RawDataError(
                    f"{path} was packed from other parts of the raw data, by another version of "
                    "infeed or pyarrow. Remove it, and run the command again."
                )
        else:
            packing = _Packing(job, source)
            while packing.num_bytes < file_bytes:
                if not (window := next(windows, None)):
                    break
                rejected += packing.add(packer.pack(source, *window), len(window[1]))
                check_rejected(job, source.split, len(rejected), rejected)
            if not packing.windows:
                break
            if job.dry_run:
                memory = io.BytesIO()
                table = packing.write(memory)
                body = memory.getvalue()
            else:
                with job.output.publish(path) as sink:
                    table = packing.write(sink)
                    sink.write(_zipped(table))
                    check_unchanged(source)  # before the file appears
        yield from _rows(job, source, number, path, table, body)
    check_unchanged(source)  # if it became shorter, a window may be missing


def _file_bytes(job: ConversionJob) -> int:
    """The size of a packed file. It grows with the input, because each shard reads a part of each
    file: up to 1 TB, these parts have 64 KiB if records are as large as their raw data."""
    size = _RANGE_BYTES * job.raw_bytes // job.target_shard_bytes
    return min(_MOST_BYTES, max(_LEAST_BYTES, 1 << size.bit_length()))


def _name(job: ConversionJob, source: Source) -> str:
    """The name of a source's packed files, without their number."""
    files = (f"{file.uri}\0{file.stat.bytes}\0{file.stat.version}" for file in files_of(source))
    place = f"{source.split}\0{source.offset}\0{source.bytes}\0{source.piece}"
    order = f"{job.seed}\0{job.num_buckets}\0{_file_bytes(job)}"
    digest = _digest(str(_VERSION), job.converter_fields, place, order, *files)
    return f"{source.split}.{digest:016x}"


def _digest(*parts: str) -> int:
    joined = encoded("\0\0".join(parts))
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "big")


class _Packing:
    """Rows of one packed file, before they are sorted.

    num_bytes: of the records. windows, pieces: the number of windows that they are from, and of
    pieces in these windows."""

    def __init__(self, job: ConversionJob, source: Source) -> None:
        self.num_bytes = self.windows = self.pieces = 0
        self._job = job
        self._source = source
        self._stored = list[bytes]()
        self._rows = list[np.ndarray]()
        self._hashes = list[np.ndarray]()

    def add(self, pack: Pack, pieces: int) -> list[Rejected]:
        """Adds the records of a window and its unusable pieces. Returns the latter."""
        self.num_bytes += len(pack.data)
        self.windows += 1
        self.pieces += pieces
        self._columns = sorted(pack.columns)
        bounds = itertools.pairwise([0, *np.cumsum(pack.sizes).tolist()])
        payloads = [pack.data[begin:end] for begin, end in bounds]
        columns = {**pack.columns, "offset": pack.offsets, "crc32c": [*map(crc32c, payloads)]}
        if self._job.dry_run:
            payloads = [b""] * len(payloads)
        self._append(pack.keys, payloads, columns, pack.sizes, np.zeros(1))
        refs = [*map(bounded, pack.unusable)]
        errors = [json.dumps([ref.file.uri, ref.error]).encode() for ref in refs]
        hashes = text_hashes(encoded(ref.error) for ref in refs)
        offsets = {"offset": [ref.offset for ref in refs]}
        self._append([encoded(ref.key) for ref in refs], errors, offsets, 0, hashes)
        return [Rejected.of(ref, "scan", ref.error) for ref in refs]

    def _append(
        self,
        keys: Sequence[bytes],
        payloads: Sequence[bytes],
        columns: Mapping[str, Any],
        sizes: Any,
        errors: np.ndarray,
    ) -> None:
        """sizes: of the records. errors: a hash of each."""
        trailers = np.zeros(len(keys), trailer_type(self._columns))
        trailers["key_size"] = [*map(len, keys)]
        for name, values in columns.items():
            trailers[name] = values
        tails = trailers.view(f"V{trailers.itemsize}").tolist()
        bodies = [
            payload + key + tail[:-CHECK_BYTES]
            for payload, key, tail in zip(payloads, keys, tails, strict=True)
        ]
        checks = np.array([*map(crc32c, bodies)], "<u4").view(f"V{CHECK_BYTES}").tolist()
        self._stored += map(operator.add, bodies, checks)
        rows = np.zeros(len(keys), ROW)
        rows["rank"] = ranks(self._job.seed, self._source.split, keys)
        rows["size"] = sizes
        rows["more"] = np.array([len(body) + CHECK_BYTES for body in bodies]) - sizes
        self._rows.append(rows)
        own = (trailers[name] for name in ("crc32c", *self._columns))
        self._hashes.append(row_hashes(rows["rank"], [rows["size"], errors, *own]))

    def write(self, sink: Sink) -> dict[str, Any]:
        """Writes the stored rows, sorted. Returns the table."""
        rows = np.concatenate(self._rows)
        order = np.argsort(rows["rank"], kind="stable")
        rows = rows[order]
        sizes = rows["size"] + rows["more"]
        rows["begin"] = np.cumsum(sizes) - sizes
        for begin in range(0, len(order), _ROWS_AT_ONCE):
            some = order[begin : begin + _ROWS_AT_ONCE].tolist()
            sink.write(b"".join([self._stored[row] for row in some]))
        return {
            "windows": self.windows,
            "pieces": self.pieces,
            "trailer": np.zeros(0, trailer_type(self._columns)),
            "rows": rows,
            "hash": np.concatenate(self._hashes)[order],
        }


def _zipped(table: Mapping[str, Any]) -> bytes:
    """The table as a zip, which has a checksum for each column, followed by its length."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **table)
    data = file.getvalue()
    return data + len(data).to_bytes(_LENGTH_BYTES, "little")


def _find_table(storage: Storage, path: str) -> dict[str, np.ndarray] | None:
    """The table of a packed file; None if the file is missing or damaged, so that it is written
    again."""
    if not storage.exists(path):
        return None
    size = storage.stat(path).bytes
    try:
        (end,) = storage.read_ranges([(path, size - _LENGTH_BYTES, _LENGTH_BYTES)])
        length = int.from_bytes(end, "little")
        if not 0 < length <= size - _LENGTH_BYTES:
            return None
        (data,) = storage.read_ranges([(path, size - _LENGTH_BYTES - length, length)])
        with np.load(io.BytesIO(data)) as arrays:
            table = dict(arrays)
            return table if table.keys() == _TABLE and table["rows"].dtype == ROW else None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return None


def _rows(
    job: ConversionJob,
    source: Source,
    number: int,
    path: str,
    table: Mapping[str, np.ndarray],
    body: bytes | None,
) -> Iterator[PackedRows]:
    """Yields the rows of a packed file, by bucket."""
    files = files_of(source)
    # packing a file again does not change the raw data
    stamp = _digest(*(file.stat.version for file in files))
    file = File(path, Stat(sum(file.stat.bytes for file in files), None, stamp))
    trailer = table["trailer"].dtype
    place = source.uri, source.offset, source.piece, number
    files = (PackedFile(file, place, trailer, body),)
    rows, hashes = table["rows"], table["hash"]
    buckets = buckets_of(job, rows["rank"])
    edges = np.flatnonzero(np.diff(buckets, prepend=-1)).tolist()  # none if all are of other splits
    for begin, end in itertools.pairwise([*edges, len(rows)]):
        packed = PackedRows(files, rows[begin:end])
        rank = packed.rows["rank"]
        sums = sums_of(packed.framed_bytes, hashes[begin:end], rank, [file], packed.rows["file"])
        yield replace(packed, sums=sums)


def stats_of(files: Sequence[File]) -> Sequence[Stat]:
    """The current Stat of each raw file."""
    return in_parallel(lambda file: open_storage(file.uri).stat(file.uri), files)


def check_unchanged(source: Source) -> None:
    """Raises RawDataError if a file of a source has changed since the command started."""
    files = files_of(source)
    for file, stat in zip(files, stats_of(files), strict=True):
        if not stat.agrees_with(file.stat):
            raise RawDataError(
                f"{file.uri} has {stat}; it had {file.stat} when the command started. It changed "
                "during the conversion. Restore it, or run the same command again to read the new "
                "version."
            )
