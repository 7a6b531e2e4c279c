"""Blocks have exactly the rows that `Table.rows` reads one by one, wherever pieces of the file end."""

import gzip
import json
import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather, parquet
from sweep import examples

from pipeline.raw import blocks as module
from pipeline.raw import rows as rows_module
from pipeline.raw.block import ABSENT, objects
from pipeline.raw.blocks import blocks_of
from pipeline.raw.rows import Table
from pipeline.shards.schema import TableFormat

USUAL = st.sampled_from(["", "1", "-2.5", "Oslo", "a b", "Ø", "名", "NA"])
QUOTED = st.sampled_from(['"x,y"', '"q""r"', '"two\nlines"', '"cr\r\nlf"', '""', '""""', '"""a"'])
UNUSUAL = st.sampled_from(
    ['"open', '5" pipe', '"x"y', "lone\rcr", "n\0l", '"', '""x', "\ufeff", "\u2028"]
)
BREAKS = st.sampled_from(["\n", "\r\n", "\n\n", "\r\n\r\n"])


@st.composite
def csv_texts(draw, unusual=True, delimiter=","):
    """A header of two or three columns, and rows of which some are odd."""
    names = draw(st.sampled_from([["a"], ["a", "b"], ["a", "b", "c"], ["", '"x,1"']]))
    cells = st.one_of(USUAL, USUAL, QUOTED, *[UNUSUAL] * unusual)
    lines = [delimiter.join(names), draw(BREAKS)]
    for _ in range(draw(st.integers(0, 12))):
        count = len(names) + draw(st.sampled_from([0, 0, 0, 0, 0, 1, -1]))
        lines += [delimiter.join(draw(cells) for _ in range(count)), draw(BREAKS)]
    return "".join(lines[: len(lines) - draw(st.booleans())])


def assert_same(table, columns=None, units=None):
    """The blocks of a table, each checked to have the rows of the table."""
    found = list(blocks_of(table, columns, units))
    rows = []
    for block in found:
        places = np.stack([block.line, block.offset, block.lines]).T.tolist()
        for i, (place, cells) in enumerate(zip(places, block.by_row(block.names), strict=True)):
            error = block.errors.get(i, "")
            rows.append((*place, error, [] if error else sorted(cells.items())))
    expected = [
        (row.line, row.offset, row.lines, row.error, [] if row.error else sorted(row.cells.items()))
        for row in table.rows(columns, units)
    ]
    assert repr(rows) == repr(expected)  # also nan, 1 and 1.0, -0.0
    return found


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    folder = tmp_path_factory.mktemp("blocks")

    def write(data, name):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return str(path)

    return write


