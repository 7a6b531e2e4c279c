"""Conversions of tables that are read as columns are those of tables that are read row by row."""

import json
import random
import shutil

import numpy as np
import pyarrow as pa
import pytest
from converted import ledger_of
from pyarrow import parquet
from sweep import SWEEP

from beam_jobs.converter import Source
from converters import table_to_gcs
from converters.table import column_cells, finding, row_converter, survey
from converters.table.block_values import contents_of
from converters.table.columns import Column
from pipeline.errors import InfeedError
from pipeline.raw import blocks
from pipeline.raw.block import Block
from pipeline.raw.pieces import WHOLE
from pipeline.raw.rows import Table
from pipeline.storage.schemes import open_storage

pytestmark = pytest.mark.usefixtures("without_beam")

CELLS = (
    *("", "1", "-2", "3.5", "1e5", "007", "+3", " 4 ", "16777217", "9" * 19, "-", "2026-01-05"),
    *("NA", "  NA           ", "true", "  true           ", "a", "say", "Ø", "two words of text"),
    *("picture.png     ", "not a number 1e5", "1-2", "nan", "inf", ".5", "1_000", "x" * 40),
    *("a picture.png", "#N/A N/A", "A1234567890", "2 rooms or 1"),
)
FLOATS = (0.5, -0.25, 1e300, 2.0**25, -0.0, 0.0, 7.0, float("nan"), None)
OPTIONS = (
    (),
    ("--columns=b=text",),
    ("--columns=a=float32,b=text,c=text", "--key-column=c"),
    ("--columns=a=int64", "--key-column=c", "--validation-fraction=0.3"),
    ("--validation-fraction=0.3",),
    ("--columns=*=text", "--validation-fraction=0.3", "--split-by=b"),
    ("--text-column=b", "--label-column=a"),
    ("--label-column=a", "--validation-fraction=0.4", "--stratify", "--columns=b=text"),
    ("--decimal=,", "--delimiter=;", "--columns=a=float32"),
    ("--missing-values=-2,NA", "--columns=a=float32,b=float32,c=text"),
    ("--target-columns=a,b", "--text-column=c"),
)


def csv_of(r, separator):
    few = r.sample(CELLS, r.choice((2, 6, len(CELLS))))
    lines = [separator.join("abc")]
    for _ in range(r.randrange(1, 60)):
        cells = r.choices(few, k=r.choice((3, 3, 3, 3, 3, 3, 3, 2, 4)))
        cells = [f'"{cell}, ""{separator}\n"' if r.random() < 0.05 else cell for cell in cells]
        lines.append(separator.join(cells) + ('"' if r.random() < 0.02 else ""))
    lines += [""] * r.choice((0, 1, 1, 40))
    return r.choice(("\n", "\n", "\r\n")).join(lines)


def json_of(r):
    cells = [*CELLS, 1, -2, 3.5, 2**40, True, None, 2**70]
    few = r.sample(FLOATS, 6) if r.random() < 0.3 else r.sample(cells, r.choice((2, 6, 20)))
    rows = [dict(zip("abc", r.choices(few, k=3), strict=True)) for _ in range(r.randrange(1, 60))]
    lines = [json.dumps(row) for row in rows]
    return "\n".join(line if r.random() > 0.03 else "{" for line in lines)


def write_parquet(r, path):
    size = r.randrange(1, 60)

    def column():
        values, kind = r.choice(
            [
                ([*CELLS, None], pa.string()),
                (["a", "b", None], pa.dictionary(pa.int32(), pa.string())),
                ([0.5, -0.0, 2.0**25, 1e300, float("nan"), None], pa.float64()),
                ([1, -2, 2**24 + 1, 2**62, None], pa.int64()),
                ([True, False, None], pa.bool_()),
                ([0, 10**9, None], pa.timestamp("ms")),
                ([[1, 2], [], None], pa.list_(pa.int64())),
            ]
        )
        return pa.array(r.choices(r.sample(values, 2), k=size), kind)

    table = pa.table({name: column() for name in "abc"})
    parquet.write_table(table, path, row_group_size=r.choice((7, 100)))


