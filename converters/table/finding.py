"""Finds which columns the tables have and what they hold: from every cell, or as the user says."""

import itertools
import sys
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow

from beam_jobs.converter import MOST_LISTED
from converters.raw.files import first_few
from converters.raw.splits import SPLITS
from converters.table.column_cells import ColumnCells
from converters.table.columns import SKIP, Column
from pipeline.checks import did_you_mean
from pipeline.errors import OptionError, RawDataError
from pipeline.raw.block import Block, taken
from pipeline.raw.blocks import blocks_of
from pipeline.raw.pieces import WHOLE, Piece, guessed_start
from pipeline.raw.rows import Table, is_json
from pipeline.shards.typed_json import JsonFile
from pipeline.storage.schemes import open_storage

ALL = "*"
_SHOWN = 3  # bad rows
_MANY_LINE_ENDS = 10
END = [sys.maxsize, 0]  # after the last row


def _is_long(cell: Any) -> bool:
    return str(cell).count("\n") > _MANY_LINE_ENDS


def _is_index(name: str, kinds: Mapping[str, str | None]) -> bool:
    """Whether pandas may have numbered rows in this column, for which no kind is given."""
    return name not in kinds and (not name or name.startswith("__index_level_"))


def found_columns(
    found: "Found", tables: Sequence[Table], notices: list[str] | None = None
) -> Mapping[Column, str]:
    """The columns to convert, in the order in which they were found, and what was seen of their
    cells; of the kind SKIP those without a name.

    notices: gets those about cells. Raises OptionError, LabelError; RawDataError if every row is
    bad."""
    if found.long and notices is not None:
        uri, line = found.long
        notices.append(
            f"cells have more than {_MANY_LINE_ENDS} line ends, the first in {uri}:{line}. If "
            "their quotes are ordinary characters, rows are lost inside them: give --quote none."
        )
    if not found.columns:
        bad = found.bad
        problem = f"all {len(bad):,} rows are bad:" if bad else "no rows, at most a header."
        remedy = "Add or repair rows; see also --delimiter and --encoding."
        names = first_few(table.uri for table in tables)
        raise RawDataError(f"{names}: {problem}", *found.shown_bad, remedy)
    return {cells.column(name): cells.seen for name, cells in found.converted().items()}


@dataclass(frozen=True)
class Finder:
    """Finds what the columns of tables hold, in every row; the conversion reports bad ones.

    kinds: by name, None to guess; ALL is for all others. separator: see Column. max_bad_records: of
    each split."""

    kinds: Mapping[str, str | None]
    separator: str | None = None
    max_bad_records: int = 0

    def find(self, table: Table, piece: Piece = WHOLE, begin: int | None = None) -> "Found":
        """What a table holds, or a piece of it. begin: of the first row of a piece of text, if it
        is known."""
        found = Found(self)
        known = table.arrow.arrow_cells(table.uri) if table.is_arrow else {}
        found.add_known(table, known)
        unknown = {
            name
            for name, cells in known.items()
            if (kind := self.kind_of(name)) == "category" or (cells == [None] and kind is None)
        }
        if table.of_folders:  # whose cells are those of rows
            unknown = unknown or set(itertools.islice(known, 1))
        within = piece
        if not table.is_arrow:  # reads the row after the piece, too
            if begin is None:
                begin = guessed_start(table, piece.begin) if piece.begin else 0
            if begin is None:
                return found
            within = WHOLE._replace(begin=begin)
        for block in blocks_of(table, unknown, piece=within):
            found.first = found.first or [int(block.offset[0]), int(block.line[0])]
            rows = int(np.searchsorted(block.offset, piece.end))
            found.add_rows(table, block.first(rows), known)
            if found.has_too_many_bad:  # which `merge` raises, with the lines of the entire file
                break
            if rows < len(block):
                found.stop = [int(block.offset[rows]), int(block.line[rows])]
                break
        found.first = found.first or END
        return found

    def kind_of(self, name: str) -> str | None:
        """The kind of a column; None to guess it."""
        return self.kinds.get(name, SKIP if _is_index(name, self.kinds) else self.kinds.get(ALL))


