"""Values of blocks are those of Column.value, bit by bit, and so are the texts of its errors."""

import csv
import io
import json
import struct
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from sweep import examples

from converters.table.block_values import values_of
from converters.table.columns import CLASS_NAME, Column
from pipeline.raw import blocks
from pipeline.raw.rows import Table
from pipeline.shards.schema import USUAL_FORMAT, TableFormat

NAMES = ("1", "7", "Oslo", "Rome", "Virginica of Anderson", "true", "Ø", "x" * 40)
COLUMNS = [
    Column("a", "float32"),
    Column("a", "float32", missing="1e3"),
    Column("a", "int64"),
    Column("a", "int64", missing="-1", unit="s since midnight"),
    Column("a", "category", names=NAMES),
    Column("a", "category", names=NAMES, base=1, required=True),
    Column("a", "category", names=("0", "1"), missing="1"),
    Column("a", "category", names=NAMES, separator=" "),
    Column("a", CLASS_NAME, names=NAMES, required=True),
    Column("a", "text"),
    Column("a", "text", required=True),
    Column("a", "bytes"),
    Column("a", "bytes", required=True),
    Column("a", "float32", (2,)),
    Column("a", "int64", (None,)),
    Column("target", "float32", (2,), parts=("a", "b")),
    Column("no such column", "float32", required=True),
]
FORMATS = [
    USUAL_FORMAT,
    TableFormat(decimal=","),
    TableFormat(missing_values=("-999", "x")),
    TableFormat(missing_values=(".5", "inf")),
    TableFormat(missing_values=("1e400",)),
    TableFormat(missing_values=()),
]
DIGITS = st.from_regex(r"-?[0-9]{1,19}([.,][0-9]{0,20})?([eE][+-][0-9]{2,3})?", fullmatch=True)
ODD = (
    "", " ", "NA", "-", "--", ".", "?", "0", "-0", "-0.0", "0,0", "00501", "+3", "1e5", "1_0", " 7", "7 ", "7.0", "5.", ".5", "-.5", "١٢",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "12345678901234567890", "inf", "nan", "0x10", "1.2.3", "1-2", "1.",
    "1e-05", "e-05", "1e--5", "1.5e-.5", "1-e05", "1.2.e-05", "1e-05e", "12e+04", "+1e-05", "0e-00", "1e+99", "3.4028235e+38", "3.4028236e+38",
    "340282356779733661637539395458142568447", "340282356779733661637539395458142568448", "16777216", "16777217", "16777216.4", "-16777217",
    "-999", "-999.0", "0.5", "1e400", "true", "Oslo ", "Rome,", "1.0", "x\0", "Virginica of Anderson", "Virginica of Andersen", "x" * 40,
    "1.00000005960464477539", "1.0000000596046447754", "1.00000017881393432617", "0.1234567890123456789", "123456789012345678.9", "1e-46",
)  # fmt: skip
TEXTS = st.one_of(DIGITS, DIGITS, st.sampled_from(ODD + NAMES), st.text(max_size=12))
OBJECTS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-9, 9), st.floats(), st.floats(-1, 1, width=32), TEXTS,
    st.lists(st.one_of(st.integers(-9, 9), TEXTS), max_size=2),
)  # fmt: skip


def expected(function, *args):
    try:
        return function(*args), ""
    except ValueError as e:
        return None, str(e)


def bits(column, value):
    """What a record stores for it."""
    if column.kind == "float32" and not isinstance(value, list):
        return struct.pack("<f", value)
    return [bits(column, item) for item in value] if isinstance(value, list) else value


def no_file(row, cell, kind):
    raise AssertionError(kind)


def assert_same_values(table):
    """The values of all columns, each checked to be that of the row."""
    for block in blocks.blocks_of(table):
        for column in COLUMNS:
            errors = {**block.errors}
            values, rounded = values_of(column, block, table.format, errors, no_file)
            assert block.errors.items() <= errors.items()
            for i, cells in enumerate(block.by_row(block.names)):
                if i in block.errors:
                    continue
                value, error = expected(column.value, cells, None, table.format)
                assert errors.get(i, "") == error
                if error:
                    continue
                assert bits(column, values[i].as_py()) == bits(column, value)
                if column.kind == "float32":
                    assert rounded[i] == column.num_rounded(value, cells, table.format)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("values")


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.tuples(TEXTS, TEXTS), max_size=20),
    st.sampled_from(FORMATS),
    st.sampled_from(["utf-8", "utf-8", "cp1252"]),
)
def test_values_of_csv_are_those_of_rows(folder, rows, format, encoding):
    text = io.StringIO()
    csv.writer(text).writerows([["a", "b"], *rows, ["one cell"]])
    path = folder / "t.csv"
    path.write_bytes(text.getvalue().encode(encoding, "replace"))
    assert_same_values(Table(str(path), replace(format, encoding=encoding)))


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from(["a", "b"]), OBJECTS, min_size=1), max_size=20),
    st.sampled_from(FORMATS),
    st.booleans(),
)
def test_values_of_json_are_those_of_rows(folder, rows, format, in_columns):
    path = folder / "t.jsonl"
    kept = [row for row in rows if not in_columns or type(row.get("a")) in (int, float)]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    assert_same_values(Table(str(path), format))


