"""Pieces of tables: where their rows begin, and that they have all rows, each once."""

import json
import random

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.raw.blocks import blocks_of
from pipeline.raw.pieces import WHOLE, Piece, guessed_start, pieces_of
from pipeline.raw.rows import Table
from pipeline.shards.schema import TableFormat

CELLS = ("", "1", "2.5", '"a, b"', '"two\nlines"', '"say ""hi""\n,\n"', '"\n\n\n"', "Ø")


@pytest.fixture
def table(tmp_path):
    """table(lines, ...) -> one of csv with these rows; of another name or format."""

    def written(lines, name="t.csv", **format):
        path = tmp_path / name
        path.write_text("\n".join(lines))
        return Table(str(path), TableFormat(**format))

    return written


def starts_of(table):
    return [row.offset for row in table.rows()]


@pytest.mark.parametrize("seed", range(10))
def test_where_rows_of_csv_begin_is_guessed_from_any_byte_of_them(table, seed):
    r = random.Random(seed)
    usual = table(["a,b,c", *(",".join(r.choices(CELLS, k=3)) for _ in range(60))])
    starts = starts_of(usual)
    # not in the last rows, which may not tell whether they are inside quotes
    for begin in range(starts[0], starts[-3], 3):
        assert guessed_start(usual, begin) == min(each for each in starts if each >= begin)


@pytest.mark.parametrize(("name", "format"), [("t.jsonl", {}), ("t.csv", {"quoted": False})])
def test_without_quotes_each_line_begins_a_row(table, name, format):
    lines = [json.dumps({"a": f'{i}"'}) if "json" in name else f'"{i}' for i in range(50)]
    usual = table(["a"] * (name == "t.csv") + lines, name, **format)
    starts = starts_of(usual)
    for begin in range(starts[0] + 1, starts[-1]):
        assert guessed_start(usual, begin) == min(each for each in starts if each >= begin)


def test_a_text_without_a_line_break_tells_nothing(table):
    assert guessed_start(table(["a", "b" * 100]), 50) is None


def test_a_cell_of_many_lines_is_told_from_rows_beyond_the_first_bytes_that_are_looked_at(table):
    lines = "\n".join(f"{i}" for i in range(10_000))
    long = table(["a,b", f'1,"{lines}"', *["1,2"] * 100])
    assert guessed_start(long, 1000) == starts_of(long)[1]


@pytest.mark.parametrize("piece_bytes", [1, 2000, 10**9])
def test_pieces_of_parquet_are_row_groups(tmp_path, piece_bytes):
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"a": range(1000)}), path, row_group_size=64)
    table = Table(str(path))
    pieces = pieces_of(table, path.stat().st_size, piece_bytes)
    assert (pieces == (WHOLE,)) == (piece_bytes == 10**9)
    rows = [
        (line, offset, cell)
        for piece in pieces
        for block in blocks_of(table, piece=piece)
        for line, offset, cell in zip(
            block.line.tolist(), block.offset.tolist(), block.cells("a").to_pylist(), strict=True
        )
    ]
    assert rows == [(i + 1, i + 1, i) for i in range(1000)]
    assert all((piece.begin - 1) % 64 == 0 for piece in pieces if piece != WHOLE)


def test_pieces_of_parquet_have_as_many_row_groups_each_as_reach_the_size(tmp_path):
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"a": range(1000)}), path, row_group_size=10)
    pieces = pieces_of(Table(str(path)), num_bytes=100_000, piece_bytes=3_000)
    assert [piece.end - piece.begin for piece in pieces] == [30] * 33 + [10]


@pytest.mark.parametrize("name", ["t.csv.gz", "t.arrow"])
def test_a_file_that_cannot_be_read_from_its_middle_is_one_piece(name):
    assert pieces_of(Table(name), 10**12, 1) == (WHOLE,)


def test_lines_of_a_piece_count_from_the_beginning_of_the_file(table):
    usual = table(["a,b", "1,2", '3,"\n"', "4,5", "6,7"])
    (block,) = blocks_of(usual, piece=Piece(starts_of(usual)[2], starts_of(usual)[3], 4))
    assert (block.line.tolist(), [*block.by_row("ab")]) == ([5], [{"a": "4", "b": "5"}])


@pytest.mark.parametrize("names", ["text", "id,text", "id,text,label"])
@pytest.mark.parametrize("size", [2_000, 20_000])
def test_rows_are_found_among_lines_of_prose_in_quotes(table, names, size):
    r = random.Random(0)
    line = "lorem ipsum, dolor sit amet, consectetur\n"
    rows = []
    for number in range(60_000 // size + 2):
        prose = "".join(line[r.randrange(9) :] for _ in range(size // 40))
        cells = {"id": str(number), "text": f'"{prose}"', "label": "a"}
        rows.append(",".join(cells[name] for name in names.split(",")))
    long = table([names, *rows])
    starts = starts_of(long)
    for begin in r.sample(range(starts[0] + 1, starts[-3]), 40):
        assert guessed_start(long, begin) == min(each for each in starts if each >= begin)
