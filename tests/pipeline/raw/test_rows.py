"""Rows of tables: the byte range of each, what Python's csv module says of it, and what is no row."""

import csv
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples

from pipeline.errors import RawDataError
from pipeline.raw import rows as module
from pipeline.raw.rows import Table
from pipeline.shards.schema import TableFormat


def parsed(data, delimiter=","):
    """The cells of a row from its bytes."""
    return json.loads(data) if data.lstrip().startswith(b"{") else csv_cells(data, delimiter)


def csv_cells(data, delimiter=","):
    return next(
        csv.reader(io.StringIO(data.decode(), newline=""), delimiter=delimiter, strict=True)
    )


@pytest.fixture
def rows_of(tmp_path):
    """rows_of(data, name): the rows of a file of these bytes, each checked to be found again by its range alone."""

    def rows(data, name="t.csv", delimiter=None):
        path = tmp_path / name
        path.write_bytes(data)
        found = list(Table(str(path), TableFormat(delimiter)).rows())
        for row in found:
            if not row.error:
                again = parsed(
                    data[row.offset : row.offset + row.size],
                    delimiter or ("\t" if ".tsv" in name else ","),
                )
                assert again == (row.cells if isinstance(again, dict) else list(row.cells.values()))
        return found

    return rows


def told(rows):
    return [(row.line, row.error or dict(row.cells)) for row in rows]


def test_a_csv_row_may_span_lines_and_empty_lines_are_skipped(rows_of):
    data = b'a,b\r\n1,"x\r\ny"\r\n\r\n2,"q""r,"\n3,5" pipe\n4,last'
    assert told(rows_of(data)) == [
        (2, {"a": "1", "b": "x\r\ny"}),
        (5, {"a": "2", "b": 'q"r,'}),
        (6, {"a": "3", "b": '5" pipe'}),
        (7, {"a": "4", "b": "last"}),
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_column_or_object(rows_of):
    assert told(rows_of(b"\xef\xbb\xbfa,b\n1,2\n")) == [(2, {"a": "1", "b": "2"})]
    assert told(rows_of(b'\xef\xbb\xbf{"a": 1}\n', "t.jsonl")) == [(1, {"a": 1})]


def test_rows_may_be_separated_by_tabs_or_a_given_delimiter(rows_of):
    assert told(rows_of(b"a\tb\n1,5\t2\n", "t.tsv")) == [(2, {"a": "1,5", "b": "2"})]
    assert told(rows_of(b"a;b\n1,5;2\n", delimiter=";")) == [(2, {"a": "1,5", "b": "2"})]


def test_bad_rows_are_reported_by_line_and_affect_no_other_row(rows_of):
    data = b'a,b\n1\n2,\xff\n3,4,5\n6,"x"y\n7,"open\n8,9\n10,"x\ny",11\n12,13\n'
    assert told(rows_of(data)) == [
        (2, "1 cells; the header has 2"),
        (3, "not UTF-8: byte 0xff (see --encoding)"),
        (4, "3 cells; the header has 2"),
        (5, "not a csv row: ',' expected after '\"'"),
        # The quote of line 6 is closed by line 8's: a row of its own, over lines 6 to 8, it is not.
        (6, "not a csv row: ',' expected after '\"'"),
        (7, {"a": "8", "b": "9"}),
        (8, "3 cells; the header has 2"),
        (10, {"a": "12", "b": "13"}),
    ]


def test_an_unclosed_quote_loses_only_its_own_line(rows_of):
    data = b'a,b\n1,2\n3,"4\n5,6\n7,8\n'
    assert told(rows_of(data)) == [
        (2, {"a": "1", "b": "2"}),
        (3, "not a csv row: unexpected end of data"),
        (4, {"a": "5", "b": "6"}),
        (5, {"a": "7", "b": "8"}),
    ]


def test_a_row_over_the_limit_is_an_error_and_the_next_rows_are_read(rows_of, monkeypatch):
    monkeypatch.setattr(module, "MAX_ROW_BYTES", 40)
    data = b'a,b\n1,"2\n' + b"3,4\n" * 20 + b"5," + b"y" * 3000 + b"\n6,7\n"
    error = "over 40 bytes in one row. Is there a quote that is never closed?"
    assert told(rows_of(data)) == [
        (2, error),
        *((line, {"a": "3", "b": "4"}) for line in range(3, 23)),
        (23, error),
        (24, {"a": "6", "b": "7"}),
    ]
    assert told(rows_of(b'{"a": 1}\n{"a": "' + b"z" * 99 + b'"}\n{"a": 2}\n', "t.jsonl")) == [
        (1, {"a": 1}), (2, error), (3, {"a": 2}),
    ]  # fmt: skip


def test_json_lines_that_are_not_objects_are_reported(rows_of):
    deep = b"[" * 100_000
    data = b'{"a": 1}\n\n[1]\n{"a": \n{"a": "\xff"}\n3\n{}\n' + deep + b'\n{"a": {"b": null}}'
    errors = [
        (1, {"a": 1}),
        (3, "not a JSON object with columns: [1]"),
        (4, "not JSON: Expecting value at character 7"),
        (5, "not UTF-8: byte 0xff (see --encoding)"),
        (6, "not a JSON object with columns: 3"),
        (7, "not a JSON object with columns: {}"),
    ]
    found = told(rows_of(data, "t.jsonl"))
    assert found[:6] == errors
    assert found[6][0] == 8
    assert found[6][1].startswith("not JSON: ")
    assert found[7] == (9, {"a": {"b": None}})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has no header with the names of its columns: it is empty"),
        (b"\n\n", "it is empty"),
        ("a,b\n".encode("utf-16"), "seems to be UTF-16. Write it as UTF-8"),
        ('"ö","b"\r\n'.encode("utf-16-le"), "seems to be UTF-16. Write it as UTF-8"),
        ("Größe,b\n".encode("utf-16-be"), "seems to be UTF-16. Write it as UTF-8"),
        (b"a,b,a\n", "has two columns 'a'. Rename one of them"),
        (b'a,"b\n1,2\n', "has no header .* not a csv row: unexpected end of data"),
    ],
)
def test_a_table_without_a_header_is_one_clear_error(rows_of, data, message):
    with pytest.raises(RawDataError, match=message):
        rows_of(data)


