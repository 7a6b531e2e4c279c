"""Packed files: temporary files of records that are made of several pieces of raw data each.

A row of packed text contains several documents, and a row of a table becomes a record that no range
of the table has, so no range of the raw data holds its bytes. The scan therefore writes the records
of some windows of a source to <output>/_scratch, sorted by rank, and gathering reads ranges of that
file: see packed_rows. A file appears when it is complete, and is named by everything that its bytes
depend on: a conversion that was killed packs nothing twice. It ends with a table of its rows. The
commit removes it."""

import hashlib
import io
import itertools
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from beam_jobs.converter import ConversionJob, Pack, Packer, Source, files_of
from beam_jobs.digests import row_hashes, text_hashes
from beam_jobs.ledger import Rejected, check_rejected, rejected_by_scan
from beam_jobs.packed_rows import CHECK_BYTES, PackedFile, PackedRows, order_of, trailer_type
from beam_jobs.plan import Rows, buckets_of, sums_of
from beam_jobs.references import File, bounded, encoded
from pipeline.errors import RawDataError
from pipeline.shards.frames import crc32c
from pipeline.shards.naming import ranks
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Stat, Storage, in_parallel, join

_PACKED = re.compile(r"((?P<split>.+)\.[0-9a-f]{16})-\d+")  # see _name
_VERSION = 4  # of the files' layout, and of the windows of all converters
_LENGTH_BYTES = 8  # of the table's length, at the end
_RANGE_BYTES = 1 << 16  # of a file that gathering reads for a shard
_LEAST_BYTES, _MOST_BYTES = 1 << 24, _RANGE_BYTES * 10_000  # of a file; a scan holds twice as much
_ROWS_AT_ONCE = 4096


def scanned(job: ConversionJob, source: Source, *, write: bool = True) -> Iterator[Rows]:
    """References to all records of a source, or its PackedRows, each of one bucket. write: False
    for a dry run, which packs no files.

    Raises ConversionError if too many of them are rejected."""
    if isinstance(job.converter, Packer):
        yield from _packed(job, job.converter, source, write)
        return
    number = 0
    for refs in job.converter.scan(open_storage(source.uri), source):
        number += int((~refs.good).sum())
        check_rejected(job, source.split, number, rejected_by_scan(refs))
        yield refs


def remove_packed_files(job: ConversionJob, split: str, *, of_job: bool = False) -> None:
    """Removes the packed files of a split, also those that earlier plans and killed workers left.
    of_job: only those of this plan."""
    if not isinstance(job.converter, Packer):
        return
    directory = job.path("_scratch")
    of_sources = {
        _name(job, piece) for source in job.sources_of(split) for piece in job.pieces_of(source)
    }
    if not of_job:
        job.output.sweep(directory, [f"{split}.*"])
    matches = filter(None, map(_PACKED.fullmatch, job.output.list(directory)))
    paths = [
        join(directory, match[0])
        for match in matches
        if (match[1] in of_sources if of_job else match["split"] == split)
    ]
    in_parallel(job.output.delete, paths)


def _packed(
    job: ConversionJob, packer: Packer, source: Source, write: bool
) -> Iterator[PackedRows]:
    name = _name(job, source)
    file_bytes = _file_bytes(job)
    windows = enumerate(packer.windows(open_storage(source.uri), source))
    rejected = list[Rejected]()
    for number in itertools.count():
        path = job.path(f"_scratch/{name}-{number}")
        table = _find_table(job.output, path) if write else None
        body = None
        if table:
            again = itertools.islice(windows, int(table["windows"]))  # packed by an earlier run
            if sum(len(window) for _, window in again) != table["pieces"]:
                raise RawDataError(
                    f"{path} was packed from other parts of the raw data, by another version of "
                    "infeed or pyarrow. Remove it, and run the command again."
                )
        else:
            packs = list[Pack]()
            pieces = 0
            while sum(len(pack.data) for pack in packs) < file_bytes:
                if not (window := next(windows, None)):
                    break
                packs.append(packer.pack(source, *window))
                pieces += len(window[1])
                refs = map(bounded, packs[-1].unusable)
                rejected += [Rejected.of(ref, "scan", ref.error) for ref in refs]
                check_rejected(job, source.split, len(rejected), rejected)
            if not packs:
                break
            table, rows = _sorted(job, source, packs, pieces)
            if write:
                with job.output.publish(path) as sink:
                    for piece in (*rows(), _zipped(table)):
                        sink.write(piece)
                    check_unchanged(source)  # before the file appears
            else:
                body = b"".join(rows(payloads=False))
        yield from _rows(job, source, number, path, table, body)
    check_unchanged(source)  # if it became shorter, a window may be missing