def outcome(raw, out, options, capsys, shard_digests):
    """Everything that a conversion says and writes."""
    shutil.rmtree(out, ignore_errors=True)
    flags = [f"--raw-data-dir={raw}", f"--output={out}", "--max-bad-records=500", *options]
    try:
        said = table_to_gcs.main(flags)
    except InfeedError as e:
        said = str(e)
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note")]
    written = {}
    if (out / "manifest.json").exists():
        written = shard_digests(out)
        written |= {path.name: path.read_text() for path in out.glob("_rejects/*")}
        columns = out / "_summary/columns.json"
        written["columns"] = columns.read_text() if columns.exists() else ""
        for path in sorted(out.glob("_summary/*.json")):
            written[f"notes {path.name}"] = json.loads(path.read_text()).get("notes")
    return said, notes, written


@pytest.mark.parametrize("seed", range(400 if SWEEP else 40))
def test_tables_as_columns_give_the_bytes_notes_and_errors_of_rows(
    seed, raw, out, capsys, shard_digests, monkeypatch
):
    r = random.Random(seed)
    options = OPTIONS[seed % len(OPTIONS)]
    separator = ";" if "--delimiter=;" in options else ","
    if seed % 4 == 0:
        (raw / "train.jsonl").write_text(json_of(r))
    elif seed % 4 == 1:
        write_parquet(r, raw / "train.parquet")
    else:
        for name in ("train.csv", "train-1.csv"):
            (raw / name).write_text(csv_of(r, separator))
    monkeypatch.setattr(column_cells, "_FEW_VALUES", 3)
    monkeypatch.setattr(blocks, "PIECE_BYTES", r.choice((40, 300, 1 << 19)))
    monkeypatch.setattr(survey, "_PIECE_BYTES", r.choice((50, 200, 1 << 19)))
    found = outcome(raw, out, options, capsys, shard_digests)
    monkeypatch.setattr(survey, "_PIECE_BYTES", 1 << 19)

    def by_rows(table, columns=None, units=None, piece=WHOLE):
        assert piece == WHOLE
        rows = [*table.rows(columns, units)]
        yield from [Block.of(rows)] if rows else []

    monkeypatch.setattr(row_converter, "blocks_of", by_rows)
    monkeypatch.setattr(finding, "blocks_of", by_rows)
    expected = outcome(raw, out, options, capsys, shard_digests)
    assert found == expected


def test_of_several_bad_cells_the_first_column_is_named(raw, out):
    (raw / "train.csv").write_text("a,b\n1,2\nx,y\n")
    flags = [f"--raw-data-dir={raw}", f"--output={out}", "--max-bad-records=1"]
    assert table_to_gcs.main([*flags, "--columns=b=int64,a=int64"]) == 0
    assert "'a' is 'x'" in ledger_of(out, "train")["train/train.csv:3"]


@pytest.mark.parametrize("seed", range(8))
def test_the_content_of_rows_is_that_of_their_cells(seed, tmp_path):
    r = random.Random(seed)
    numbers = [*map(str, (2**24, 2**24 - 1, 2**24 + 1, 2**53 + 1, -(2**24) - 1, 16777215.9, 0.1))]
    lines = [",".join(r.choices([*CELLS, *numbers], k=3)) for _ in range(200)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,c", *lines]))
    columns = (Column("c", "float32", missing="7"), Column("a", "text"), Column("b", "category"))
    table = Table(str(tmp_path / "t.csv"))
    for block in blocks.blocks_of(table):
        found = contents_of(columns, block, table.format)
        for content, cells in zip(found, block.by_row(block.names), strict=True):
            assert content == repr(sorted(each.content(cells, table.format) for each in columns))


@pytest.mark.parametrize(("kind", "most"), [("image", 64), ("int64", 1 << 14)])
def test_windows_of_rows_are_small_and_have_each_row_once(kind, most, tmp_path):
    path = str(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("a\n" + "1\n" * 40_000)
    source = Source("train", path, open_storage(path).stat(path))
    converter = row_converter.RowConverter((Column("a", kind),))
    windows = [*converter.windows(open_storage(path), source)]
    assert max(map(len, windows)) == most
    assert np.concatenate([window.line for window in windows]).tolist() == [*range(2, 40_002)]