def test_the_columns_are_the_headers_or_those_of_the_first_objects(tmp_path):
    tables = {
        "t.csv": ",a,b\n1,2,3\n",
        "t.jsonl": 'bad\n{"": 1, "a": 2}\n{"b": 3, "a": 4}\n'
        + "\n" * 2
        + '{"a": 1}\n' * 997
        + '{"c": 1}\n',
        "empty.jsonl": "",
    }
    for name, data in tables.items():
        (tmp_path / name).write_text(data)
        names = Table(str(tmp_path / name)).column_names()
        assert names == ([] if name == "empty.jsonl" else ["", "a", "b"])


def slowly(data):
    """As module csv has it, every row that makes no sense given up after its first line, and all read again."""
    lines, at = data.splitlines(keepends=True), 1
    while at < len(lines):
        reader, step = csv.reader(lines[at:], strict=True), 1
        try:
            cells = next(reader)
            step, wrong = reader.line_num, f"{len(cells)} cells; the header has 1"
            told = {"a": cells[0]} if len(cells) == 1 else wrong
        except csv.Error as e:
            cells, told = [], f"not a csv row: {e}"
        if cells or str(told).startswith("not"):
            yield at + 1, told
        at += step


@settings(max_examples=500, deadline=None)  # a third of them misses a wrong end of what is doomed
@given(
    st.text(st.sampled_from('"",x\n'), max_size=40)
    | st.lists(st.sampled_from(['"",x",",', '"', 'x,"', "x"])).map("\n".join)
)
def test_rows_equal_those_of_a_slow_reader_that_tries_every_line(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("rows") / "t.csv"
    path.write_text(f"a\n{text}")
    assert told(Table(str(path)).rows()) == list(slowly(f"a\n{text}"))


def test_unclosed_quotes_cost_at_most_five_readings_of_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_ROW_BYTES", 4000)
    sizes, decode = [], module._text
    monkeypatch.setattr(
        module, "_text", lambda line, *more: sizes.append(len(line)) or decode(line, *more)
    )
    path = tmp_path / "t.csv"
    for end in ("", 'x"x\n'):  # of the file, within the limit or not
        for lines in (300, 3000):
            path.write_text("a\n" + '"",x",",\n' * lines + end)
            sizes.clear()
            rows = list(Table(str(path)).rows())
            assert len(rows) == lines + bool(end)
            assert sum(sizes) < 5 * path.stat().st_size


# With an end of line of \n alone, Python's writer leaves a lone \r unquoted, and no reader can tell what it meant.
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=6)
cells = st.lists(texts, min_size=2, max_size=2)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(cells, max_size=6), st.sampled_from(["\n", "\r\n"]))
def test_whatever_pythons_csv_module_writes_is_read_back_row_by_row(tmp_path_factory, table, end):
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end).writerows([["a", "b"], *table])
    path = tmp_path_factory.mktemp("rows") / "t.csv"
    path.write_bytes(text.getvalue().encode())
    rows = list(Table(str(path)).rows())
    assert [list(row.cells.values()) for row in rows] == table
    data = path.read_bytes()
    assert [csv_cells(data[row.offset : row.offset + row.size]) for row in rows] == table