@settings(max_examples=examples(300), deadline=None)
@given(
    st.one_of(csv_texts(), csv_texts(unusual=False)),
    st.sampled_from(["utf-8", "utf-8-sig", "cp1252", "latin-1"]),
    st.sampled_from(["utf-8", "utf-8", "cp1252", "latin-1"]),
    st.booleans(),
    st.sampled_from(["t.csv", "t.csv.gz", "date=2026/t.csv", "a=x/t.csv"]),
    st.integers(1, 80),
)
def test_blocks_of_csv_have_the_rows_that_are_read_one_by_one(
    write, text, written, read, quoted, name, num_bytes
):
    table = Table(
        write(text.encode(written, "replace"), name),
        TableFormat(encoding=read, quoted=quoted),
        name,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_BYTES", num_bytes)
        try:
            assert_same(table)
        except rows_module.RawDataError as e:
            with pytest.raises(rows_module.RawDataError, match=f"^{re.escape(str(e))}$"):
                list(table.rows())


@pytest.mark.parametrize(
    "text",
    [
        'a\n1\n"open\n2', 'a\n"open', 'a,b\n"1",2\n3,"open\n\n4', 'a\n"x"\n"y\n"\n', 'a\n5"\n"x"\n', 'a\n\r\n1\r\n', 'a,b\n1,2\r\n3\r\n',
        'a\n"\ufeffx"\n', 'a\n\ufeffx\n', '\ufeffa\n1', 'a,b\nØ,"n\n名"\n3,4', 'a,b\n1,""\n"",""\n', 'a,b\n"""",""""""\n"a""",x', "sep=,\na,b\n1,2",
    ],
)  # fmt: skip
@pytest.mark.parametrize("num_bytes", [1, 3, 7, 1 << 19])
def test_blocks_of_odd_csv_have_the_rows_that_are_read_one_by_one(
    write, text, num_bytes, monkeypatch
):
    monkeypatch.setattr(module, "PIECE_BYTES", num_bytes)
    for encoding in ("utf-8", "latin-1", "cp1252"):
        assert_same(Table(write(text.encode(), "t.csv"), TableFormat(encoding=encoding)))


def test_usual_csv_is_read_in_columns(write):
    text = 'a,b\n"1","x, y"\n2,"q""r"\r\n3\n\n"4\n5",Ø\n'
    (block,) = assert_same(Table(write(text.encode(), "t.csv")))
    assert block.rows is None
    assert block.errors == {2: "1 cells; the header has 2"}
    assert objects(block.cells("b"), np.array([0, 1, 3])) == ["x, y", 'q"r', "Ø"]


@pytest.mark.parametrize("odd", [b'5" pipe', b'"x"y', b"lone\rcr", b"\xff", b'"open'])
def test_only_some_rows_after_an_odd_one_are_not_read_in_columns(write, odd, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 1 << 13)
    data = b"a,b\n" + b"1,2\n" * 1000 + b"3," + odd + b"\n" + b'4,"5"\n' * 1000
    blocks = assert_same(Table(write(data, "t.csv")))
    one_by_one = [block for block in blocks if block.rows is not None]
    assert sum(map(len, one_by_one)) < 100
    assert blocks[0].rows is None
    assert blocks[-1].rows is None


@pytest.mark.parametrize("delimiter", [";", "\t", "|", " ", "§", "5", "."])
def test_blocks_of_csv_with_other_delimiters(write, delimiter):
    text = delimiter.join("ab") + "\n" + delimiter.join(["1", "x y"]) + "\n"
    assert_same(Table(write(text.encode(), "t.csv"), TableFormat(delimiter)))


@pytest.mark.parametrize(
    ("name", "data"), [("t.csv", b"a,b\n1,2\n"), ("t.jsonl", b'{"a": 1, "b": 2}\n{"b": 2}\n')]
)
def test_rows_with_a_column_that_a_folder_has_too_are_errors(write, name, data):
    (block,) = assert_same(Table(write(data, f"a=3/{name}"), name=f"a=3/{name}"))
    assert block.errors == {0: "a: a column and a folder"}


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_rows_after_one_over_the_limit_are_read_one_by_one(write, name, monkeypatch):
    monkeypatch.setattr(rows_module, "MAX_ROW_BYTES", 40)
    monkeypatch.setattr(module, "PIECE_BYTES", 16)
    data = b'a,b\n1,"2\n' + b"3,4\n" * 20 + b"5," + b"y" * 300 + b"\n6,7\n" + b'8,"\n' * 9
    for begin in (b"a,b\n", b"a,b\n" + b"0,0\n" * 9, b"a,b\n" + b"0,0\n" * 9 + b'"x,y'):
        assert_same(Table(write(begin + data, name)))


JSON_LINES = st.sampled_from([
    b'{"a": 1, "b": "x"}', b'{"a": 1.0, "b": null}', b'{"b": [1, {"c": 2}], "a": true}', b' {"a":-0}\r', b"",
    b'{"a": 12345678901234567890123, "b": -0.0}', b'{"a": NaN}', b'{"a": 1e400}', b'{"a": "\\ud800"}', b'{"a": "\xff"}',
    b'{"a": 1, "a": 2}', b'{"a" :1, "a": 2}', b'{"a": {"b": 1, "b": 2}}', b'{"a": "\\":", "b": "12:30"}', b'{"a": "{\\"x\\": 1}"}',
    b'{"a": 1} {"a": 2}', b'{"b":', b"1}", b"[1]", b"{}", b'{"\\u0061": 1, "a": 2}', '{"a": "Ø名"}'.encode(), b'\xef\xbb\xbf{"a": 2}',
    b'{"a": "\\u0000\\/"}', b'{"a": 0.1000000000000000055511151231257827, "date": 1}', b'{"a": "x\ty"}', b'{"a": ' + b"1" * 4400 + b"}",
])  # fmt: skip


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.one_of(JSON_LINES, st.just(b'{"a": 1, "b": "x"}'))),
    st.sampled_from(["utf-8", "cp1252"]),
    st.booleans(),
    st.sampled_from(["t.jsonl", "t.jsonl.gz", "date=2026/t.jsonl"]),
    st.integers(1, 80),
)
def test_blocks_of_json_have_the_rows_that_are_read_one_by_one(
    write, lines, encoding, ends, name, num_bytes
):
    data = b"\n".join(lines) + b"\n" * ends
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_BYTES", num_bytes)
        assert_same(Table(write(data, name), TableFormat(encoding=encoding), name))


JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.dictionaries(st.text(max_size=3), JSON_VALUES, max_size=3), max_size=4),
    st.booleans(),
)
def test_blocks_of_any_json_have_the_rows_that_are_read_one_by_one(write, rows, is_ascii):
    text = "\n".join(json.dumps(row, ensure_ascii=is_ascii) for row in rows)
    assert_same(Table(write(text.encode(errors="surrogatepass"), "t.jsonl")))


