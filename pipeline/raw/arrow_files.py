"""Parquet, Arrow and Feather files: their record batches, with little of a file in memory."""

import contextlib
from collections.abc import Iterator, Set
from typing import Any, BinaryIO

import pyarrow
from pyarrow import ipc, parquet

from pipeline.errors import RawDataError, StorageError
from pipeline.sizes import MiB, format_bytes
from pipeline.storage.schemes import open_storage

MAX_BATCH_BYTES = 64 * MiB
VALUE_BYTES = 8
_USUAL_BATCH_BYTES = 8 * MiB  # of numbers, which take up to ten times as much as Python objects
_BOMB_BYTES = 1024 * MiB
_BOMB_RATIO = 100
_FEW_ROWS = 4096
_MOST_ROWS = _USUAL_BATCH_BYTES // VALUE_BYTES


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


def schema_of(uri: str) -> Any:
    """The names and types of the columns of a file. Raises RawDataError."""
    with opened(uri) as file:
        return parquet.read_schema(file) if _is_parquet(uri) else _stream(file)[0]


def batches_of(file: BinaryIO, uri: str, columns: Set[str] | None, rows: range) -> Iterator[Any]:
    """The record batches of an open file, each small in memory. rows: numbers of those in some row
    groups of Parquet; other files are read completely. Raises RawDataError."""
    if _is_parquet(uri):
        return _parquet_batches(file, uri, columns, rows)
    return _arrow_batches(file, uri, columns)


def row_groups(uri: str) -> list[int]:
    """How many rows the row groups of a Parquet file have. Raises RawDataError."""
    with opened(uri) as file:
        metadata = parquet.read_metadata(file)
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


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
        # sizes that the file states may be too small
        rows = min(group.num_rows * _USUAL_BATCH_BYTES // max(1, size), _MOST_ROWS)
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
    is_delta = "DELTA" in "".join(chunk.encodings)
    return is_small and not is_delta and chunk.physical_type == "BYTE_ARRAY"


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
