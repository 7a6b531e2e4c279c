"""Finds which columns the tables have and what they hold: from every cell, or as the user says."""

import contextlib
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from decimal import Decimal
from typing import Any

from beam_jobs.converter import MOST_LISTED
from converters.images.image_archives import IMAGE_SUFFIXES
from converters.raw.files import first_few
from converters.raw.splits import SPLITS
from converters.table.columns import KINDS, ONE_LINE, SKIP, Column
from pipeline.checks import did_you_mean
from pipeline.errors import LabelError, OptionError, RawDataError
from pipeline.raw.cells import (
    RESOLUTIONS,
    SPELLINGS,
    class_cells,
    is_blank,
    is_int64,
    without_fraction,
)
from pipeline.raw.rows import Table, TableRow, is_json
from pipeline.shards.schema import TableFormat
from pipeline.shards.typed_json import JsonFile
from pipeline.storage.schemes import open_storage

ALL = "*"
_MAX_CLASSES = 100_000
_SHOWN = 3  # bad rows
_MANY_LINE_ENDS = 10
_FEW_VALUES = (
    1000  # of texts: up to here, and if each occurs twice on average, they are taken for classes
)


def _in_order(names: Collection[str]) -> tuple[str, ...]:
    """Names of classes, sorted; by number if all are integers."""
    integers = all(re.fullmatch(r"0|-?[1-9][0-9]{0,17}", name) for name in names)
    return tuple(sorted(names, key=int) if integers else sorted(names))


def _spelled_once(values: Set[str]) -> Set[str]:
    """The values, with True and False for their spellings where there are several. 1 and 0 are
    spellings beside others, unless there are more numbers."""
    numbers = {*filter(_NUMBER.fullmatch, values)}
    truths = {value for value in values if without_fraction(value) in SPELLINGS}
    if truths <= numbers or not numbers <= truths:
        truths -= numbers
    names = {SPELLINGS[without_fraction(truth)][0] for truth in truths}
    return values if len(names) == len(truths) else (values - truths) | names