def test_plain_json_is_not_read_line_by_line(write, monkeypatch):
    monkeypatch.setattr(rows_module, "_parse_json", None)
    (block,) = blocks_of(Table(write(b'{"a": 1, "b": "12:30"}\n{"a": [2]}\n', "t.jsonl")))
    assert block.cells("a") == [1, [2]]
    assert block.cells("b") == ["12:30", ABSENT]


def arrow_table(n):
    """A column of each kind that Parquet has, with gaps."""
    seconds = pa.array([*range(n - 1), None], pa.timestamp("s"))
    words = ["Oslo", "Ø名", None, "", "a\0"] * n
    return pa.table({
        "text": words[:n], "large": pa.array(words[1 : n + 1], pa.large_string()),
        "words": pa.array(words[2 : n + 2]).dictionary_encode(), "nothing": pa.nulls(n), "gaps": pa.array([None] * n, pa.string()).dictionary_encode(),
        "int": pa.array([None, *range(n - 1)], pa.int64()), "small": pa.array([-1] * n, pa.int8()), "big": pa.array([2**64 - 1] * n, pa.uint64()),
        "float": [0.1, -0.0, float("nan"), None, *[1e300] * (n - 4)], "single": pa.array([0.1] * n, pa.float32()),
        "half": pa.array(np.full(n, 0.5, np.float16)), "bool": [True, None, False, *[True] * (n - 3)], "list": [[1, 2], None, *[[3]] * (n - 2)],
        "struct": [{"a": "x"}] * n, "decimal": pa.array([Decimal("1.50")] * n), "bytes": [b"x\xff"] * n, "time": seconds,
        "date": pa.array([1] * n, pa.date32()), "date64": pa.array([None] * n, pa.date64()), "spans": pa.array([5] * n, pa.duration("us")),
    })  # fmt: skip


@pytest.mark.parametrize(
    "name", ["t.parquet", "t.arrow", "a=x/b=__HIVE_DEFAULT_PARTITION__/t.parquet"]
)
def test_blocks_of_parquet_and_arrow_have_the_rows_that_are_read_one_by_one(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True, parents=True)
    data = arrow_table(29)
    if name.endswith(".arrow"):
        feather.write_feather(data, path)
    else:
        parquet.write_table(data, path, row_group_size=10)
    table = Table(str(path), name=name)
    found = assert_same(table)
    cells = found[0].cells
    arrays = ("text", "large", "words", "int", "small", "float", "single", "half", "bool")
    for each in (*arrays, "gaps", "time", "date", "date64", "spans"):
        assert isinstance(cells(each), pa.Array)
    assert_same(table, {"text", "time"}, {"time": "ms since 1970-01-01"})
    assert_same(table, {"other"})


def size_of(cell):
    if isinstance(cell, list | dict):
        return sum(map(size_of, cell.values() if isinstance(cell, dict) else cell))
    return len(cell) if isinstance(cell, str | bytes) else 8


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
def test_rows_of_parquet_and_arrow_are_those_of_pyarrow(tmp_path, name):
    """Times are numbers, in the unit that the file has."""
    path = tmp_path / name
    write, read = (feather.write_feather, feather.read_table)
    if name.endswith(".parquet"):
        write, read = (parquet.write_table, parquet.read_table)
    write(arrow_table(29), path)
    expected = read(path)
    for i, (column, kind) in enumerate(zip(expected.columns, expected.schema.types, strict=True)):
        if pa.types.is_temporal(kind):
            number = pa.int32() if kind == pa.date32() else pa.int64()
            expected = expected.set_column(i, expected.schema.names[i], column.cast(number))
    rows = [(row.line, row.offset, row.cells, row.size) for row in Table(str(path)).rows()]
    cells = [(cells, sum(map(size_of, cells.values()))) for cells in expected.to_pylist()]
    assert repr(rows) == repr([(i, i, *each) for i, each in enumerate(cells, start=1)])


def test_parquet_texts_that_are_not_utf_8_are_the_same_error(tmp_path):
    text = pa.array([b"ok", b"\xff"]).view(pa.string())
    for name, each in (("t", text), ("d", pa.DictionaryArray.from_arrays([0, 1], text))):
        path = str(tmp_path / f"{name}.arrow")
        feather.write_feather(pa.table({"a": each}), path)
        with pytest.raises(
            rows_module.RawDataError, match=r"'utf-8' codec .* Write it"
        ) as expected:
            list(Table(path).rows())
        with pytest.raises(rows_module.RawDataError) as found:
            list(blocks_of(Table(path)))
        assert str(found.value) == str(expected.value)
