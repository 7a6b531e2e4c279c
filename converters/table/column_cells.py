"""What the cells of a column hold: which kind of feature, which classes, what was seen of it."""

import contextlib
import re
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

import numpy as np
import pyarrow
from pyarrow import types

from converters.table.block_values import different, packed
from converters.table.cell_kinds import (
    BIG,
    BOOL,
    CODE,
    GUESSED,
    NUMBER,
    TEXT,
    TRUTH,
    kind_of,
    plain_kinds,
)
from converters.table.columns import KINDS, ONE_LINE, SKIP, Column
from pipeline.errors import LabelError, OptionError
from pipeline.raw.block import ABSENT, Cells, objects
from pipeline.raw.cells import (
    RESOLUTIONS,
    SPELLINGS,
    class_cells,
    is_blank,
    without_fraction,
)
from pipeline.raw.rows import Table
from pipeline.raw.text_cells import OTHER, where
from pipeline.shards.schema import TableFormat

_MAX_CLASSES = 100_000
_FEW_VALUES = (
    1000  # of texts: up to here, and if each occurs twice on average, they are taken for classes
)
_FEW_SHOWN = 100  # different cells: by then, examples of most columns have been seen


def _in_order(names: Collection[str]) -> tuple[str, ...]:
    """Names of classes, sorted; by number if all are integers."""
    integers = all(re.fullmatch(r"0|-?[1-9][0-9]{0,17}", name) for name in names)
    return tuple(sorted(names, key=int) if integers else sorted(names))


def _spelled_once(values: Set[str]) -> Set[str]:
    """The values, with True and False in place of their spellings if there are several. 1 and 0
    count as spellings only next to other spellings, and only if there are no other numbers."""
    numbers = {*filter(NUMBER.fullmatch, values)}
    truths = {value for value in values if without_fraction(value) in SPELLINGS}
    if truths <= numbers or not numbers <= truths:
        truths -= numbers
    names = {SPELLINGS[without_fraction(truth)][0] for truth in truths}
    return values if len(names) == len(truths) else (values - truths) | names


