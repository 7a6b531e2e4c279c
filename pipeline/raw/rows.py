"""Rows of csv, tsv and jsonl files as byte ranges: they can be shuffled without staying in memory,
and read again.

Rows of Parquet and Arrow files have no byte ranges: `arrow_tables` reads them. Only one row is in
memory at a time. Python's csv module parses each csv row, which may continue over lines inside
quotes. A row that it rejects ends after its first line, and the next line starts another row: a
quote that is never closed costs one line, not the rest of the file. Texts of row errors are part of
plan digests."""

import csv
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote

from pipeline.errors import InfeedError, RawDataError
from pipeline.packages import how_to_install
from pipeline.raw.cells import unique
from pipeline.shards.schema import USUAL_FORMAT, TableFormat
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import is_compressed, uncompressed

MAX_ROW_BYTES = 16 * 1024**2
ARROW_SUFFIXES = (".parquet", ".arrow", ".feather")
TEXT_TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
TABLE_SUFFIXES = (*TEXT_TABLE_SUFFIXES, *ARROW_SUFFIXES)
SEPARATORS = {";": "';'", "\t": "tab", "|": "'|'", ",": "','"}  # and how --delimiter names them
_BEGINNING = 1000
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_FIRST_ROWS = 1000  # of JSON: an object may lack columns that others have
BOM = b"\xef\xbb\xbf"

# for the process; Python's default of 128 KiB is too small for long texts
csv.field_size_limit(MAX_ROW_BYTES)


class TableRow(NamedTuple):
    """One row: its place, and its cells by column (strings in csv). error: why it cannot be read,
    or ""."""

    line: int  # its first, counted from 1
    offset: int
    size: int  # bytes, including the line break
    cells: Mapping[str, Any]
    error: str = ""
    lines: int = 1


class _RowError(ValueError):
    """A row cannot be read. The text is the error of its record."""


class _TooLongError(_RowError):
    """A row exceeds the limit."""


def suffix_of(uri: str) -> str:
    """The suffix that states the format of a table, such as ".csv", also of a .csv.gz or .CSV."""
    stem, _, last = uri.lower().rpartition(".")
    return f".{stem.rpartition('.')[2] if is_compressed(uri) else last}"


def is_table(uri: str) -> bool:
    """Whether the name is that of a table that can be read."""
    kinds = TEXT_TABLE_SUFFIXES if is_compressed(uri) else TABLE_SUFFIXES
    return suffix_of(uri) in kinds


def is_json(uri: str) -> bool:
    """Whether a table has one JSON object per line."""
    return suffix_of(uri) in (".jsonl", ".ndjson")