@pytest.mark.parametrize("format", FORMATS, ids=range(len(FORMATS)))
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_values_of_odd_texts_are_those_of_rows(folder, name, format):
    path = folder / name
    rows = {"a": [*ODD, *NAMES], "b": ["1", *ODD, *NAMES[1:]]}
    pairs = [*zip(*rows.values(), strict=True)]
    with path.open("w", newline="") as file:
        if name == "t.csv":
            csv.writer(file).writerows([["a", "b"], *pairs])
        elif name == "t.jsonl":
            file.writelines(json.dumps({"a": a, "b": b}) + "\n" for a, b in pairs)
    if name == "t.parquet":
        parquet.write_table(pa.table(rows), path)
    assert_same_values(Table(str(path), format))


OBJECT_LISTS = (
    [0.0, -0.0, 0.5, float("nan"), 1e300, 16777217.0], [1, True, 1.0, "1", "1.0", None, False, 0, -0.0], [2**63, 2**53 + 1, -(2**63), 2**24, 7],
    [2**53 + 1, 0.5], [10**400, 1], [True, False, None], ["", "a\0", "\ud800", "Oslo"], [[1, 2], [], ["1"], [0.5, None], "7", 7], [{"a": 1}, "x"],
)  # fmt: skip


@pytest.mark.parametrize("format", FORMATS, ids=range(len(FORMATS)))
@pytest.mark.parametrize("cells", OBJECT_LISTS, ids=range(len(OBJECT_LISTS)))
def test_values_of_odd_objects_are_those_of_rows(folder, cells, format):
    path = folder / "t.jsonl"
    rows = [{"a": cell, "b": cells[-i]} for i, cell in enumerate(cells)]
    for more in ([], [{"b": 1}, {"a": 1}]):
        path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *more]))
        assert_same_values(Table(str(path), format))


@pytest.mark.parametrize("format", FORMATS, ids=range(len(FORMATS)))
def test_values_of_large_numbers_of_parquet_are_those_of_rows(folder, format):
    path = str(folder / "t.parquet")
    for kind, numbers in (
        (pa.uint64(), [2**64 - 1, 2**63, 1, None]),
        (pa.int64(), [2**63 - 1, -(2**63), 2**53 + 1, 2**24 + 1, None, 0]),
        (
            pa.float64(),
            [2.0**63, 1e300, 16777216.4, -0.0, 0.0, float("nan"), 3.4028235677973366e38, None],
        ),
    ):
        column = pa.array(numbers, kind)
        parquet.write_table(pa.table({"a": column, "b": column[::-1]}), path)
        assert_same_values(Table(path, format))


ARROW_KINDS = {
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2),
    pa.uint64(): st.integers(0, 2**64 - 1) | st.integers(0, 2),
    pa.int8(): st.integers(-2, 7),
    pa.float64(): st.floats() | st.integers(-9, 9).map(float),
    pa.float32(): st.floats(width=32),
    pa.bool_(): st.booleans(),
    pa.binary(): st.binary(max_size=3),
}


@settings(max_examples=examples(300), deadline=None)
@given(st.data(), st.sampled_from([*ARROW_KINDS]), st.sampled_from(FORMATS))
def test_values_of_parquet_are_those_of_rows(folder, data, kind, format):
    cells = st.none() | ARROW_KINDS[kind]
    rows = data.draw(st.lists(st.tuples(cells, cells), min_size=1, max_size=20))
    path = str(folder / "t.parquet")
    columns = {
        name: pa.array(each, kind) for name, each in zip("ab", zip(*rows, strict=True), strict=True)
    }
    parquet.write_table(pa.table(columns), path, use_dictionary=data.draw(st.booleans()))
    assert_same_values(Table(path, format))


def test_plain_cells_and_equal_ones_are_not_converted_one_by_one(folder, monkeypatch):
    calls = []
    usual = Column.value
    monkeypatch.setattr(Column, "value", lambda *args: calls.append(args[1]) or usual(*args))
    path = folder / "plain.csv"
    path.write_text("a,b,c\n" + "1.5,NA,Oslo\n-2,,Rome\n" * 99)
    (block,) = blocks.blocks_of(Table(str(path)))
    values_of(Column("a", "float32"), block, USUAL_FORMAT, {}, no_file)
    values_of(Column("c", "text"), block, USUAL_FORMAT, {}, no_file)
    assert calls == []
    values_of(Column("b", "float32"), block, USUAL_FORMAT, {}, no_file)
    values_of(Column("c", "category", names=("Oslo", "Rome")), block, USUAL_FORMAT, {}, no_file)
    assert len(calls) == 4