def _file_bytes(job: ConversionJob) -> int:
    """The size of a packed file. It grows with the input, because each shard reads a part of each:
    up to 1 TB, these parts have 64 KiB where records are as large as their raw data."""
    raw_bytes = sum(source.guessed_bytes for source in job.sources)
    size = _RANGE_BYTES * raw_bytes // job.target_shard_bytes
    return min(_MOST_BYTES, max(_LEAST_BYTES, 1 << size.bit_length()))


def _name(job: ConversionJob, source: Source) -> str:
    """The name of a source's packed files, without their number."""
    fields = json.dumps(dict(job.converter.digest_fields()), sort_keys=True)
    files = (f"{file.uri}\0{file.stat.bytes}\0{file.stat.version}" for file in files_of(source))
    place = f"{source.split}\0{source.offset}\0{source.bytes}\0{source.piece}"
    order = f"{job.seed}\0{job.num_buckets}\0{_file_bytes(job)}"
    return f"{source.split}.{_digest(str(_VERSION), fields, place, order, *files):016x}"


def _digest(*parts: str) -> int:
    joined = encoded("\0\0".join(parts))
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "big")


class _Batch(NamedTuple):
    """Rows to be written: the records of a pack, or its unusable pieces.

    data, stored: the records or errors, and the size of each. size: of a record; 0 for an error.
    trailer: see PackedFile. error: a hash."""

    keys: Sequence[bytes]
    data: bytes
    stored: np.ndarray
    size: np.ndarray
    trailer: np.ndarray
    error: np.ndarray


def _batches(source: Source, pack: Pack) -> tuple[_Batch, _Batch]:
    """The records of a pack, and its unusable pieces."""
    ends = np.cumsum(pack.sizes)
    bounds = zip((ends - pack.sizes).tolist(), ends.tolist(), strict=True)
    crcs = [crc32c(pack.data[begin:end]) for begin, end in bounds]
    trailer = _trailer(pack.columns, pack.keys, pack.offsets)
    trailer["crc32c"] = crcs
    for name, values in pack.columns.items():
        trailer[name] = values
    no_error = np.zeros(len(pack.keys), np.uint64)
    records = _Batch(pack.keys, pack.data, pack.sizes, pack.sizes, trailer, no_error)
    files = {file: number for number, file in enumerate(files_of(source))}
    unusable = [*map(bounded, pack.unusable)]
    texts = [json.dumps([files[each.file], each.error]).encode() for each in unusable]
    sizes = np.array([*map(len, texts)], np.int64)
    keys = [encoded(each.key) for each in unusable]
    trailer = _trailer(pack.columns, keys, [each.offset for each in unusable])
    errors = text_hashes(encoded(each.error) for each in unusable)
    return records, _Batch(keys, b"".join(texts), sizes, 0 * sizes, trailer, errors)


def _trailer(columns: Iterable[str], keys: Sequence[bytes], offsets: Any) -> np.ndarray:
    trailer = np.zeros(len(keys), trailer_type(columns))
    trailer["offset"] = offsets
    trailer["key_size"] = [*map(len, keys)]
    return trailer


