"""Records in memory: of arrays, where row i of each is record i, or of a few examples with a schema
and class names.

For tests, demos and data that fits in memory.

open_dataset makes these Records from a mapping. Arrays are not copied, so a memory-mapped .npy file
works as well; each row is checked against its checksum on delivery, in case it has changed since.
NumPy only."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pipeline.description import Description
from pipeline.errors import CorruptRecordError, EmptySplitError, OptionError, SchemaError
from pipeline.shards.example import Value, encode_example
from pipeline.shards.frames import crc32c
from pipeline.shards.naming import hex_digest
from pipeline.shards.schema import Labels, Schema
from pipeline.sources.records import (
    RECORD_OBJECT_BYTES,
    Groups,
    ReadDirectly,
    ReadWhenDue,
    Record,
    RecordsInfo,
)
from pipeline.spec import feature_specs

PIECE_BYTES = 16 * 1024**2  # gathered at a time from an array that is not contiguous


class ArrayRecords(ReadDirectly):
    """Arrays with the same first dimension: see Records. A payload is the fields' bytes, ordered by
    field name.

    Opening reads every row once to compute the checksums (~1 us per row, and 1 s per 5 GB)."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = {name: _array(name, arrays[name]) for name in sorted(arrays, key=str)}
        count = _checked_length(self._arrays)
        layout = np.dtype(
            [(name, array.dtype, array.shape[1:]) for name, array in self._arrays.items()]
        )
        feature_specs(layout)
        self._record_bytes = layout.itemsize
        rows = max(1, PIECE_BYTES // layout.itemsize)
        pieces = (np.arange(at, min(at + rows, count)) for at in range(0, count, rows))
        crcs = (crc32c(payload) for ids in pieces for payload in self._payloads(ids))
        self._crcs = np.fromiter(crcs, np.uint32, count)
        what = f"{count} {np.lib.format.dtype_to_descr(layout)}\n".encode()
        self.info = RecordsInfo(
            name=f"arrays ({', '.join(self._arrays)})",
            fingerprint=hex_digest(what + self._crcs.astype("<u4").tobytes()),
            num_records=count,
            num_bytes=count * layout.itemsize,
            layout=layout,
            crcs=self._crcs,
        )

    def weigh(self, record_ids: np.ndarray) -> int:
        return len(record_ids) * (self._record_bytes + RECORD_OBJECT_BYTES)

    def read(self, groups: Groups, ahead_bytes: int = 0) -> ReadWhenDue:
        """See Records. A row that has changed since the arrays were opened is returned as a
        CorruptRecordError.

        Ignores ahead_bytes: reading rows together would not be faster."""
        return ReadWhenDue(self._rows, groups)

    def _rows(self, record_ids: np.ndarray) -> list[Record]:
        """Copies of these records as they are now."""
        expected = self._crcs[record_ids].tolist()
        return [
            (payload, crc)
            if (crc := crc32c(payload)) == due
            else self._changed(record_id, crc, due)
            for record_id, payload, due in zip(
                record_ids.tolist(), self._payloads(record_ids), expected, strict=True
            )
        ]

    def where(self, record_id: int) -> str:
        return f"{self.info.name}, row {record_id}"

    def _changed(self, record_id: int, crc: int, due: int) -> CorruptRecordError:
        return CorruptRecordError(
            f"{self.where(record_id)}: crc32c is {crc:08x} and was {due:08x} when the arrays were "
            "opened. They have been written to since: pass a copy, or open them again."
        )

    def _payloads(self, record_ids: np.ndarray) -> Iterator[bytes]:
        # The join makes the only copy of a row: slicing a memoryview costs 0.1 us and copies
        # nothing.
        return map(
            b"".join,
            zip(*(_row_bytes(array, record_ids) for array in self._arrays.values()), strict=True),
        )


def _row_bytes(array: np.ndarray, record_ids: np.ndarray) -> Iterator[memoryview]:
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array[record_ids])
        record_ids = np.arange(len(record_ids))
    view = array.reshape(-1).view(np.uint8).data
    size = array.nbytes // len(array) if len(array) else 0
    return (view[at : at + size] for at in (record_ids * size).tolist())


def _array(name: str, rows: Any) -> np.ndarray:
    try:
        return np.asarray(rows)
    except ValueError as e:
        raise SchemaError(
            f"{name!r} is not an array: {e} Pad rows of different lengths, or write them as a "
            "dataset."
        ) from e


def _checked_length(arrays: Mapping[str, np.ndarray]) -> int:
    if not arrays:
        raise OptionError(
            "there are no arrays. Give at least one, such as {'image': images, 'label': labels}."
        )
    for name, array in arrays.items():
        if not isinstance(name, str) or name[:1] in ("", "_"):
            raise OptionError(
                f"an array has the name {name!r}; names must be non-empty strings without _ at "
                "their beginning, which is reserved."
            )
        if not array.ndim:
            raise OptionError(
                f"{name!r} is a single value, {array.dtype}. Give an array with one row per record."
            )
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r} {length}" for name, length in lengths.items())
        raise OptionError(
            f"the arrays have different numbers of rows: {listed}. Row i of each is record i: trim "
            "them."
        )
    length = next(iter(lengths.values()))
    if not length:
        raise EmptySplitError(
            f"the arrays ({', '.join(arrays)}) have no rows, so there is nothing to read."
        )
    for name, array in arrays.items():
        if array.dtype.kind in "OU":
            raise SchemaError(
                f"{name!r} is an array of {array.dtype}, whose values are not bytes of a fixed "
                f"length. For text, give np.char.encode({name}, 'utf-8'). Pad rows of different "
                "lengths, or write them as a dataset."
            )
    return length


class ExampleRecords(ReadDirectly):
    """Example i as record i, encoded with this schema as a conversion would: see Records.

    For data that a program generates: there is no file to check, so checksums only prove that each
    record was delivered once. places: what messages call each of them; default: their numbers.
    description: what their numbers mean; default: the schema and the labels. Raises EmptySplitError
    without examples, and SchemaError for one that does not match the schema."""

    def __init__(
        self,
        name: str,
        schema: Schema,
        examples: Iterable[Mapping[str, Value]],
        labels: Labels | None = None,
        totals: Mapping[str, int] | None = None,
        places: Sequence[str] = (),
        description: Description | None = None,
    ) -> None:
        self._places = places
        self._payloads = [encode_example(schema, example) for example in examples]
        if not self._payloads:
            raise EmptySplitError(f"{name} has no records, so there is nothing to read.")
        lengths = np.array(list(map(len, self._payloads)), np.uint32)
        self._crcs = np.array(list(map(crc32c, self._payloads)), np.uint32)
        self.info = RecordsInfo(
            name=name,
            fingerprint=hex_digest(b"".join(self._payloads)),
            num_records=len(self._payloads),
            num_bytes=int(lengths.sum()),
            layout=schema,
            labels=labels,
            crcs=self._crcs,
            lengths=lengths,
            totals=totals or {},
            describe=None if description is None else partial(replace, description),
        )

    def read(self, groups: Groups, ahead_bytes: int = 0) -> ReadWhenDue:
        """See Records. Ignores ahead_bytes: everything is in memory."""
        return ReadWhenDue(self._proven, groups)

    def _proven(self, record_ids: np.ndarray) -> list[Record]:
        """These records."""
        payloads = map(self._payloads.__getitem__, record_ids.tolist())
        return list(zip(payloads, self._crcs[record_ids].tolist(), strict=True))

    def where(self, record_id: int) -> str:
        return self._places[record_id] if self._places else f"{self.info.name}, record {record_id}"
