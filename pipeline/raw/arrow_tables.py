"""Parquet, Arrow and Feather files: what their columns hold, and their rows, with little of a file
in memory.

`rows` imports this module only to read such a file, because pyarrow is in the extra [tables]. Texts
of errors about cells are part of plan digests."""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from decimal import Decimal
from fractions import Fraction
from typing import Any, BinaryIO

import pyarrow
from pyarrow import ipc, parquet, types

from pipeline.errors import RawDataError, StorageError
from pipeline.raw.cells import RESOLUTIONS, unique
from pipeline.sizes import MiB, format_bytes
from pipeline.storage.schemes import open_storage

MAX_BATCH_BYTES = 64 * MiB
_USUAL_BATCH_BYTES = 8 * MiB  # of numbers, which take up to ten times as much as Python objects
VALUE_BYTES = 8
_MOST_ZEROS = 38  # at the end of an integer, or after its point; the file may state a billion
_BOMB_BYTES = 1024 * MiB
_BOMB_RATIO = 100
_FEW_ROWS = 4096
_ALL_ROWS = range(1, sys.maxsize)


@contextlib.contextmanager
def opened(uri: str) -> Iterator[BinaryIO]:
    """The file. Raises RawDataError where pyarrow cannot read it."""
    try:
        with open_storage(uri).open(uri) as file:
            yield file
    except StorageError:
        raise
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as e:
        raise RawDataError(
            f"{uri} cannot be read: {str(e).splitlines()[0][:200]} Write it again."
        ) from e


def arrow_cells(uri: str) -> dict[str, Sequence[Any]]:
    """Cells such as each column may hold, or a tuple of its classes' names; None for texts,
    to be looked at.

    Raises RawDataError."""
    with opened(uri) as file:
        schema = parquet.read_schema(file) if _is_parquet(uri) else _stream(file)[0]
    named = class_names(schema)
    return {
        name: [named[name]] if name in named else _examples(plain_type(kind), unit_of(kind))
        for name, kind in zip(unique(schema.names, uri), schema.types, strict=True)
    }


def arrow_rows(
    uri: str, columns: Set[str] | None, units: Mapping[str, str]
) -> Iterator[tuple[dict[str, Any], int]]:
    """The cells of each row by column, and their size in bytes. columns: those to read. units: of
    times. Raises RawDataError."""
    with opened(uri) as file:
        for batch in batches_of(file, uri, columns):
            named = class_names(batch.schema)
            lists = list[list[Any]]()
            for name, array in zip(batch.schema.names, batch.columns, strict=True):
                scale = scale_of(uri, name, unit_of(array.type), units.get(name))
                lists.append(cells_of(array, named.get(name), scale))
            for cells in zip(*lists, strict=True):
                yield dict(zip(batch.schema.names, cells, strict=True)), sum(map(size_of, cells))


def batches_of(
    file: BinaryIO, uri: str, columns: Set[str] | None, rows: range = _ALL_ROWS
) -> Iterator[Any]:
    """The record batches of an open file, each with little memory. rows: numbers of those in whole
    row groups of Parquet; others are read as a whole. Raises RawDataError."""
    if _is_parquet(uri):
        return _parquet_batches(file, uri, columns, rows)
    return _arrow_batches(file, uri, columns)


def row_groups(uri: str) -> list[tuple[int, int]]:
    """How many rows and bytes the row groups of a Parquet file have. Raises RawDataError."""
    with opened(uri) as file:
        metadata = parquet.read_metadata(file)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return [(group.num_rows, group.total_byte_size) for group in groups]


def _is_parquet(uri: str) -> bool:
    return uri.lower().endswith(".parquet")