def _sorted(
    job: ConversionJob, source: Source, packs: Sequence[Pack], pieces: int
) -> tuple[dict[str, np.ndarray], Callable[..., Iterator[bytes]]]:
    """The table of a file with these packs, and a function that makes its rows. pieces: how many
    their windows have."""
    batches = [*itertools.chain.from_iterable(_batches(source, pack) for pack in packs)]
    keys = [*itertools.chain.from_iterable(batch.keys for batch in batches)]
    stored, size, trailer, error = (
        np.concatenate([batch[field] for batch in batches]) for field in range(2, 6)
    )
    batch = np.repeat(np.arange(len(batches)), [len(batch.keys) for batch in batches])
    begin = np.concatenate([np.cumsum(each.stored) - each.stored for each in batches])
    rank = ranks(job.seed, source.split, keys)
    order = order_of(rank, lambda rows: [(keys[i], trailer["offset"][i]) for i in rows])
    rank, size, stored, trailer = rank[order], size[order], stored[order], trailer[order]
    own = (trailer[name] for name in sorted(packs[0].columns))
    table = {
        "windows": np.array(len(packs)),
        "pieces": np.array(pieces),
        "columns": np.array([*packs[0].columns], "U"),
        "rank": rank,
        "size": size.astype(np.uint32),
        "more": (stored - size + trailer["key_size"] + trailer.itemsize).astype(np.uint32),
        "hash": row_hashes(rank, [size, error[order], trailer["crc32c"], *own]),
    }

    def rows(*, payloads: bool = True) -> Iterator[bytes]:
        for row in range(0, len(order), _ROWS_AT_ONCE):
            some = slice(row, row + _ROWS_AT_ONCE)
            sizes = stored[some] if payloads else np.where(size[some], 0, stored[some])
            columns = (batch[order[some]], begin[order[some]], sizes, order[some])
            places = zip(*(column.tolist() for column in columns), strict=True)
            tails = trailer[some].view(f"V{trailer.itemsize}").tolist()
            bodies = [
                batches[b].data[at : at + length] + keys[i] + tail[:-CHECK_BYTES]
                for (b, at, length, i), tail in zip(places, tails, strict=True)
            ]
            checks = np.array([*map(crc32c, bodies)], "<u4").view(f"V{CHECK_BYTES}").tolist()
            yield b"".join(itertools.chain.from_iterable(zip(bodies, checks, strict=True)))

    return table, rows


def _zipped(table: Mapping[str, np.ndarray]) -> bytes:
    """The table as a zip, which has a checksum of each column, followed by its length."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **table)
    data = file.getvalue()
    return data + len(data).to_bytes(_LENGTH_BYTES, "little")


def _find_table(storage: Storage, path: str) -> dict[str, np.ndarray] | None:
    """The table of a packed file; None if there is no file or if it is damaged, so that it is
    written again."""
    if not storage.exists(path):
        return None
    size = storage.stat(path).bytes
    try:
        (end,) = storage.read_ranges([(path, size - _LENGTH_BYTES, _LENGTH_BYTES)])
        length = int.from_bytes(end, "little")
        (data,) = storage.read_ranges([(path, size - _LENGTH_BYTES - length, length)])
        with np.load(io.BytesIO(data)) as arrays:
            return dict(arrays)
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
    """The rows of a packed file, by bucket."""
    files = files_of(source)
    # a file that is packed again is no change of the raw data
    stamp = _digest(*(file.stat.version for file in files))
    file = File(path, Stat(sum(file.stat.bytes for file in files), None, stamp))
    columns = tuple(table["columns"].tolist())
    packed = PackedFile(file, source.uri, source.offset, source.piece, number, columns, body)
    rank, size, more = (table[name] for name in ("rank", "size", "more"))
    rows = PackedRows(packed, 0, 0, rank, size, more)
    buckets = buckets_of(job, rank)
    framed = rows.framed_bytes
    edges = np.flatnonzero(np.diff(buckets, prepend=-1)).tolist()  # none if all are of other splits
    for begin, end in itertools.pairwise([*edges, len(rows)]):
        some = slice(begin, end)
        none = np.zeros(end - begin, np.int64)
        sums = sums_of(framed[some], table["hash"][some], rank[some], [file], none)
        yield rows.part(begin, end, sums)


def stats_of(files: Sequence[File]) -> Sequence[Stat]:
    """What the storage reports about raw files now."""
    return in_parallel(lambda file: open_storage(file.uri).stat(file.uri), files)


def check_unchanged(source: Source) -> None:
    """Raises RawDataError if a file of a source is not as it was when the command started."""
    files = files_of(source)
    for file, stat in zip(files, stats_of(files), strict=True):
        if not stat.agrees_with(file.stat):
            raise RawDataError(
                f"{file.uri} has {stat}; it had {file.stat} when the command started. It changed "
                "during the conversion. Restore it, or run the same command again to read the new "
                "version."
            )
