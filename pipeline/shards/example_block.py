"""Encodes the tf.train.Examples of many records with NumPy: the bytes of encode_example, 10 to 100
times as fast.

A block of records is a matrix of bytes. Its rows begin as copies of what the records have in
common; then each column writes its bytes of all rows and, if their number varies, a mask of those
that count. Long values are not in it: they are copied between its parts, one by one. For the wire
format see example.py."""

from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple

import numpy as np

from pipeline.errors import SchemaError
from pipeline.shards.example import LIST_TAG, Ragged, entry_head, varint
from pipeline.shards.schema import Dtype, Feature, Schema

_BLOCK_BYTES = 1 << 20  # of a matrix, so that it stays in the cache; and at most so many rows:
_BLOCK_ROWS = 4096
_LONG = 256  # bytes
_INTEGERS_AT_ONCE = 1 << 15


class Blobs(NamedTuple):
    """One bytes value per record, cut out of `data`, contiguous uint8, which they may share.
    begins and sizes: int64 [n]."""

    data: np.ndarray
    begins: np.ndarray
    sizes: np.ndarray


Column = np.ndarray | Ragged | Blobs


def encode_examples(schema: Schema, columns: Mapping[str, Column]) -> tuple[np.ndarray, np.ndarray]:
    """The serialised tf.train.Examples of n records: the bytes that encode_example makes of each,
    one record after the other, uint8; and their sizes, int64 [n].

    columns: for every feature, int64 or float32 [n, *shape]; Ragged of these if the shape is
    (None,); Blobs for bytes of shape (). Smaller signed integers count as int64.

    Raises SchemaError for a feature that is missing, unknown, or of another dtype, shape or number
    of records."""
    num_records = _check(schema, columns)
    if not num_records:
        return np.empty(0, np.uint8), np.empty(0, np.int64)
    values = [_values(schema.features[name], columns[name]) for name, _ in schema.encoded_keys]
    row_bytes = sum(map(_short_bytes, values)) // num_records
    num_rows = min(_BLOCK_ROWS, _BLOCK_BYTES // (row_bytes + 1) + 1)
    blocks = [
        _block(schema, [_rows(each, slice(begin, begin + num_rows)) for each in values])
        for begin in range(0, num_records, num_rows)
    ]
    if len(blocks) == 1:  # long values are not copied again
        return blocks[0]
    data, sizes = zip(*blocks, strict=True)
    return np.concatenate(data), np.concatenate(sizes)


def _check(schema: Schema, columns: Mapping[str, Column]) -> int:
    """The number of records. Raises SchemaError."""
    num_records = None
    for key in sorted(columns.keys() | schema.features.keys()):
        if key not in schema.features:
            raise SchemaError(
                f"{key!r} is not in schema {schema.name!r} ({', '.join(sorted(schema.features))})."
            )
        dtype, shape = _kind(columns[key]) if key in columns else ("missing", ())
        if num_records is None:
            num_records = next(iter(shape), None)
        feature = schema.features[key]
        if (dtype, shape) != (feature.dtype, (num_records, *feature.shape)):
            found = _described(dtype, shape) if key in columns else dtype
            first = "records" if num_records is None else num_records
            needed = _described(feature.dtype, (first, *feature.shape))
            raise SchemaError(f"{key!r} is {found}; schema {schema.name!r} needs {needed}.")
    return num_records or 0


def _kind(column: Column) -> tuple[str, tuple[int | None, ...]]:
    """Its dtype and shape."""
    if isinstance(column, Blobs):
        return "bytes", (len(column.sizes),)
    if isinstance(column, Ragged):
        dtype, shape = column.values.dtype, (len(column.lengths), None)
    else:
        dtype, shape = column.dtype, column.shape
    return "int64" if dtype.kind == "i" else dtype.name, shape


def _described(dtype: str, shape: Sequence[int | str | None]) -> str:
    return f"{dtype} [{', '.join('any' if size is None else str(size) for size in shape)}]"


def _values(feature: Feature, column: Column) -> np.ndarray | Blobs:
    """The column as uint64 [n], float32 [n, k], or the bytes of its lists."""
    if isinstance(column, Blobs):
        assert (column.begins + column.sizes).max(initial=0) <= len(column.data)
        return column
    if isinstance(column, Ragged):
        values, counts = column
        assert counts.sum() == len(values)
    else:
        counts = np.full(len(column), feature.num_values, np.int64)
        if feature.dtype == "float32":
            return column.reshape(len(column), *counts[:1]).astype("<f4", copy=False)
        values = column.reshape(-1)
        if feature.num_values == 1:
            return values.astype(np.int64, copy=False).view(np.uint64)
    if feature.dtype == "int64":
        return _packed(values, counts)
    sizes = counts.astype(np.int64) * 4
    return Blobs(values.astype("<f4").view(np.uint8), np.cumsum(sizes) - sizes, sizes)


def _packed(integers: np.ndarray, counts: np.ndarray) -> Blobs:
    """The varints of lists, of which each has `counts` of the integers."""
    data, sizes = [np.empty(0, np.uint8)], [np.zeros(1, np.int64)]
    for begin in range(0, len(integers), _INTEGERS_AT_ONCE):
        numbers = integers[begin : begin + _INTEGERS_AT_ONCE]
        small = numbers.min() >= 0 and numbers.max() < 2**32
        numbers = numbers.astype(np.uint32) if small else numbers.astype(np.int64).view(np.uint64)
        matrix, mask = _matrix([_Varints(b"", numbers)], len(numbers))
        varints = matrix.reshape(-1)
        # a third of the time of varints[mask], which is made for long runs
        data.append(varints if mask is None else varints.take(np.flatnonzero(mask)))
        sizes.append(_varint_sizes(numbers))
    ends = np.cumsum(np.concatenate(sizes))
    bounds = ends[np.append(0, np.cumsum(counts))]
    return Blobs(np.concatenate(data), bounds[:-1], np.diff(bounds))


def _short_bytes(values: np.ndarray | Blobs) -> int:
    """Bytes of what is not long."""
    if isinstance(values, Blobs):
        return int(values.sizes.sum(where=values.sizes <= _LONG))
    return values.nbytes


def _rows(values: np.ndarray | Blobs, rows: slice) -> np.ndarray | Blobs:
    if isinstance(values, Blobs):
        return Blobs(values.data, values.begins[rows], values.sizes[rows])
    return values[rows]


class _Varints:
    """The varint of a number in each row, after a prefix. optional: neither of them for 0."""

    def __init__(self, prefix: bytes, numbers: np.ndarray, optional: bool = False) -> None:
        first, last = varint(int(numbers.min())), varint(int(numbers.max()))
        self.common = prefix + (last if first == last else bytes(len(last)))
        self.varies = optional or len(first) < len(last)
        self._place = len(prefix)
        self._end = self._place if first == last else len(self.common)
        self._numbers = numbers
        self._optional = optional

    def write(self, matrix: np.ndarray, mask: np.ndarray, begin: int) -> None:
        rest = self._numbers
        for place in range(begin + self._place, begin + self._end):
            if rest is not self._numbers and self.varies:
                mask[:, place] = rest > 0
            more = (rest > 0x7F).view(np.uint8) << 7
            matrix[:, place] = rest.astype(np.uint8) | more
            rest = rest >> 7
        if self._optional:
            mask[:, begin : begin + len(self.common)] &= self._numbers[:, None] > 0


class _Floats:
    """The float32 [rows, k] after a prefix."""

    varies = False

    def __init__(self, prefix: bytes, values: np.ndarray) -> None:
        self.common = prefix + bytes(values[0].nbytes)
        self._place = len(prefix)
        self._values = values

    def write(self, matrix: np.ndarray, _mask: np.ndarray, begin: int) -> None:
        place = np.ndarray(
            self._values.shape, "<f4", matrix, begin + self._place, (matrix.shape[1], 4)
        )
        place[:] = self._values


class _Bytes:
    """A short text in each row."""

    def __init__(self, blobs: Blobs) -> None:
        self.common = bytes(int(blobs.sizes.max()))
        self.varies = int(blobs.sizes.min()) < len(self.common)
        self._blobs = blobs

    def write(self, matrix: np.ndarray, mask: np.ndarray, begin: int) -> None:
        data, begins, sizes = self._blobs
        place = np.arange(len(self.common))
        columns = slice(begin, begin + len(place))
        if len(place):
            matrix[:, columns] = data.take(begins[:, None] + place, mode="clip")
        if self.varies:
            mask[:, columns] = place < sizes[:, None]


_Part = _Varints | _Floats | _Bytes


def _block(schema: Schema, columns: Sequence[np.ndarray | Blobs]) -> tuple[np.ndarray, np.ndarray]:
    """The records of some rows, and their sizes."""
    sizes: Any = 0
    parts = list[_Part | Blobs]()
    for (name, key), values in zip(schema.encoded_keys, columns, strict=True):
        entry, num_bytes = _entry(key, schema.features[name].dtype, values)
        parts += entry
        sizes = sizes + num_bytes
    parts.insert(0, _Varints(b"\x0a", sizes))
    pieces = list[Blobs]()
    for long, group in groupby(parts, lambda part: isinstance(part, Blobs)):
        some: Any = list(group)
        pieces += some if long else [_cut(*_matrix(some, len(sizes)))]
    return _joined(pieces), sizes + 1 + _varint_sizes(sizes)


def _entry(
    key: bytes, dtype: Dtype, values: np.ndarray | Blobs
) -> tuple[list[_Part | Blobs], np.ndarray]:
    """A feature's entries in the parts of records, and their sizes."""
    if isinstance(values, Blobs):
        sizes = values.sizes
        body = values if sizes.max() > _LONG else _Bytes(values)
    elif dtype == "float32":
        size = values[0].nbytes
        inner = b"\x0a" + varint(size) if size else b""
        body = _Floats(entry_head(key, dtype, len(inner) + size) + inner, values)
        return [body], np.full(len(values), len(body.common))
    else:
        sizes = _varint_sizes(values)
        body = _Varints(b"", values)
    optional = dtype != "bytes" and not sizes.all()
    lists = 1 + _varint_sizes(sizes) + sizes
    if optional:
        lists[sizes == 0] = 0
    features = 1 + _varint_sizes(lists) + lists
    head = b"\x0a" + varint(len(key)) + key + b"\x12"
    entries = len(head) + _varint_sizes(features) + features
    parts = [
        _Varints(b"\x0a", entries),
        _Varints(head, features),
        _Varints(LIST_TAG[dtype], lists),
        _Varints(b"\x0a", sizes, optional),
        body,
    ]
    return parts, 1 + _varint_sizes(entries) + entries


def _varint_sizes(numbers: np.ndarray) -> np.ndarray:
    """Bytes of each varint, int64."""
    sizes = np.ones(len(numbers), np.int64)
    for extra in range(1, len(varint(int(numbers.max(initial=0))))):
        sizes += numbers >= 1 << 7 * extra
    return sizes


def _matrix(parts: Sequence[_Part], num_rows: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Bytes of the parts in each row, one row after the other; and which of them count, None for
    all."""
    common = b"".join(part.common for part in parts)
    matrix = np.empty((num_rows, len(common)), np.uint8)
    matrix[:] = np.frombuffer(common, np.uint8)
    varies = any(part.varies for part in parts)
    mask = np.ones(matrix.shape if varies else (0, 0), bool)
    begin = 0
    for part in parts:
        part.write(matrix, mask, begin)
        begin += len(part.common)
    return matrix, mask if varies else None


def _cut(matrix: np.ndarray, mask: np.ndarray | None) -> Blobs:
    """The bytes of each row that count."""
    if mask is None:
        sizes = np.full(len(matrix), matrix.shape[1])
        data = matrix.reshape(-1)
    else:
        sizes = np.count_nonzero(mask, axis=1)
        data = matrix[mask]
    return Blobs(data, np.cumsum(sizes) - sizes, sizes)


def _joined(pieces: Sequence[Blobs]) -> np.ndarray:
    """The pieces of each row, one row after the other."""
    if len(pieces) == 1:
        return pieces[0].data
    cuts = list[list[memoryview]]()
    for data, begins, sizes in pieces:
        view = memoryview(data.data)
        ends = (begins + sizes).tolist()
        cuts.append([view[at:end] for at, end in zip(begins.tolist(), ends, strict=True)])
    joined = bytearray().join(chain.from_iterable(zip(*cuts, strict=True)))
    return np.frombuffer(joined, np.uint8)  # writable, unlike that of bytes