def _parquet_batches(
    file: BinaryIO, uri: str, columns: Set[str] | None, wanted: range
) -> Iterator[Any]:
    """Page by page, and repeated texts as dictionaries: a small file may repeat a long text a
    billion times."""
    paged: dict[str, Any] = {"pre_buffer": False, "buffer_size": MiB}
    first = parquet.ParquetFile(file, **paged)
    columns_to_read = _selected(first.schema_arrow, columns)
    end = 1
    for number in range(first.num_row_groups):
        group = first.metadata.row_group(number)
        begin, end = end, end + group.num_rows
        if begin not in wanted:
            continue
        chunks = [
            chunk
            for chunk in map(group.column, range(group.num_columns))
            if _column_of(chunk) in columns_to_read
        ]
        size = sum(_chunk_bytes(chunk, group, uri) for chunk in chunks)
        rows = group.num_rows * _USUAL_BATCH_BYTES // max(1, size)
        repeated = [chunk.path_in_schema for chunk in chunks if _is_repeated(chunk)]
        reader = parquet.ParquetFile(
            file, metadata=first.metadata, read_dictionary=repeated, **paged
        )
        yield from reader.iter_batches(
            max(1, min(group.num_rows, rows)), row_groups=[number], columns=[*columns_to_read]
        )


def _selected(schema: Any, columns: Set[str] | None) -> dict[str, None]:
    """The names of those columns, in the order of the file."""
    return dict.fromkeys(name for name in schema.names if columns is None or name in columns)


def _column_of(chunk: Any) -> str:
    return chunk.path_in_schema.partition(".")[0]


def _is_repeated(chunk: Any) -> bool:
    """Whether all or most of it is a dictionary, which pyarrow would keep in memory as a whole."""
    is_small = chunk.total_uncompressed_size <= MAX_BATCH_BYTES // 2
    return (
        is_small
        and chunk.physical_type == "BYTE_ARRAY"
        and not any("DELTA" in each for each in chunk.encodings)
    )