class Found:
    """What is found in tables, or in a piece of one.

    columns: by name.
    bad: table, line and error of bad rows, at most as many as matter.
    long: table and line of the first row that a quote may have made long.
    first, stop: offset and line of the first row at or after the beginning of a piece of text, and
        of the one at or after its end. Its lines count from where reading began. None if nothing
        tells where it begins."""

    def __init__(self, finder: Finder) -> None:
        self.columns = dict[str, ColumnCells]()
        self.bad = list[Sequence[Any]]()
        self.long: Sequence[Any] = ()
        self.first: Sequence[int] | None = None
        self.stop: Sequence[int] = END
        self._finder = finder

    def add_known(self, table: Table, known: Mapping[str, Sequence[Any]]) -> None:
        """Adds made-up cells of columns that have types."""
        for name, cells in known.items():
            for cell in cells if self._is_judged(name) else ():
                text = name in table.of_folders
                self.columns[name].add(cell, table, text=text, show=False, typed=True)

    def add_rows(self, table: Table, block: Block, known: Container[str]) -> None:
        """Adds rows of a table. known: columns that have types."""
        of_lines = block.take(np.flatnonzero(block.lines > _MANY_LINE_ENDS))
        for row, cells in enumerate(() if self.long else of_lines.by_row(of_lines.names)):
            if row in of_lines.errors or any(map(_is_long, cells.values())):
                self.long = table.uri, int(of_lines.line[row])
                break
        errors = sorted(block.errors.items())[: self._most_bad + 1 - len(self.bad)]
        self.bad += [(table.uri, int(block.line[row]), error) for row, error in errors]
        is_text = not table.is_arrow and not is_json(table.uri)
        readable = np.setdiff1d(np.arange(len(block)), [*block.errors])
        for name in block.names:
            of_table = {"text": is_text or name in table.of_folders, "typed": name in known}
            cells = block.cells(name)
            if block.errors and isinstance(cells, pyarrow.Array):
                cells = taken(cells, readable)
            if len(cells) and self._is_judged(name):
                self.columns[name].add_all(cells, table, **of_table)

    def _is_judged(self, name: str) -> bool:
        """Whether the cells of a column matter. Adds the column."""
        kind = self._finder.kind_of(name)
        self.columns.setdefault(name, ColumnCells(kind, self._finder.separator))
        return kind != SKIP or _is_index(name, self._finder.kinds)

    @property
    def has_too_many_bad(self) -> bool:
        """Whether more rows are bad than the splits together may have."""
        return len(self.bad) > self._most_bad

    @property
    def _most_bad(self) -> int:
        return len(SPLITS) * self._finder.max_bad_records + MOST_LISTED

    @property
    def shown_bad(self) -> list[str]:
        """The first bad rows, for a message."""
        return [f"  {uri}:{line}: {error}" for uri, line, error in self.bad[:_SHOWN]]

    def merge(self, later: "Found", lines: int = 0) -> None:
        """Adds what was found in later rows. lines: how many are before those that these count
        from. Raises RawDataError if too many are bad."""
        for name, cells in later.columns.items():
            self._is_judged(name)
            self.columns[name].merge(cells)
        if later.long and not self.long:
            uri, line = later.long
            self.long = uri, line + lines
        self.bad += [(uri, line + lines, error) for uri, line, error in later.bad]
        if self.has_too_many_bad:
            raise RawDataError(
                f"--max-bad-records={self._finder.max_bad_records}: at least "
                f"{self._most_bad + 1:,} rows are bad:",
                *self.shown_bad,
                "Repair them, allow more, or see --delimiter and --encoding.",
            )

    def converted(self) -> Mapping[str, ColumnCells]:
        """The columns to convert. Raises OptionError."""
        kinds, columns = self._finder.kinds, self.columns
        converted = {name: cells for name, cells in columns.items() if cells.kind != SKIP}
        for name in sorted(kinds.keys() - columns.keys() - {ALL}):
            raise OptionError(
                f"the tables have no column {name!r}, which an option "
                f"names.{did_you_mean(name, converted)}"
            )
        if not converted:
            raise OptionError(
                f"no column is left to convert. The tables have: {', '.join(columns)}."
            )
        if kinds.get(ALL) != SKIP:
            converted |= {name: each for name, each in columns.items() if _is_index(name, kinds)}
        return converted

    def stated(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        columns = {name: cells.stated() for name, cells in self.columns.items()}
        names = ("bad", "long", "first", "stop")
        return {"columns": columns, **{name: getattr(self, name) for name in names}}

    @classmethod
    def of(cls, finder: Finder, stated: Mapping[str, Any]) -> "Found":
        """What `stated` returned."""
        found = cls(finder)
        columns = {name: ColumnCells.of(cells) for name, cells in stated["columns"].items()}
        vars(found).update(stated, columns=columns)
        return found


def given_values(option: str, text: str | None, allowed: Sequence[str] = ()) -> dict[str, str]:
    """The values by name, of NAME=VALUE,... or of an object in a .json file. allowed: the values,
    if any. Raises OptionError."""
    if text and text.endswith(".json"):
        file = JsonFile(text, OptionError, 'Give an object such as {"price": "float32"}.')
        values = file.read(open_storage(text).read(text), dict[str, str])
    else:
        pairs = [pair.strip().partition("=") for pair in text.split(",")] if text else []
        values = {name: value for name, _, value in pairs}
    for name, value in values.items():
        if not name or not value or (allowed and value not in allowed):
            hint = (
                did_you_mean(value, allowed)
                if value and allowed
                else " Give COLUMN=VALUE,... or a .json file."
            )
            raise OptionError(f"{option}: {name}={value} is not understood.{hint}")
    return values
