"""Packed files: temporary files of records that are made of several pieces of raw data each.

A row of packed text contains several documents, so no range of the raw data holds its bytes. The
scan therefore writes the rows of each window of a source to <output>/_scratch, and the other steps
read ranges of that file as of any raw file. A file appears when it is complete, and is named by
everything that its bytes depend on: a conversion that was killed packs nothing twice. It ends with
the references to its records. The commit removes it."""

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from beam_jobs.converter import ConversionJob, Pack, Packer, Source, files_of
from beam_jobs.ledger import check_rejected, rejected_by_scan
from beam_jobs.references import File, Reference, References, column, concat, decoded, encoded
from pipeline.errors import RawDataError
from pipeline.shards.frames import crc32c
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Stat, Storage, in_parallel, join

CRC32C = "crc32c"
"""The column with the checksum of each record's payload. Part of the plan, as sizes and keys do not
cover contents."""
_PACKED = re.compile(r"((?P<split>.+)\.[0-9a-f]{16})-\d+")  # see _name
_VERSION = 3  # of the files' layout, and of the windows of all converters
_LENGTH_BYTES = 8  # of the table's length, at the end


def scanned(job: ConversionJob, source: Source, *, write: bool = True) -> Iterator[References]:
    """References to all records of a source. write: False for a dry run, whose references point to
    no files.

    Raises ConversionError if too many of them are rejected."""
    batches = (
        _packed(job, job.converter, source, write)
        if isinstance(job.converter, Packer)
        else job.converter.scan(open_storage(source.uri), source)
    )
    number = 0
    for refs in batches:
        number += int((~refs.good).sum())
        check_rejected(job, source.split, number, rejected_by_scan(refs))
        yield refs


def is_packed(job: ConversionJob, uri: str) -> bool:
    """Whether a row refers to a packed file."""
    return isinstance(job.converter, Packer) and uri.startswith(job.path("_scratch/"))


def source_of_packed(job: ConversionJob, uri: str) -> str:
    """The name of the source that a packed file was made of."""
    name = uri.rpartition("/")[2].rpartition("-")[0]
    return next((source.name for source in job.sources if _name(job, source) == name), uri)


def check_record(ref: Reference, data: bytes) -> None:
    """Raises RawDataError unless data is the record of a packed file that a row refers to."""
    if crc32c(data) != ref.columns[CRC32C]:
        raise RawDataError(
            f"{ref.file.uri} is damaged at byte {ref.offset}. Remove it, and run the command again."
        )


def remove_packed_files(job: ConversionJob, split: str, *, of_job: bool = False) -> None:
    """Removes the packed files of a split, also those that earlier plans and killed workers left.
    of_job: only those of this plan."""
    if not isinstance(job.converter, Packer):
        return
    directory = job.path("_scratch")
    of_sources = {_name(job, source) for source in job.sources_of(split)}
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
) -> Iterator[References]:
    name = _name(job, source)
    source = replace(source, most_unusable=job.most_rejected)
    for number, window in enumerate(packer.windows(open_storage(source.uri), source)):
        path = job.path(f"_scratch/{name}-{number}")
        table = _find_table(job.output, path) if write else None
        if table is None:
            pack = packer.pack(source, number, window)
            table = _table(source, pack)
            # The caller refuses more. A run that allows them has a longer window of this number.
            if write and len(pack.unusable) <= source.most_unusable:
                with job.output.publish(path) as sink:
                    for piece in (*pack.payloads, _zipped(table)):
                        sink.write(piece)
                    _check_unchanged(source)  # before the file appears
        yield _references(source, path, table)
    _check_unchanged(source)  # if it became shorter, a window may be missing


def _name(job: ConversionJob, source: Source) -> str:
    """The name of a source's packed files, without their number."""
    fields = json.dumps(dict(job.converter.digest_fields()), sort_keys=True)
    files = (f"{file.uri}\0{file.stat.bytes}\0{file.stat.version}" for file in files_of(source))
    place = f"{source.split}\0{source.offset}\0{source.bytes}"
    return f"{source.split}.{_digest(str(_VERSION), fields, place, *files):016x}"


def _digest(*parts: str) -> int:
    joined = encoded("\0\0".join(parts))
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "big")


def _table(source: Source, pack: Pack) -> dict[str, np.ndarray]:
    """Everything that references to the records of a pack need, by column."""
    files = {file: number for number, file in enumerate(files_of(source))}
    crcs = np.array([crc32c(payload) for payload in pack.payloads], np.int64)
    return {
        "key": column(pack.keys),
        "size": np.array([len(payload) for payload in pack.payloads], np.int64),
        **{f"column {name}": values for name, values in {**pack.columns, CRC32C: crcs}.items()},
        "unusable": np.array(
            [(files[each.file], each.offset) for each in pack.unusable], np.int64
        ).reshape(-1, 2),
        "unusable key": column(each.key for each in pack.unusable),
        "unusable error": column(each.error for each in pack.unusable),
    }


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


def _references(source: Source, path: str, table: Mapping[str, np.ndarray]) -> References:
    """References to the records of a packed file, then those to unusable raw data."""
    files = files_of(source)
    size = table["size"]
    columns = {
        name.removeprefix("column "): values
        for name, values in table.items()
        if name.startswith("column ")
    }
    # a file that is packed again is no change of the raw data
    stamp = _digest(*(file.stat.version for file in files))
    records = References.in_file(
        File(path, Stat(sum(file.stat.bytes for file in files), None, stamp)),  # of the raw data
        key=table["key"],
        offset=np.cumsum(size) - size,
        size=size,
        error=np.zeros(len(size), "S1"),
        columns=columns,
    )
    none = dict.fromkeys(columns, 0)
    texts = (table[name].tolist() for name in ("unusable key", "unusable error"))
    unusable = [
        Reference(decoded(key), files[file], offset, 0, error.decode(), none)
        for (file, offset), key, error in zip(table["unusable"].tolist(), *texts, strict=True)
    ]
    return concat([records, References.of(unusable)])


def stats_of(files: Sequence[File]) -> Sequence[Stat]:
    """What the storage reports about raw files now."""
    return in_parallel(lambda file: open_storage(file.uri).stat(file.uri), files)


def _check_unchanged(source: Source) -> None:
    files = files_of(source)
    for file, stat in zip(files, stats_of(files), strict=True):
        if not stat.agrees_with(file.stat):
            raise RawDataError(
                f"{file.uri} has {stat}; it had {file.stat} when the command started. It changed "
                "during the conversion. Restore it, or run the same command again to read the new "
                "version."
            )
