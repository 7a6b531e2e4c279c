"""Finds which columns the tables have and what they hold: from every cell, or as the user says."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from beam_jobs.converter import MOST_LISTED
from converters.raw.files import first_few
from converters.raw.splits import SPLITS
from converters.table.column_cells import ColumnCells
from converters.table.columns import SKIP, Column
from pipeline.checks import did_you_mean
from pipeline.errors import OptionError, RawDataError
from pipeline.raw.block import Block
from pipeline.raw.blocks import blocks_of
from pipeline.raw.rows import Table, is_json
from pipeline.shards.typed_json import JsonFile
from pipeline.storage.schemes import open_storage

ALL = "*"
_SHOWN = 3  # bad rows
_MANY_LINE_ENDS = 10


def _is_long(cell: Any) -> bool:
    return str(cell).count("\n") > _MANY_LINE_ENDS


def _is_index(name: str, kinds: Mapping[str, str | None]) -> bool:
    """Whether pandas may have numbered rows in this column, for which no kind is given."""
    return name not in kinds and (not name or name.startswith("__index_level_"))


def find_columns(
    tables: Sequence[Table],
    kinds: Mapping[str, str | None],
    separator: str | None = None,
    max_bad_records: int = 0,
    notices: list[str] | None = None,
) -> Mapping[Column, str]:
    """The columns to convert, in the order in which they are found, and what was seen of their
    cells; of the kind SKIP those without a name. Reads every row; the conversion reports bad ones.

    kinds: by name, None to guess; ALL is for all others. separator: see Column. notices: gets those
    about cells. Raises OptionError, LabelError; RawDataError if every row is bad, or more than the
    splits may have."""
    found = _Found(kinds, separator, max_bad_records)
    for table in tables:
        found.add(table)
    if found.long and notices is not None:
        notices.append(
            f"cells have more than {_MANY_LINE_ENDS} line ends, the first in {found.long}. If "
            "their quotes are characters like any other, rows are lost in them: give --quote none."
        )
    if not found.columns:
        bad = found.bad
        problem = f"all {len(bad):,} rows are bad:" if bad else "no rows, at most a header."
        remedy = "Add or repair rows; see also --delimiter and --encoding."
        names = first_few(table.uri for table in tables)
        raise RawDataError(f"{names}: {problem}", *bad[:_SHOWN], remedy)
    return {cells.column(name): cells.seen for name, cells in found.converted().items()}


class _Found:
    """What is found in tables. columns: by name. bad: the errors of rows. long: the place of the
    first row that a quote may have made long."""

    def __init__(
        self, kinds: Mapping[str, str | None], separator: str | None, max_bad_records: int
    ) -> None:
        self.columns = dict[str, ColumnCells]()
        self.bad = list[str]()
        self.long = ""
        self._kinds = kinds
        self._separator = separator
        self._max_bad_records = max_bad_records

    def add(self, table: Table) -> None:
        """Adds the columns of a table."""
        of_folders = table.of_folders
        known = table.arrow.arrow_cells(table.uri) if table.is_arrow else {}
        unknown = {
            name
            for name, cells in known.items()
            if (kind := self._kind_of(name)) == "category" or (cells == [None] and kind is None)
        }
        if of_folders:  # whose cells are those of rows
            unknown = unknown or set(itertools.islice(known, 1))
        is_text = not table.is_arrow and not is_json(table.uri)
        for name, cells in known.items():
            for cell in cells if self._is_judged(name) else ():
                text = name in of_folders
                self.columns[name].add(cell, table, text=text, show=False, typed=True)
        for block in blocks_of(table, unknown):
            self._add_rows(table, block)
            for name in block.names:
                of_table = {"text": is_text or name in of_folders, "typed": name in known}
                rows = block.rows_with(name)
                if len(rows) and self._is_judged(name):
                    self.columns[name].add_all(block.cells(name), rows, table, **of_table)

    def _kind_of(self, name: str) -> str | None:
        return self._kinds.get(name, SKIP if _is_index(name, self._kinds) else self._kinds.get(ALL))

    def _is_judged(self, name: str) -> bool:
        """Whether the cells of a column matter. Adds the column."""
        if name not in self.columns:
            self.columns[name] = ColumnCells(self._kind_of(name), self._separator)
        return self.columns[name].kind != SKIP or _is_index(name, self._kinds)

    def _add_rows(self, table: Table, block: Block) -> None:
        """Adds what is bad or long. Raises RawDataError if bad rows are too many for the splits
        together."""
        many_lines = np.flatnonzero(block.lines > _MANY_LINE_ENDS).tolist()
        for row in () if self.long else map(block.row, many_lines):
            if row.error or any(map(_is_long, row.cells.values())):
                self.long = f"{table.uri}:{row.line}"
                break
        for row, error in sorted(block.errors.items()):
            self.bad.append(f"  {table.uri}:{block.line[row]}: {error}")
            if len(self.bad) > len(SPLITS) * self._max_bad_records + MOST_LISTED:
                raise RawDataError(
                    f"--max-bad-records={self._max_bad_records}: at least {len(self.bad):,} rows "
                    "are bad:",
                    *self.bad[:_SHOWN],
                    "Repair them, allow more, or see --delimiter and --encoding.",
                )

    def converted(self) -> Mapping[str, ColumnCells]:
        """The columns to convert. Raises OptionError."""
        kinds, columns = self._kinds, self.columns
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
