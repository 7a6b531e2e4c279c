"""Parquet, Arrow and Feather files: what their columns hold, and their rows. Texts and numbers are
arrays of Arrow; columns of other types have Python objects.

`rows` imports this module only to read such a file, because pyarrow is in the extra [tables]. Texts
of errors about cells are part of plan digests."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow
from pyarrow import types

from pipeline.errors import RawDataError
from pipeline.raw.arrow_files import VALUE_BYTES, batches_of, opened, schema_of
from pipeline.raw.cells import RESOLUTIONS, unique

_MOST_ZEROS = 38  # at the end of an integer, or after its point; the file may state a billion
_ALL_ROWS = range(1, sys.maxsize)


def arrow_cells(uri: str) -> dict[str, Sequence[Any]]:
    """Cells such as each column may hold, or a tuple of its classes' names; None for texts,
    to be looked at.

    Raises RawDataError."""
    schema = schema_of(uri)
    named = _class_names(schema)
    return {
        name: [named[name]] if name in named else _examples(_plain_type(kind), _unit_of(kind))
        for name, kind in zip(unique(schema.names, uri), schema.types, strict=True)
    }


def arrow_rows(
    uri: str, columns: Set[str] | None, units: Mapping[str, str]
) -> Iterator[tuple[dict[str, Any], int]]:
    """The cells of each row by column, and its size; see arrow_columns."""
    for cells in arrow_columns(uri, columns, units):
        lists = [
            _cells_of(each, None, Fraction(1)) if isinstance(each, pyarrow.Array) else each
            for each in cells.values()
        ]
        for row in zip(*lists, strict=True):
            yield dict(zip(cells, row, strict=True)), sum(map(_size_of, row))


def arrow_columns(
    uri: str, columns: Set[str] | None, units: Mapping[str, str], rows: range = _ALL_ROWS
) -> Iterator[dict[str, Any]]:
    """The cells of some rows by column, as Block has them. columns: those to read. units: of times.
    rows: see batches_of. Raises RawDataError."""
    with opened(uri) as file:
        for batch in batches_of(file, uri, columns, rows):
            named = _class_names(batch.schema)
            cells = dict[str, Any]()
            for name, array in zip(batch.schema.names, batch.columns, strict=True):
                scale = _scale_of(uri, name, _unit_of(array.type), units.get(name))
                cells[name] = _column(array, named.get(name), scale)
            yield cells


def _column(array: Any, names: Sequence[str] | None, scale: Fraction) -> Any:
    """The cells of a column, as Block has them."""
    kind = _plain_type(array.type)
    if names is None and scale == 1:
        if types.is_string(kind) or types.is_large_string(kind):
            _check_unicode(array)
            return array
        if _is_number(kind) and not types.is_dictionary(array.type):
            return array.cast(kind)
    return _cells_of(array, names, scale)


def _is_number(kind: Any) -> bool:
    """Whether Block has them as an array; uint64 may be beyond int64."""
    is_integer = types.is_integer(kind) and not types.is_uint64(kind)
    return is_integer or types.is_floating(kind) or types.is_boolean(kind)


def _check_unicode(texts: Any) -> None:
    try:
        texts.validate(full=True)
    except pyarrow.ArrowInvalid:
        texts.to_pylist()  # says which text is not UTF-8
        raise


def _class_names(schema: Any) -> Mapping[str, tuple[str, ...]]:
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


def _unit_of(kind: Any) -> str:
    """The unit of times, or lists or dictionaries of them: a resolution of RESOLUTIONS, and since
    when; "" for other types."""
    if _is_list(kind) or types.is_dictionary(kind):
        return _unit_of(kind.value_type)
    if types.is_date(kind):
        return f"{'days' if types.is_date32(kind) else 'ms'} since 1970-01-01"
    if types.is_timestamp(kind):
        return f"{kind.unit} since 1970-01-01{' UTC' * bool(kind.tz)}"
    if types.is_time(kind):
        return f"{kind.unit} since midnight"
    return f"{kind.unit} of duration" if types.is_duration(kind) else ""


def _is_list(kind: Any) -> bool:
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _scale_of(uri: str, name: str, unit: str, expected: str | None) -> Fraction:
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


def _plain_type(kind: Any) -> Any:
    """The type to read it as."""
    if types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if _unit_of(kind) and not types.is_nested(kind):
        return pyarrow.int32() if kind.bit_width == 32 else pyarrow.int64()
    if types.is_decimal(kind) and abs(kind.scale) <= _MOST_ZEROS:
        return kind  # whose integers may have any number of digits
    if types.is_decimal(kind) or types.is_float16(kind):
        return pyarrow.float64()
    if _is_list(kind):
        size = getattr(kind, "list_size", -1)  # -1: any
        return pyarrow.list_(_plain_type(kind.value_type), size)
    return kind


class Time(int):
    """An example of times. unit: see _unit_of."""

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


def _cells_of(array: Any, names: Sequence[str] | None, scale: Fraction) -> list[Any]:
    """The cells as Python objects; equal texts as one object. A number that no name has becomes
    what no feature can hold. scale: of times."""
    if types.is_dictionary(array.type):
        names, scale = _cells_of(array.dictionary, None, scale), Fraction(1)
        array = array.indices
    cells = array.cast(_plain_type(array.type)).to_pylist()
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


def _size_of(cell: Any) -> int:
    """What a cell counts for in the size of its row."""
    if isinstance(cell, list | dict):
        return sum(map(_size_of, cell.values() if isinstance(cell, dict) else cell))
    return len(cell) if isinstance(cell, str | bytes) else VALUE_BYTES