def _chunk_bytes(chunk: Any, group: Any, uri: str) -> int:
    """The size of a column in a row group. Raises RawDataError where one row, or what has to be
    read at once, is too large."""
    size = max(chunk.total_uncompressed_size, chunk.num_values * VALUE_BYTES)
    is_bomb = chunk.total_uncompressed_size > max(
        _BOMB_BYTES, _BOMB_RATIO * chunk.total_compressed_size
    )
    _check_size(uri, _column_of(chunk), size if is_bomb else size // max(1, group.num_rows))
    return size


def _check_size(uri: str, column: str, size: int) -> None:
    if size > MAX_BATCH_BYTES:
        raise RawDataError(
            f"the column {column!r} of {uri} has {format_bytes(size)} that cannot be read in "
            f"parts; allowed are {format_bytes(MAX_BATCH_BYTES)}. Leave it out, or write the file "
            "with smaller values and row groups."
        )


def _stream(file: BinaryIO) -> tuple[Any, Iterator[Any]]:
    """The schema and batches of an Arrow file, or of a stream, as Hugging Face writes."""
    try:
        reader = ipc.open_file(file)
        return reader.schema, map(reader.get_batch, range(reader.num_record_batches))
    except pyarrow.ArrowInvalid:
        file.seek(0)
        stream = ipc.open_stream(file)
        return stream.schema, iter(stream)


def _arrow_batches(file: BinaryIO, uri: str, columns: Set[str] | None) -> Iterator[Any]:
    schema, batches = _stream(file)
    for batch in batches:
        selected = batch.select([*_selected(schema, columns)])
        for name in selected.schema.names:
            _check_size(uri, name, selected.column(name).nbytes)
        for begin in range(0, batch.num_rows, _FEW_ROWS):
            yield selected.slice(begin, _FEW_ROWS)


def class_names(schema: Any) -> Mapping[str, tuple[str, ...]]:
    """Those of Hugging Face's ClassLabels: the values of such a column are their numbers."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        labels = {
            name: tuple(each["names"])
            for name, each in features.items()
            if each.get("_type") == "ClassLabel"
        }
        return {name: names for name, names in labels.items() if {*map(type, names)} <= {str}}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return {}


def unit_of(kind: Any) -> str:
    """The unit of times, or lists or dictionaries of them: a resolution of RESOLUTIONS, and since
    when; "" for other types."""
    if _is_list(kind) or types.is_dictionary(kind):
        return unit_of(kind.value_type)
    if types.is_date(kind):
        return f"{'days' if types.is_date32(kind) else 'ms'} since 1970-01-01"
    if types.is_timestamp(kind):
        return f"{kind.unit} since 1970-01-01{' UTC' * bool(kind.tz)}"
    if types.is_time(kind):
        return f"{kind.unit} since midnight"
    return f"{kind.unit} of duration" if types.is_duration(kind) else ""


def _is_list(kind: Any) -> bool:
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def scale_of(uri: str, name: str, unit: str, expected: str | None) -> Fraction:
    """By what to multiply times of a unit. RawDataError if the other one counts something else."""
    if not unit or expected is None or unit == expected:
        return Fraction(1)
    (resolution, _, what), (finer, _, same) = (each.partition(" ") for each in (unit, expected))
    if what != same or finer not in RESOLUTIONS:
        raise RawDataError(
            f"the column {name!r} of {uri} has {unit}, and {expected or 'a number'} is expected. "
            "Write it so."
        )
    return Fraction(RESOLUTIONS[resolution], RESOLUTIONS[finer])


def plain_type(kind: Any) -> Any:
    """The type to read it as."""
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if unit_of(kind) and not types.is_nested(kind):
        return pyarrow.int32() if kind.bit_width == 32 else pyarrow.int64()
    if types.is_decimal(kind) and abs(kind.scale) <= _MOST_ZEROS:
        return kind  # whose integers may have any number of digits
    if types.is_decimal(kind) or types.is_float16(kind):
        return pyarrow.float64()
    if _is_list(kind):
        size = getattr(kind, "list_size", -1)  # -1: any
        return pyarrow.list_(plain_type(kind.value_type), size)
    return kind


class Time(int):
    """An example of times. unit: see unit_of."""

    unit: str


def _examples(kind: Any, unit: str = "") -> list[Any]:
    if _is_list(kind):
        sizes = [kind.list_size] if types.is_fixed_size_list(kind) else [1, 2]
        return [[item] * size for size in sizes for item in _examples(kind.value_type, unit)]
    if types.is_struct(kind):
        return [{field.name: None for field in kind}]
    if unit:
        time = Time()
        time.unit = unit
        return [time]
    if types.is_decimal(kind):
        return [0.5 if kind.scale > 0 else 0]
    if types.is_boolean(kind):
        return [False, True]
    if types.is_primitive(kind) and not types.is_interval(kind):
        return [0.5 if types.is_floating(kind) else 0]
    if "binary" in str(kind):
        return [b""]
    is_text = str(kind) in ("string", "large_string", "string_view", "null")
    return [None if is_text else {str(kind): None}]  # like a struct, what no feature can hold


def cells_of(array: Any, names: Sequence[str] | None, scale: Fraction) -> list[Any]:
    """The cells as Python objects; equal texts as one object. A number that no name has becomes
    what no feature can hold. scale: of times."""
    if types.is_dictionary(array.type):
        names, scale = cells_of(array.dictionary, None, scale), Fraction(1)
        array = array.indices
    cells = array.cast(plain_type(array.type)).to_pylist()
    if scale != 1 or "decimal" in str(array.type):
        cells = _exact(cells, scale)
    if names is None:
        return cells
    # of Hugging Face's classes, -1 is none: see encode_example of its ClassLabel
    named = {None: None, -1: None, **dict(enumerate(names))}
    return [named.get(cell, {"a class without a name": cell}) for cell in cells]


def _exact(cell: Any, scale: Fraction) -> Any:
    """Decimals and times, also in lists, as integers where they are integers."""
    if isinstance(cell, list):
        return [_exact(item, scale) for item in cell]
    if isinstance(cell, Decimal):
        return int(cell) if cell == int(cell) else cell
    if not isinstance(cell, int):
        return cell
    number = cell * scale
    return int(number) if number.denominator == 1 else float(number)


def size_of(cell: Any) -> int:
    """What a cell counts for in the size of its row."""
    if isinstance(cell, list | dict):
        return sum(map(size_of, cell.values() if isinstance(cell, dict) else cell))
    return len(cell) if isinstance(cell, str | bytes) else VALUE_BYTES