class _Cells:
    """What the cells of a column hold. kind: None to guess it. separator: see Column."""

    def __init__(self, kind: str | None, separator: str | None) -> None:
        self.kind = kind
        self.separator = separator
        self.most = _MAX_CLASSES if kind == "category" else _FEW_VALUES
        self.kinds = set[str]()
        self.with_bools, self.with_others = set[str](), set[str]()  # tables
        self.units = set[str]()
        self.lengths = set[int | None]()
        self.values = set[str]()
        self.shown = dict[str, str]()
        self.count = 0
        self.blank = 0
        self.marked = 0
        self.classes = ()

    def add(
        self,
        cell: Any,
        table: Table,
        *,
        text: bool,
        show: bool = True,
        typed: bool = False,
    ) -> None:
        """Adds a cell of a table. text: whether it is from csv, in which numbers are texts, too.
        show: False for a made-up example of the column's type, which may have a unit. typed:
        whether the table has such examples. A tuple has the names of the column's classes."""
        if isinstance(cell, tuple):
            self.kind = self.kind or "category"
            self.classes = cell
            return
        is_list = isinstance(cell, list)
        items: Sequence[Any] = cell if is_list else (cell,)
        if self.separator:
            items = ()
            with contextlib.suppress(ValueError):  # the conversion reports it
                items = class_cells("", cell, self.separator)
        has_value = False
        for item in items:
            kind = _kind(item, table.format, text=text)
            self.kinds.add(kind)
            if kind:
                (self.with_bools if kind == _BOOL else self.with_others).add(table.uri)
            has_value = has_value or bool(kind)
            if kind in ("int64", "float32", _BOOL) and not (show and typed):
                self.units.add("" if show else getattr(item, "unit", ""))
            if show:
                self._count(item, kind)
            elif kind == _BOOL and not self.kind:
                self.values.add(str(item))  # its rows are not read
        if is_list or has_value:
            self.lengths.add(len(items) if is_list else None)

    def _count(self, item: Any, kind: str) -> None:
        if not kind:
            is_empty = is_blank(item)
            self.blank += is_empty
            self.marked += not is_empty
        # the first of each kind, so that what turns numbers into texts is seen
        elif len(self.shown) < 2 or kind not in self.shown.values():
            self.shown.setdefault(str(item)[:20], kind)
        if len(self.values) <= self.most and type(item) in (str, int, bool):
            value = str(item).strip()
            self.values.update([value] * bool(value))
            self.count += bool(value)

    def column(self, name: str) -> Column:
        """The column with these cells. Raises OptionError if no feature can hold it, LabelError."""
        kind = self.kind or self._guessed()
        if kind == SKIP:
            return Column(name, SKIP)
        lists = self.lengths - {None}
        times = self.units - {""}
        unit = min(times, key=lambda unit: RESOLUTIONS[unit.split(" ")[0]], default="")
        alike = len({unit.partition(" ")[2] for unit in self.units}) == 1
        if times and not (alike and kind in ("int64", "float32")):
            others = {kind} - {"int64", "float32"}
            kind = " and ".join(sorted({unit or "int64" for unit in self.units} | others))
        if kind not in KINDS or (lists and lists != self.lengths and not self.separator):
            raise OptionError(
                f"the column {name!r} holds {kind}{', alone and in lists' * bool(lists)}. A "
                f"feature holds values of one kind ({', '.join(KINDS[:-1])}), or lists of them. To "
                f"leave it out: --columns {name}={SKIP}."
            )
        if kind == "category" and len(self.values) > self.most:
            raise LabelError(
                f"{name!r} has over {_MAX_CLASSES:,} different values. Is it a class? Otherwise "
                f"give --columns {name}=text, or --target-columns for numbers. For more classes, "
                "list them in a --label-file."
            )
        names = ()
        if kind == "category":
            spelled = _spelled_once(self.values)
            bools, others = self.with_bools - self.with_others, self.with_others - self.with_bools
            if bools and others and spelled - SPELLINGS.keys() and _TRUTH not in self.kinds:
                raise OptionError(
                    f"the column {name!r} has true or false in {min(bools)}, but other classes in "
                    f"{min(others)}. Write the same classes in both, or leave it out: --columns "
                    f"{name}={SKIP}."
                )
            whole = {value: without_fraction(value) for value in spelled}
            values = [v for v in spelled if whole[v] == v or whole[v] not in spelled]
            names = self.classes or _in_order([*filter(ONE_LINE.fullmatch, values)])
        shape = (lists.pop() if len(lists) == 1 else None,) if lists else ()
        return Column(name, kind, shape, names, unit=unit)

    def _guessed(self) -> str:
        """A kind, or a description of what no kind holds."""
        kinds = {_GUESSED.get(kind, kind) for kind in self.kinds} - {""}
        if _CODE in kinds or (_BIG in kinds and "float32" not in kinds):
            kinds = kinds - {_CODE, _BIG, "int64", "float32"} | {"text"}
        kinds = {"float32" if kind == _BIG else kind for kind in kinds}
        if len(kinds) == 1 and kinds != {"text"}:
            return kinds.pop()
        if kinds == {"int64", "float32"}:
            return "float32"
        if not kinds <= {"int64", "float32", "text", "image"}:
            return " and ".join(sorted(kinds))
        few = len(_spelled_once(self.values)) <= min(self.most, self.count // 2) and all(
            map(ONE_LINE.fullmatch, self.values)
        )
        return "category" if self.values and few else "text"

    @property
    def seen(self) -> str:
        """What was seen of its cells, such as " (Oslo, Rome; 3 missing)", so that a wrong guess is
        noticed."""
        kind = self.kind or self._guessed()
        missing = self.blank + self.marked * (kind in ("int64", "float32"))
        seen = [", ".join(self.shown)] * bool(self.shown)
        seen += [f"{missing:,} missing"] * bool(missing)
        return f" ({'; '.join(seen)})" if seen else ""


_NUMBER = re.compile(r"([+-]?)(\d+|(?=\.\d))(\.\d*)?([eE][+-]?\d+)?")
_CODE, _BIG = "codes of digits", "digits beyond int64"
_BOOL, _TRUTH = "true and false", "their spellings"
_GUESSED = {_BOOL: "int64", _TRUTH: "text"}


def _kind(cell: Any, format: TableFormat, *, text: bool) -> str:
    """One of KINDS, "" for an empty cell, or what no feature can hold."""
    number = format.number(cell)
    if number is None:
        return ""
    if isinstance(cell, str):
        if text and (match := _NUMBER.fullmatch(number)):
            return _kind_of_number(*match.groups())
        cell = cell.strip()
        if cell in SPELLINGS and cell.isalpha():
            return _TRUTH
        return "image" if cell.lower().endswith(IMAGE_SUFFIXES) else "text"
    if isinstance(cell, bool):
        return _BOOL
    if isinstance(cell, int):
        return "int64" if is_int64(cell) else "integers beyond int64"
    if isinstance(cell, dict):
        return "image" if cell.keys() <= {"bytes", "path"} else "nested columns"
    return {float: "float32", Decimal: "float32", bytes: "bytes"}.get(type(cell), "nested lists")