@dataclass(frozen=True)
class Table:
    """A file of rows. name: its path in the raw data. Its folders such as date=2026-01-01 state a
    cell of every row, as Hive and Spark write them."""

    uri: str
    format: TableFormat = USUAL_FORMAT
    name: str = ""

    @property
    def is_arrow(self) -> bool:
        """Whether it is a Parquet or Arrow file, whose columns have types."""
        return suffix_of(self.uri) in ARROW_SUFFIXES

    @property
    def arrow(self) -> Any:
        """The module that reads a Parquet or Arrow file. Raises InfeedError without pyarrow."""
        try:
            from pipeline.raw import arrow_tables
        except ImportError as e:
            raise InfeedError(
                f"reading {self.uri} needs pyarrow ({e}). Install it: {how_to_install('tables')}."
            ) from e
        return arrow_tables

    @property
    def of_folders(self) -> Mapping[str, str | None]:
        """The cells that its folders state."""
        folders = [folder for folder in self.name.split("/")[:-1] if "=" in folder]
        pairs = [[*map(unquote, folder.split("=", 1))] for folder in folders]
        unique([column for column, _ in pairs], self.uri)
        return {column: None if cell == _HIVE_NULL else cell for column, cell in pairs}

    def rows(
        self, columns: Set[str] | None = None, units: Mapping[str, str] | None = None
    ) -> Iterator[TableRow]:
        """All rows except empty lines and the header.

        columns: those to read of Parquet and Arrow, whose rows have their number as line and
        offset; None for all. units: of their times, by column; default: as they are stored. Raises
        RawDataError for a csv file without a header, for a Parquet or Arrow file that cannot be
        read, and for a time that has no such unit."""
        if self.is_arrow:
            more = self.of_folders
            rows = self.arrow.arrow_rows(self.uri, columns, units or {})
            for number, (cells, size) in enumerate(rows, start=1):
                yield TableRow(number, number, size, cells | more)
            return
        with uncompressed(open_storage(self.uri), self.uri) as file:
            yield from self.rows_in(file)

    def rows_in(self, file: BinaryIO, offset: int = 0) -> Iterator[TableRow]:
        """The rows of its file, which is csv or JSON and is open. offset: where to start, of a line
        of JSON."""
        if offset:
            return self.rows_from(file, (), offset, 0)
        return self.rows_from(file, *self.start_of(file))

    def start_of(self, file: BinaryIO) -> tuple[Sequence[str], int, int]:
        """The columns in the header, none for JSON; where the rows after it begin, and how many
        lines are before them. Raises RawDataError for a csv file without a header."""
        begin = after_mark(file)
        if b"\0" in file.readline(_BEGINNING) and not is_json(self.uri):
            raise RawDataError(f"{self.uri} seems to be UTF-16. Write it as UTF-8.")
        lines = _Lines(file, self.format.encoding, begin)
        names = () if is_json(self.uri) else self._header(self._parsed(lines))
        return names, lines.offset, lines.line

    def rows_from(
        self, file: BinaryIO, names: Sequence[str], offset: int, line: int
    ) -> Iterator[TableRow]:
        """The rows of its open file from one on. names: of its columns. offset, line: see
        start_of."""
        rows = self._parsed(_Lines(file, self.format.encoding, offset, line))
        named = rows if is_json(self.uri) else (_named(row, names) for row in rows)
        more = self.of_folders
        return (_with_folders(more, row) for row in named) if more else named

    def column_names(self) -> Sequence[str]:
        """The columns in the header of a csv file, or in the first 1,000 rows of a JSON file.

        Raises RawDataError for a csv file without a header, and for a column that is there
        twice."""
        return unique([*self._column_names(), *self.of_folders], self.uri)

    def _column_names(self) -> Sequence[str]:
        if self.is_arrow:
            return list(self.arrow.arrow_cells(self.uri))
        with uncompressed(open_storage(self.uri), self.uri) as file:
            names, *begin = self.start_of(file)
            if not is_json(self.uri):
                return names
            rows = self._parsed(_Lines(file, self.format.encoding, *begin))
            first = itertools.takewhile(
                lambda row: row.offset < MAX_ROW_BYTES, itertools.islice(rows, _FIRST_ROWS)
            )
            return list(dict.fromkeys(name for row in first for name in row.cells))

    def _parsed(self, lines: "_Lines") -> Iterator[TableRow]:
        quoting = csv.QUOTE_MINIMAL if self.format.quoted else csv.QUOTE_NONE
        parse_csv = partial(_parse_csv, delimiter=self.delimiter, quoting=quoting)
        return _rows(lines, _parse_json if is_json(self.uri) else parse_csv)

    @property
    def delimiter(self) -> str:
        """What separates its cells."""
        return self.format.delimiter or ("\t" if suffix_of(self.uri) == ".tsv" else ",")

    def _header(self, rows: Iterator[TableRow]) -> Sequence[str]:
        """The first row, after the line sep=; that Excel reads. One name may be empty, as pandas
        writes for its index."""
        header = next(rows, None)
        if header and [*header.cells.values()] == ["sep=", ""]:
            header = next(rows, None)
        if header is None or header.error:
            what = header.error if header else "it is empty"
            raise RawDataError(f"{self.uri} has no header with the names of its columns: {what}.")
        names = [*header.cells.values()]
        own = self.delimiter
        other = next((mark for mark in SEPARATORS if mark in names[0] and mark != own), None)
        if other and len(names) == 1 and self.format.delimiter is None:
            raise RawDataError(
                f"{self.uri} begins with {names[0]!r:.60}, where {SEPARATORS[other]} seems to "
                f"separate columns. Give --delimiter {SEPARATORS[other]}, or {SEPARATORS[own]} for "
                "one column."
            )
        return unique(names, self.uri)


def _with_folders(more: Mapping[str, str | None], row: TableRow) -> TableRow:
    twice = ", ".join(more.keys() & row.cells)
    error = f"{twice}: a column and a folder" if twice else row.error
    return row._replace(cells={**row.cells, **more}, error=error)


def cell_count_error(count: int, names: int) -> str:
    """The error of a row of csv with another number of cells than the header."""
    return f"{count} cells; the header has {names}"


def _named(row: TableRow, names: Sequence[str]) -> TableRow:
    if not row.error and len(row.cells) != len(names):
        return row._replace(cells={}, error=cell_count_error(len(row.cells), len(names)))
    return row._replace(cells=dict(zip(names, row.cells.values(), strict=False)))


