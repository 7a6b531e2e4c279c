"""Checked cells of a table: texts, class names and numbers. Conversion and `infeed predict` read
them alike.

Each function takes the name of the column for its ValueError; those of numbers take what
TableFormat.number makes of a cell. Error texts are part of plan digests."""

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from pipeline.errors import RawDataError
from pipeline.shards.example import FLOAT32_END

MISSING = -1  # the class of an empty cell
RESOLUTIONS = {"days": 86_400 * 10**9, "s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}
"""Of times, in nanoseconds."""
# pandas writes integers as 7.0 where a column has gaps
_WHOLE = re.compile(r"\A([+-]?[0-9]{1,19})(\.0*)?\Z")
_TRUTHS = ("True", "true", "TRUE", "1"), ("False", "false", "FALSE", "0")
SPELLINGS = {spelling: truth for truth in _TRUTHS for spelling in truth}
"""Of true and false: those that mean the same."""


def is_blank(cell: Any) -> bool:
    """Whether a cell is empty, null or NaN."""
    return cell is None or cell != cell or (isinstance(cell, str) and not cell.strip())


def cell_of(cells: Mapping[str, Any], column: str) -> Any:
    """The cell of a row. Raises ValueError if the row has none."""
    if column not in cells:
        raise ValueError(f"no {column!r} in it")
    return cells[column]


def class_cells(column: str, cell: Any, separator: str | None) -> Sequence[str]:
    """The class names in a cell: exactly one without a separator, else any number, in a list or
    separated.

    Raises ValueError if one is not a name."""
    if separator is None:
        return [_class_name(column, cell)]
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return []
    if isinstance(cell, list):
        items = cell
    else:
        _class_name(column, cell)
        items = str(cell).split(separator)
    names = [_class_name(column, item) for item in items]
    if len(set(names)) < len(names):
        raise ValueError(f"{column!r} has a label twice: {cell!r}")
    return names


def number_cell(column: str, cell: Any) -> float:
    """The finite number, within float32, in a cell. Raises ValueError for anything else."""
    # Python's float() also accepts 1_000, which is a slip in a table.
    text = isinstance(cell, str) and "_" not in cell
    try:
        number = float(cell) if text or type(cell) in (int, float, Decimal) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not abs(number) < FLOAT32_END:
        found = "has no value" if cell is None else f"is {cell!r:.60}"
        raise ValueError(f"{column!r} {found}; it must be a finite number within float32")
    return number


def number_or_nan(column: str, cell: Any, read: Callable[[str, Any], float] = number_cell) -> float:
    """The number that `read` finds in a cell, where true is 1; NaN for None."""
    if cell is None:
        return math.nan
    return read(column, int(cell) if isinstance(cell, bool) else cell)


def integer_cell(column: str, cell: Any, unit: str = "") -> int:
    """The integer, within int64, in a cell. unit: of times. Raises ValueError for anything else."""
    if type(cell) is int and is_int64(cell):
        return cell
    match = isinstance(cell, str) and _WHOLE.match(cell.strip())
    number = int(match[1]) if match else cell
    if isinstance(number, int | float) and number % 1 == 0 and is_int64(number):
        return int(number)
    if cell is None:
        # in float32, times would be minutes apart
        other = f" in {unit}" if unit else f", or --columns {column}=float32"
        raise ValueError(f"{column!r} has no value. Give --missing {column}=VALUE{other}")
    more = f", {unit}" if unit else ""
    text = f" Or give --columns {column}=text." if isinstance(number, int) else ""
    raise ValueError(f"{column!r} is {cell!r:.60}; it must be an integer within int64{more}.{text}")


def is_int64(number: float) -> bool:
    """Whether it is within int64."""
    return -(2**63) <= number < 2**63


def class_number(numbers: Mapping[str, int], cell: Any) -> int:
    """The number of the class in a cell, or MISSING.

    Unless a class has the text of the cell, 101.0 is the class 101, and true, True, TRUE and 1 are
    one class, like false and 0."""
    if cell is None or cell != cell:
        return MISSING
    text = str(cell).strip()
    if text in numbers:  # most are
        return numbers[text]
    whole = without_fraction(text)
    # 1 is true where there is only another class, and 0, 1 and 2 are numbers
    spellings = SPELLINGS.get(whole, ())[: 4 if len(numbers) < 3 else 3]
    return next((numbers[name] for name in (whole, *spellings) if name in numbers), MISSING)


def without_fraction(text: str) -> str:
    """7 for 7.0; any other text unchanged."""
    return _WHOLE.sub(r"\1", text)


def _class_name(column: str, cell: Any) -> str:
    """Stripped, as in a label file. Integers are names too, and true is True."""
    name = str(cell) if isinstance(cell, bool) else _text(cell).strip()
    if name.splitlines() != [name]:
        raise ValueError(
            f"{column!r} is {cell!r:.60}; a label is a text of one line, or an integer"
        )
    _utf8(column, cell)
    return name


def text_cell(column: str, cell: Any) -> str:
    """The text, or JSON integer, in a cell. Raises ValueError for anything else."""
    text = _text(cell)
    if not text or "\0" in text:
        raise ValueError(
            f"{column!r} is {cell!r:.60}; it must be text, without zero bytes and not empty"
        )
    _utf8(column, cell)
    return text


def document_cell(column: str, cell: Any) -> bytes:
    """The text in a cell, which may be empty, as UTF-8. Raises ValueError for anything else."""
    if not isinstance(cell, str):
        raise ValueError(f"{column!r} is {cell!r:.60}; it must be text")
    return _utf8(column, cell)


def _text(cell: Any) -> str:
    """ "" unless it is text or an integer."""
    return str(cell) if isinstance(cell, int | str) and not isinstance(cell, bool) else ""


def _utf8(column: str, cell: str | int) -> bytes:
    try:
        return str(cell).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{column!r} is {cell!r:.60}, which is not Unicode text") from None


def unique(names: Sequence[str], uri: str) -> Sequence[str]:
    """The names of columns. Raises RawDataError if one is there twice."""
    repeated = [a for a, b in itertools.pairwise(sorted(names)) if a == b]
    if repeated:
        raise RawDataError(f"{uri} has two columns {repeated[0]!r}. Rename one of them.")
    return names