def _kind_of_number(sign: str, whole: str, fraction: str | None, exponent: str | None) -> str:
    """Of digits that a number would not keep, as in 00501, +39 or 20 of them, a code."""
    if fraction or exponent or not whole.isascii():
        return "float32"
    if sign == "+" or (whole[0] == "0" and len(whole) > 1):
        return _CODE
    return "int64" if len(whole) <= 19 and is_int64(int(sign + whole)) else _BIG


def _is_long(cell: Any) -> bool:
    return str(cell).count("\n") > _MANY_LINE_ENDS


def _cells_of(
    path: str, rows: Iterable[TableRow], bad: list[str], allowed: int, long: list[str]
) -> Iterator[tuple[str, Any]]:
    """The cells of all rows, with their columns. Adds the errors of bad ones, and the place of
    the first that a quote may have made long. Raises RawDataError if bad ones are too many for the
    splits together."""
    for row in rows:
        if (
            not long
            and row.lines > _MANY_LINE_ENDS
            and (row.error or any(map(_is_long, row.cells.values())))
        ):
            long.append(f"{path}:{row.line}")
        if row.error:
            bad.append(f"  {path}:{row.line}: {row.error}")
            if len(bad) > len(SPLITS) * allowed + MOST_LISTED:
                raise RawDataError(
                    f"--max-bad-records={allowed}: at least {len(bad):,} rows are bad:",
                    *bad[:_SHOWN],
                    "Repair them, allow more, or see --delimiter and --encoding.",
                )
        yield from row.cells.items()


def _is_index(name: str, kinds: Mapping[str, str | None]) -> bool:
    """Whether pandas may have numbered rows in this column, for which no kind is given."""
    return name not in kinds and (not name or name.startswith("__index_level_"))


def _kind_of(name: str, kinds: Mapping[str, str | None]) -> str | None:
    return kinds.get(name, SKIP if _is_index(name, kinds) else kinds.get(ALL))


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
    bad = list[str]()
    long = list[str]()
    columns = dict[str, _Cells]()
    for table in tables:
        known = table.arrow.arrow_cells(table.uri) if table.is_arrow else {}
        unknown = {
            name
            for name, cells in known.items()
            if (kind := _kind_of(name, kinds)) == "category" or (cells == [None] and kind is None)
        }
        of_folders = table.of_folders
        examples = ((name, cell) for name, cells in known.items() for cell in cells)
        if of_folders:  # whose cells are those of rows
            unknown = unknown or set(itertools.islice(known, 1))
        of_rows = _cells_of(table.uri, table.rows(unknown), bad, max_bad_records, long)
        is_text = not table.is_arrow and not is_json(table.uri)
        for shown, cells in ((False, examples), (True, of_rows)):
            for name, cell in cells:
                if name not in columns:
                    columns[name] = _Cells(_kind_of(name, kinds), separator)
                if columns[name].kind != SKIP or _is_index(name, kinds):
                    text = is_text or name in of_folders
                    typed = name in known
                    columns[name].add(cell, table, text=text, show=shown, typed=typed)
    if long and notices is not None:
        notices.append(
            f"cells have more than {_MANY_LINE_ENDS} line ends, the first in {long[0]}. If their "
            "quotes are characters like any other, rows are lost in them: give --quote none."
        )
    if not columns:
        problem = f"all {len(bad):,} rows are bad:" if bad else "no rows, at most a header."
        remedy = "Add or repair rows; see also --delimiter and --encoding."
        names = first_few(table.uri for table in tables)
        raise RawDataError(f"{names}: {problem}", *bad[:_SHOWN], remedy)
    converted = {name: cells for name, cells in columns.items() if cells.kind != SKIP}
    for name in sorted(kinds.keys() - columns.keys() - {ALL}):
        raise OptionError(
            f"the tables have no column {name!r}, which an option "
            f"names.{did_you_mean(name, converted)}"
        )
    if not converted:
        raise OptionError(f"no column is left to convert. The tables have: {', '.join(columns)}.")
    if kinds.get(ALL) != SKIP:
        converted |= {name: cells for name, cells in columns.items() if _is_index(name, kinds)}
    return {cells.column(name): cells.seen for name, cells in converted.items()}


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