def after_mark(file: BinaryIO) -> int:
    """Where the text of a file begins: after its byte order mark, if it has one. file: at its
    beginning."""
    return len(BOM) if file.read(len(BOM)) == BOM else 0


class _Lines:
    """The lines of a file from an offset on. line: how many are before."""

    def __init__(self, file: BinaryIO, encoding: str, offset: int, line: int = 0):
        self._file = file
        self.encoding = encoding
        self.go_to(offset, line)
        self.begin = offset  # of the last line read; at the end of the file, its size

    def go_to(self, offset: int, line: int) -> None:
        self.offset = offset
        self.line = line
        self._file.seek(offset)

    def read(self, limit: int) -> bytes:
        """The next line; b"" at the end. Skips a line over the limit, then raises _TooLongError."""
        self.begin = self.offset
        data = piece = self._file.readline(limit + 1)
        self.line += bool(data)
        self.offset += len(data)
        while len(data) > limit and piece and not piece.endswith(b"\n"):
            piece = self._file.readline(1 << 20)
            self.offset += len(piece)
        if len(data) > limit:
            raise _TooLongError(
                f"over {MAX_ROW_BYTES:,} bytes in one row. Is there a quote that is never closed?"
            )
        return data


def _rows(lines: _Lines, parse: Callable[[Iterator[str]], Mapping[Any, Any]]) -> Iterator[TableRow]:
    """Rows with numbers as column names (csv) or with their own (JSON).

    A row that fails on a later line was inside quotes at the end of each line before. A row that
    begins on one of these lines, and is inside quotes at the end of it, fails at the same place. It
    is rejected without reading that far again, which would make the time quadratic. For over-long
    rows this holds for roughly the first half."""
    doomed_to = 0
    why = ""
    while True:
        offset = lines.offset
        line = lines.line
        after_first = list[int]()
        try:
            cells = parse(_taken(lines, after_first, why if offset < doomed_to else ""))
            error = ""
        except StopIteration:
            return
        except _RowError as e:
            cells = {}
            error = str(e)
            if after_first:
                failed_at = (
                    offset + MAX_ROW_BYTES // 2 if isinstance(e, _TooLongError) else lines.begin
                )
                if failed_at > doomed_to:
                    doomed_to = failed_at
                    why = error
                lines.go_to(after_first[0], line + 1)
        if cells or error:
            size = lines.offset - offset
            yield TableRow(line + 1, offset, size, cells, error, lines.line - line)


def _taken(lines: _Lines, after_first: list[int], more: str) -> Iterator[str]:
    """The lines of one row, as its parser requests them. more: the error if it needs more than one,
    or ""."""
    left = MAX_ROW_BYTES
    while True:
        if more and after_first:
            raise _RowError(more)
        data = lines.read(left)
        if not data:
            return
        after_first.append(lines.offset)
        left -= len(data)
        yield _text(data, lines.encoding)


def _parse_csv(taken: Iterator[str], **format: Any) -> Mapping[int, str]:
    """The cells by number; {} for an empty line. format: see csv.reader. Raises StopIteration at
    the end of the file, _RowError."""
    reader = csv.reader(taken, strict=True, **format)
    try:
        cells = next(reader)
    except csv.Error as e:
        raise _RowError(f"not a csv row: {e}") from None
    return dict(enumerate(cells))


def _parse_json(taken: Iterator[str]) -> Mapping[str, Any]:
    """The object; {} for an empty line. Raises StopIteration at the end of the file, _RowError."""
    text = next(taken)
    if not text.strip():
        return {}
    try:
        cells = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as e:
        what = f"{e.msg} at character {e.pos}" if isinstance(e, json.JSONDecodeError) else str(e)
        raise _RowError(f"not JSON: {what}") from None
    if not isinstance(cells, dict) or not cells:
        raise _RowError(f"not a JSON object with columns: {text.strip()[:60]}")
    return cells


def _object(pairs: Sequence[tuple[str, Any]]) -> Mapping[str, Any]:
    cells = dict(pairs)
    if len(cells) < len(pairs):
        raise ValueError("a key is there twice")
    return cells


def _text(line: bytes, encoding: str) -> str:
    try:
        return line.decode(encoding)
    except UnicodeDecodeError as e:
        raise _RowError(
            f"not {encoding.upper()}: byte {line[e.start]:#04x} (see --encoding)"
        ) from None
