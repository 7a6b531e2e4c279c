"""The rows of one shard in packed files: reads a range of each file, and merges them."""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_jobs.converter import ConversionJob, Source, files_of
from beam_jobs.digests import hash_sum
from beam_jobs.ledger import Rejected
from beam_jobs.packed_rows import (
    CHECK_BYTES,
    PackedFile,
    PackedRows,
    in_file_order,
    keys_of,
    merged,
    places_of,
    stored_bytes,
    trailers_of,
)
from beam_jobs.plan import SplitPlan
from beam_jobs.raw_rows import RAW_ROW, raw_rows
from beam_jobs.references import DUPLICATE, Reference, decoded
from pipeline.errors import RawDataError
from pipeline.shards.frames import crc32c
from pipeline.shards.naming import add_digests

_READ_BYTES = 1 << 27  # of all files together, so that a shard of the usual size is read at once
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class PackedRecords:
    """Some records of a shard, in order. trailers: see packed_rows.trailer_type."""

    keys: Sequence[bytes]
    payloads: Sequence[bytes]
    trailers: np.ndarray


class PackedShard:
    """All rows of a shard, in any number of parts.

    good: bool [rows], of those that the scan and the plan do not reject. num_rejected: how many
    they reject. handled: the sum of all ranks."""

    def __init__(self, plan: SplitPlan, parts: Sequence[PackedRows]) -> None:
        self._plan = plan
        self._parts = in_file_order(parts)
        self._part_of = np.zeros(0, np.int64)
        if parts:
            self._part_of, _ = merged(self._parts, plan.job.most_rejected)
        self._row_of = self._ordered([np.arange(len(part)) for part in self._parts])
        self.good = self._ordered([*map(_is_written, self._parts)]).astype(bool)
        self.num_rejected = int((~self.good).sum())
        self.handled = add_digests(hash_sum(part.rank) for part in parts)

    def raw_rows(self) -> np.ndarray:
        """RAW_ROW [rows], without checksums."""
        job, split = self._plan.job, self._plan.split
        return self._ordered([raw_rows(job.seed, split, part) for part in self._parts], RAW_ROW)

    def crcs(self) -> np.ndarray:
        """uint32 [rows]: checksums of the records, 0 for rejected rows. Reads all."""
        crcs = np.zeros(len(self.good), np.uint32)
        parts = [each.trailers["crc32c"] for each in self.records()]
        crcs[self.good] = np.concatenate([np.zeros(0, np.uint32), *parts])
        return crcs

    def name_of(self, row: int) -> str:
        """The name of the source that a row is from."""
        return source_of(self._plan.job, self._parts[self._part_of[row]].file).name

    def rejected(self) -> Iterator[Rejected]:
        """The entries of rejected rows, in order. Reads each of them."""
        for row in np.flatnonzero(~self.good).tolist():
            at = int(self._row_of[row])
            part = self._parts[self._part_of[row]].part(at, at + 1)
            (stored,) = stored_bytes([part])
            yield _rejected(self._plan.job, part, stored)

    def records(self) -> Iterator[PackedRecords]:
        """The records that are written, in order. Raises RawDataError if one is damaged."""
        stored = self._ordered([part.stored for part in self._parts])
        chunk = np.cumsum(stored) // _READ_BYTES
        cuts = [0, *(np.flatnonzero(np.diff(chunk)) + 1).tolist(), len(chunk)]
        for begin, end in itertools.pairwise(cuts):
            if begin < end:
                yield from self._read(slice(begin, end))

    def _read(self, rows: slice) -> Iterator[PackedRecords]:
        """The records among some consecutive rows, whose parts are in memory."""
        numbers = np.unique(self._part_of[rows])
        part_of = np.searchsorted(numbers, self._part_of[rows])
        places = places_of(part_of, len(numbers))
        parts = [
            self._parts[number].part(first := int(self._row_of[rows][place[0]]), first + len(place))
            for number, place in zip(numbers.tolist(), places, strict=True)
        ]
        data = [*stored_bytes(parts)]
        in_order = np.argsort(np.concatenate(places))
        ends = np.concatenate([part.ends for part in parts])[in_order]
        begins = ends - np.concatenate([part.stored for part in parts])[in_order]
        sizes = np.concatenate([part.size for part in parts])[in_order]
        all_keys = [*itertools.chain.from_iterable(map(keys_of, parts, data))]
        trailers = np.concatenate([*map(trailers_of, parts, data)])[in_order]
        good = np.flatnonzero(self.good[rows])
        for some in np.split(good, range(_ROWS_AT_ONCE, len(good), _ROWS_AT_ONCE)):
            of = part_of[some].tolist()
            bounds = zip(of, begins[some].tolist(), ends[some].tolist(), strict=True)
            stored = [data[part][begin : end - CHECK_BYTES] for part, begin, end in bounds]
            for row in _damaged(stored, trailers[some]):
                raise _damage(parts[of[row]], int(begins[some][row]))
            payloads = [row[:size] for row, size in zip(stored, sizes[some].tolist(), strict=True)]
            keys = [all_keys[i] for i in in_order[some].tolist()]
            yield PackedRecords(keys, payloads, trailers[some])

    def _ordered(self, values: Sequence[np.ndarray], dtype: Any = np.int64) -> np.ndarray:
        """The values of all rows, in order. values: those of each part."""
        ordered = np.zeros(len(self._part_of), dtype)
        for place, own in zip(places_of(self._part_of, len(self._parts)), values, strict=True):
            ordered[place] = own
        return ordered


def _is_written(part: PackedRows) -> np.ndarray:
    """bool [rows]: those that are neither rejected nor duplicates."""
    good = part.good
    good[np.array(part.repeats, np.int64) - part.first] = False
    return good


def _rejected(job: ConversionJob, part: PackedRows, stored: bytes) -> Rejected:
    """The entry of one row. stored: see packed_rows."""
    source = source_of(job, part.file)
    file, error = source.file, DUPLICATE
    (key,), trailers = keys_of(part, stored), trailers_of(part, stored)
    if _damaged([stored[:-CHECK_BYTES]], trailers):
        raise _damage(part, 0)
    trailer = trailers[0]
    if not part.size[0]:
        number, error = json.loads(stored[: -len(key) - trailer.dtype.itemsize])
        file = files_of(source)[number]
    ref = Reference(decoded(key), file, int(trailer["offset"]), 0, error, {})
    return Rejected.of(ref, "scan", error)


def _damaged(rows: Sequence[bytes], trailers: np.ndarray) -> list[int]:
    """The numbers of rows that are not as they were written. rows: without their checks."""
    checks = np.fromiter(map(crc32c, rows), np.uint32, len(rows))
    return np.flatnonzero(checks != trailers["check"]).tolist()


def _damage(part: PackedRows, begin: int) -> RawDataError:
    """The error of a damaged row. begin: its place in the part."""
    return RawDataError(
        f"{part.file.file.uri} is damaged at byte {part.begin + begin}. Remove it, and run the "
        "command again."
    )


def source_of(job: ConversionJob, file: PackedFile) -> Source:
    """The source that a packed file was made of."""
    return next(
        source
        for source in job.sources
        if (source.uri, source.offset) == (file.source, file.offset)
    )