class ColumnCells:
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
        self.is_full = False  # more values than matter: none are kept
        self.shown = list[Sequence[str]]()  # the beginnings of cells, and their kinds
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
        times: int = 1,
    ) -> None:
        """Adds a cell of a table, or several equal ones. text: whether it is from csv, in which
        numbers are texts, too. show: False for a made-up example of the column's type, which may
        have a unit. typed: whether the table has such examples. A tuple has the names of the
        column's classes."""
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
            kind = kind_of(item, table.format, text=text)
            self.kinds.add(kind)
            if kind:
                (self.with_bools if kind == BOOL else self.with_others).add(table.uri)
            has_value = has_value or bool(kind)
            if kind in ("int64", "float32", BOOL) and not (show and typed):
                self.units.add("" if show else getattr(item, "unit", ""))
            if show:
                self._count(item, kind, times)
            elif kind == BOOL and not self.kind:
                self.values.add(str(item))  # its rows are not read
        if is_list or has_value:
            self.lengths.add(len(items) if is_list else None)

    def add_all(self, cells: Cells, table: Table, **of_table: bool) -> None:
        """Adds the cells of a block, equal ones once: adding one takes 5 us. Of numbers, and of
        texts once the column has more values than matter, it adds one of each plain kind.
        of_table: see add."""
        cells = packed(cells)
        while len(cells):
            few = self.most + 1 if self.kinds else _FEW_SHOWN
            alike = cells
            is_known = (self.is_full or self._shows_two) and not self.separator
            if isinstance(cells, pyarrow.Array) and is_known:
                if types.is_dictionary(cells.type):
                    cells = alike = cells.dictionary_decode()
                if table.format.keeps_numbers:
                    alike = self._by_kind(cells, table.format)
            firsts, numbers = different(alike)
            end = len(cells)
            if not self.is_full and len(firsts) > 2 * few:  # after these, it may be full
                firsts, end = firsts[:few], int(firsts[few])
            counts = np.bincount(numbers[:end]).tolist()
            for cell, times in zip(objects(cells, firsts), counts, strict=True):
                if cell is not ABSENT:
                    self.add(cell, table, times=times, **of_table)
            cells = cells[end:]

    def _by_kind(self, cells: Any, format: TableFormat) -> Any:
        """Numbers the cells: those that are judged alike have the same number. Adds the values of
        numeric cells."""
        kinds = plain_kinds(cells, format)
        if not self.is_full and not types.is_floating(cells.type):
            kinds[kinds == TEXT] = OTHER
            plain = cells.filter(pyarrow.array(kinds != OTHER)).unique()
            self._add_values({*map(str, plain[: self.most + 2].to_pylist())} - {""})
        is_other = kinds == OTHER
        if is_other.any():
            kinds = np.where(is_other, TEXT + 1 + different(where(is_other, cells))[1], kinds)
        return pyarrow.array(kinds)

    def _count(self, item: Any, kind: str, times: int) -> None:
        if not kind:
            is_empty = is_blank(item)
            self.blank += is_empty * times
            self.marked += (not is_empty) * times
        else:
            self._show(str(item)[:20], kind)
        if not self.is_full and type(item) in (str, int, bool):
            value = str(item).strip()
            self.count += bool(value) * times
            self._add_values({value} - {""})

    def _show(self, item: str, kind: str) -> None:
        # the first of each kind, so that what turns numbers into texts is seen
        is_new = kind not in (shown for _, shown in self.shown)
        if is_new or not (self._shows_two or [item, kind] in self.shown):
            self.shown.append([item, kind])

    @property
    def _shows_two(self) -> bool:
        return len({item for item, _ in self.shown}) > 1

    def _add_values(self, values: Set[str]) -> None:
        self.values.update(values)
        self.is_full |= len(self.values) > self.most
        if self.is_full:
            self.values.clear()

    def merge(self, later: "ColumnCells") -> None:
        """Adds what others have found in later rows."""
        self.kind = self.kind or later.kind
        self.classes = later.classes or self.classes
        for name in ("kinds", "with_bools", "with_others", "units", "lengths"):
            getattr(self, name).update(getattr(later, name))
        for item, kind in later.shown:
            self._show(item, kind)
        for name in ("count", "blank", "marked"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self.is_full |= later.is_full
        self._add_values(later.values)

    def stated(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return {
            name: sorted(value, key=str) if isinstance(value, set) else value
            for name, value in vars(self).items()
        }

    @classmethod
    def of(cls, stated: Mapping[str, Any]) -> "ColumnCells":
        """The cells of what `stated` returns."""
        cells = cls(None, None)
        for name, value in stated.items():
            kind = type(getattr(cells, name))
            setattr(cells, name, kind(value) if kind in (set, tuple) else value)
        return cells

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
        if kind == "category" and self.is_full:
            raise LabelError(
                f"{name!r} has over {_MAX_CLASSES:,} different values. Is it a class? Otherwise "
                f"give --columns {name}=text, or --target-columns for numbers. For more classes, "
                "list them in a --label-file."
            )
        names = ()
        if kind == "category":
            spelled = _spelled_once(self.values)
            bools, others = self.with_bools - self.with_others, self.with_others - self.with_bools
            if bools and others and spelled - SPELLINGS.keys() and TRUTH not in self.kinds:
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
        kinds = {GUESSED.get(kind, kind) for kind in self.kinds} - {""}
        if CODE in kinds or (BIG in kinds and "float32" not in kinds):
            kinds = kinds - {CODE, BIG, "int64", "float32"} | {"text"}
        kinds = {"float32" if kind == BIG else kind for kind in kinds}
        if len(kinds) == 1 and kinds != {"text"}:
            return kinds.pop()
        if kinds == {"int64", "float32"}:
            return "float32"
        if not kinds <= {"int64", "float32", "text", "image"}:
            return " and ".join(sorted(kinds))
        few = not self.is_full and len(_spelled_once(self.values)) <= self.count // 2
        is_class = few and self.values and all(map(ONE_LINE.fullmatch, self.values))
        return "category" if is_class else "text"

    @property
    def seen(self) -> str:
        """What was seen of its cells, such as " (Oslo, Rome; 3 missing)", so that a wrong guess is
        noticed."""
        kind = self.kind or self._guessed()
        missing = self.blank + self.marked * (kind in ("int64", "float32"))
        seen = [", ".join(dict.fromkeys(item for item, _ in self.shown))] * bool(self.shown)
        seen += [f"{missing:,} missing"] * bool(missing)
        return f" ({'; '.join(seen)})" if seen else ""
