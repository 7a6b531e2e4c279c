"""Tables of any columns: what the cells of each are found to be, what a record has, and what is refused."""

import json
import math
import re
import statistics
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from converted import ledger_of, records_of
from pyarrow import parquet

from beam_jobs.rows.column_sums import ColumnSums
from converters.table import column_cells
from converters.table.columns import Column
from pipeline.commands import describe
from pipeline.errors import LabelError, OptionError, SchemaError
from pipeline.raw.rows import Table
from pipeline.shards.manifest import read_manifest
from pipeline.shards.schema import USUAL_FORMAT, TableFormat, read_statistics
from pipeline.storage.schemes import open_storage

pytestmark = pytest.mark.usefixtures("without_beam")


def features_of(out):
    features = read_manifest(str(out)).schema.features
    return {
        name: (feature.dtype, feature.shape, feature.content) for name, feature in features.items()
    }


def lines(*rows):
    return "\n".join(map(json.dumps, rows)) + "\n"


def test_a_csv_of_numbers_classes_and_texts_needs_no_option(table, raw_tables, out):
    rows = [
        f"{i / 2 if i else ''},{i},{'Rome' if i % 3 else 'Oslo'},{100 - i % 2},note {i}\n"
        for i in range(9)
    ]
    table("train.csv", "price,rooms,city,zip code,note\n" + "".join(rows))
    raw_tables.convert(out)
    assert features_of(out) == {
        "price": ("float32", (), "raw"),
        "rooms": ("int64", (), "raw"),
        "city": ("int64", (), "raw"),
        "zip code": ("int64", (), "raw"),
        "note": ("bytes", (), "text"),
    }
    found = sorted(records_of(out), key=lambda record: record["rooms"])
    assert math.isnan(found[0]["price"][0])
    del found[0]["price"]
    assert found[0] == {"rooms": [0], "city": [0], "zip code": [100], "note": [b"note 0"]}
    assert found[1] == {
        "price": [0.5],
        "rooms": [1],
        "city": [1],
        "zip code": [99],
        "note": [b"note 1"],
    }


def test_json_has_lists_of_one_length_or_of_any_and_objects_may_lack_columns(
    table, raw_tables, out
):
    rows = [
        {"box": [i, 2.5], "ids": list(range(i)), "tags": ["x"] * i, "ok": i > 1, "zip": "0123"}
        for i in range(4)
    ]
    table("train.jsonl", lines(*rows, {"box": [0, None], "zip": "0124", "ok": False}))
    raw_tables.convert(out, "--columns=zip=bytes")
    assert features_of(out) == {
        "box": ("float32", (2,), "raw"),
        "ids": ("int64", (None,), "raw"),
        "tags": ("int64", (None,), "raw"),
        "ok": ("int64", (), "raw"),
        "zip": ("bytes", (), "raw"),
    }
    found = {
        len(record["ids"]): record for record in records_of(out) if not math.isnan(record["box"][1])
    }
    assert found[3] == {
        "box": [3, 2.5],
        "ids": [0, 1, 2],
        "tags": [0, 0, 0],
        "ok": [1],
        "zip": [b"0123"],
    }
    assert sum(math.isnan(record["box"][1]) for record in records_of(out)) == 1


def test_options_or_a_file_say_what_columns_hold_and_what_is_left_out(
    table, raw_tables, tmp_path, out, capsys
):
    table(
        "train.csv",
        ",price,rooms,city,note\n" + "".join(f"{i},{i},,{i % 2},{i}\n" for i in range(4)),
    )
    flags = ["--columns=*=skip,price=float32,city=category,rooms=int64", "--missing=rooms=7"]
    raw_tables.convert(out, *flags, "--dry-run")
    assert (
        "note: columns: price float32 (0, 1), rooms int64 (4 missing), city category of 2 classes (0, 1)\n"
        in capsys.readouterr().out
    )
    raw_tables.convert(out, *flags)
    assert sorted(record["price"][0] for record in records_of(out)) == [0, 1, 2, 3]
    assert {record["rooms"][0] for record in records_of(out)} == {7}
    (tmp_path / "columns.json").write_text(
        json.dumps({"*": "skip", "price": "float32", "city": "category"})
    )
    raw_tables.convert(tmp_path / "file", f"--columns={tmp_path}/columns.json")
    assert set(features_of(tmp_path / "file")) == {"price", "city"}


def test_a_label_is_named_in_the_manifest_and_never_missing(table, raw_tables, tmp_path, out):
    table("train.csv", "x,kind,color\n1,b,red\n2,a,\n3,,red\n4,b,red\n")
    raw_tables.convert(
        out, "--label-column=kind", "--max-bad-records=1", "--columns=color=category"
    )
    labels = read_manifest(str(out)).labels
    assert (labels.key, labels.base, labels.names) == ("kind", 0, ("a", "b"))
    assert [*ledger_of(out).values()] == [
        "line 4: 'kind' is ''; a label is a text of one line, or an integer"
    ]
    assert sorted((r["x"][0], r["kind"][0], r["color"][0]) for r in records_of(out)) == [
        (1, 1, 0),
        (2, 0, -1),
        (4, 1, 0),
    ]
    (tmp_path / "kinds.txt").write_text("b\nc\na\n")
    flags = ("--label-column=kind", f"--label-file={tmp_path}/kinds.txt", "--max-bad-records=1")
    raw_tables.convert(tmp_path / "named", *flags)
    assert read_manifest(str(tmp_path / "named")).labels.names == ("b", "c", "a")


def test_images_are_read_where_the_table_names_them(raw_tables, out):
    raw_tables.write_columns()
    raw_tables.convert(out, "--validation-fraction=0", "--label-column=city", "--columns=rooms=int64",
                       "--max-bad-records=5")  # fmt: skip
    images = {tuple(record["photo"])[:1] for record in records_of(out)}
    jpegs = {(data,) for data in raw_tables.images.values() if data.startswith(b"\xff\xd8")}
    assert jpegs < images
    assert len(images) == len(raw_tables.images)
    assert sorted(error.partition(": ")[2][:50] for error in [*ledger_of(out).values()]) == [
        "'city' is ''; a label is a text of one line, or an",
        "'rooms' is 'x'; it must be an integer within int64",
        "4 cells; the header has 5",
        "no file 'none.jpg' can be found",
        "not JSON: Expecting property name enclosed in doub",
    ]


@pytest.mark.parametrize(
    ("cells", "flags", "error", "message"),
    [
        ({"a": {"b": 1}}, [], OptionError, "the column 'a' holds nested columns. A feature holds .* --columns a=skip"),
        ({"a": [[1]]}, [], OptionError, "the column 'a' holds nested lists"),
        ({"a": [1]}, [], OptionError, "the column 'a' holds int64, alone and in lists"),
        ({"a": 1}, ["--columns=b=text"], OptionError, "the tables have no column 'b', which an option names"),
        ({"a": 1}, ["--missing=b=0"], OptionError, "the tables have no column 'b', which an option names"),
        ({"a": 1}, ["--columns=a=flaot32"], OptionError, "a=flaot32 is not understood. Did you mean 'float32'"),
        ({"a": 1}, ["--columns=a"], OptionError, "--columns: a= is not understood. Give COLUMN=VALUE,... or a .json"),
        ({"_a": 1, "_b": 1, "a": 1}, ["--columns=_b=skip"], OptionError, "'_a': names that begin with _ .* --columns _a=skip"),
        ({"a": 1}, ["--columns=a=skip"], OptionError, "no column is left to convert. The tables have: a."),
        ({"a": 1}, ["--target-columns=a"], OptionError, "--target-columns=a: not without --image-column or"),
        ({"a": 1}, ["--text-column=a", "--missing=a=1"], OptionError, "--missing=a=1: not with --image-column or"),
    ],
)  # fmt: skip
def test_what_no_feature_can_hold_is_one_clear_error(
    table, raw_tables, out, cells, flags, error, message
):
    table("train.jsonl", lines(cells, {"a": 1} if "alone" in message else cells))
    with pytest.raises(error, match=message):
        raw_tables.convert(out, *flags)
    assert not out.exists()


@pytest.mark.slow
def test_over_100000_classes_are_refused(table, raw_tables, out):
    table("train.csv", "x,id\n" + "".join(f"1,{i}\n" for i in range(100_001)))
    with pytest.raises(
        LabelError, match="'id' has over 100,000 different values.* give --columns id=text"
    ):
        raw_tables.convert(out, "--columns=id=category")


def test_a_cell_that_makes_texts_of_numbers_is_shown_and_the_first_of_long_ones_named(
    table, raw_tables, out, capsys
):
    lines = "\n" * 11
    for number in range(2):
        table(f"train-{number}.csv", f'a,b\n1,x\n2,"{lines}y"\n3,z\nsix,z\nten,z\n')
    raw_tables.convert(out, "--columns=a=text")
    said = capsys.readouterr().out
    assert "a text (1, 2, six), " in said
    assert re.search(r"the first in \S+/train-0\.csv:3\.", said)


def test_what_is_shown_of_cells_does_not_depend_on_where_a_table_is_cut():
    def cells_of(*cells):
        found = column_cells.ColumnCells(None, None)
        for cell in cells:
            found.add(cell, Table("t.csv"), text=True)
        return found

    long = ("-9223372036854775808 is a text", "-9223372036854775808")  # which begin alike
    whole, cut = cells_of("a", "+3"), cells_of("a", "+3")
    whole.merge(cells_of(*long))
    for cell in long:
        cut.merge(cells_of(cell))
    assert whole.seen == cut.seen == " (a, +3, -9223372036854775808)"
    assert cells_of("7", 7, 8, 9).seen == " (7, 8)"


@pytest.mark.parametrize("number", [300, 301])
def test_as_many_classes_as_are_allowed_are_found_and_one_more_is_refused(
    table, raw_tables, out, monkeypatch, capsys, number
):
    monkeypatch.setattr(column_cells, "_MAX_CLASSES", 300)
    ids = [*range(100), *range(number)]  # those of the first 100 rows are not counted twice
    table("train.csv", "x,id\n" + "".join(f"1,{i}\n" for i in ids))
    if number > 300:
        with pytest.raises(LabelError, match="'id' has over 300 different values"):
            raw_tables.convert(out, "--columns=id=category")
        return
    raw_tables.convert(out, "--columns=id=category")
    assert "id category of 300 classes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        (Column("a", "int64"), None, "'a' has no value. Give --missing a=VALUE, or --columns a=float32"),
        (Column("a", "int64"), "NA", "'a' has no value. Give --missing a=VALUE, or --columns a=float32"),
        (Column("a", "int64"), 2**63, "it must be an integer within int64"),
        (Column("a", "int64"), 1.5, "it must be an integer within int64"),
        (Column("a", "int64", missing="x"), None, "'a' is 'x'; it must be an integer"),
        (Column("a", "float32"), "1_000", "it must be a finite number within float32"),
        (Column("a", "float32"), 1e39, "it must be a finite number within float32"),
        (Column("a", "category", names=("x", "y")), "z", "unknown label 'z'. Known: x, y"),
        (Column("a", "text"), 1.5, "'a' is 1.5; it must be text"),
        (Column("a", "text"), "\ud800", "which is not Unicode text"),
        (Column("a", "int64", (2,)), [1, None], "'a' has no value"),
    ],
)  # fmt: skip
def test_a_column_names_the_value_that_it_cannot_hold(column, cell, message):
    with pytest.raises(ValueError, match=message):
        column.value({"a": cell}, bytes)


@pytest.mark.parametrize(
    ("column", "cell", "value"),
    [
        (Column("a", "int64"), " -3 ", -3),
        (Column("a", "int64"), 3.0, 3),
        (Column("a", "int64"), True, 1),
        (Column("a", "int64", missing="0"), "", 0),
        (Column("a", "float32"), "1e-3", 0.001),
        (Column("a", "float32", missing="-1"), math.nan, -1.0),
        (Column("a", "category", names=("x", "y")), " y", 1),
        (Column("a", "category", names=("x", "y")), None, -1),
        (Column("a", "category", names=("x", "y"), missing="x"), None, 0),
        (Column("a", "text"), None, b""),
        (Column("a", "bytes"), b"\xff", b"\xff"),
        (Column("a", "int64", (None,)), None, []),
    ],
)
def test_cells_of_each_kind_become_these_values(column, cell, value):
    assert column.value({"a": cell}, bytes) == value


COMMAS = TableFormat(decimal=",")


@pytest.mark.parametrize(
    "same",
    [
        [("7", "text"), (7, "int64"), ("7.0", "float32"), (Decimal(7), "float32")],
        [("true", "category"), ("True", "text"), (True, "int64"), (1.0, "float32")],
        [("0.1", "float32"), (float(np.float32(0.1)), "float32"), ("0,1", "float32", COMMAS)],
        [("", "text"), (None, "int64"), (math.nan, "float32"), ("NA", "float32")],
        [("Oslo, or Rome.", "text"), (" Oslo, or Rome. ", "category", COMMAS)],
        [("a.png", "image"), ({"bytes": None, "path": "a.png"}, "image")],
    ],
    ids=str,
)
def test_cells_that_mean_the_same_decide_alike_which_split_has_their_row(same):
    def content(cell, kind, format=USUAL_FORMAT):
        return repr(Column("a", kind).content({"a": cell}, format))

    others = (("8", "text"), ("b.png", "image"), (b"a.png", "image"), ("2", "category"))
    assert len({content(*cell) for cell in same}) == 1
    assert len({content(*cell) for cell in (same[0], *others)}) == 5


@pytest.mark.parametrize(
    "scale",
    [1e-45, 1.0, 1e30, 10.0 ** np.linspace(-40, 30, 1000), None],
    ids=["tiny", "one", "huge", "mixed", "nanoseconds"],
)
def test_sums_are_exact_and_do_not_depend_on_the_order(scale):
    rng = np.random.default_rng(0)
    array = 17 * 10**17 + rng.integers(0, 100, 1000)  # float64 rounds them to 256
    if scale is not None:
        array = (rng.normal(size=1000) * scale).astype(np.float32)
    whole = ColumnSums()
    for part in range(3):
        whole.add(ColumnSums.of(array[part::3], classes=False))
    assert whole == ColumnSums.of(array[::-1], classes=False)
    found, values = whole.statistics(), array.tolist()
    assert found.mean == float(sum(map(Fraction, values)) / len(values))
    assert found.deviation == pytest.approx(statistics.pstdev(map(Fraction, values)), rel=1e-12)
    assert (found.count, found.missing, found.min, found.max) == (1000, 0, min(values), max(values))


def test_a_split_has_its_own_statistics_whatever_the_shards(table, raw_tables, tmp_path, capsys):
    rows = [
        f"{'' if i == 3 else i / 8},{i * 2**40},{'ab'[i % 2] if i else ''}\n" for i in range(40)
    ]
    for name, some in (("train", rows), ("validation", rows[:2])):
        table(f"{name}.csv", "price,big,city\n" + "".join(some))
    flags = ("--columns=city=category",)
    raw_tables.convert(tmp_path / "one", *flags)
    raw_tables.convert(tmp_path / "many", *flags, "--num-train-shards=7")
    raw_tables.convert(tmp_path / "later", *flags, "--splits=validation")
    raw_tables.convert(tmp_path / "later", *flags, "--splits=train")
    files = {
        (tmp_path / out / "_summary/columns.json").read_bytes() for out in ("one", "many", "later")
    }
    assert len(files) == 1
    found = read_statistics(open_storage(str(tmp_path)), str(tmp_path / "one"))
    train = found["train"]
    assert (train["price"].count, train["price"].missing) == (39, 1)
    assert train["price"].mean == sum(i / 8 for i in range(40) if i != 3) / 39
    assert train["big"].mean == 19.5 * 2**40
    assert train["big"].deviation == pytest.approx(np.std(np.arange(40)) * 2**40, rel=1e-15)
    assert dict(train["city"].categories) == {"a": 19, "b": 20}
    assert (train["city"].missing, found["validation"]["city"].categories) == (1, {"a": 0, "b": 1})
    capsys.readouterr()
    describe.main([str(tmp_path / "one"), "--samples=0"])
    shown = capsys.readouterr().out
    assert "train: columns" in shown
    assert "a 19" in shown


def test_a_split_that_is_replaced_replaces_its_statistics(table, raw_tables, out):
    table("train.csv", "a\n1\n")
    raw_tables.convert(out)
    table("train.csv", "a\n1\n3\n")
    raw_tables.convert(out, "--overwrite")
    assert read_statistics(open_storage("x"), str(out))["train"]["a"].mean == 2


def test_a_damaged_file_of_statistics_is_never_trusted(table, raw_tables, out):
    table("train.csv", "a\n1\n")
    raw_tables.convert(out)
    file = out / "_summary/columns.json"
    file.write_text(file.read_text().replace('"count": 1', '"count": 2'))
    with pytest.raises(SchemaError, match="its checksum is .*Convert the table again"):
        read_statistics(open_storage("x"), str(out))
    raw_tables.convert(out)
    assert json.loads(file.read_bytes())["splits"]["train"]["a"]["count"] == 1


def truths(directory, name, no, yes):
    """Writes 12 rows: y is true where x is divisible by 3. None leaves a row out."""
    cells = [no if i % 3 else yes for i in range(12)]
    rows = [{"x": i, "y": cell} for i, cell in enumerate(cells) if cell is not None]
    if name.endswith(".parquet"):
        parquet.write_table(pa.Table.from_pylist(rows), directory / name)
    else:
        is_json = name.endswith(".jsonl")
        text = "".join(f"{row['x']},{row['y']}\n" for row in rows)
        (directory / name).write_text(lines(*rows) if is_json else f"x,y\n{text}")


@pytest.mark.parametrize("flags", [[], ["--label-column=y"]], ids=["guessed", "label"])
@pytest.mark.parametrize(
    "tables",
    [
        {"train.csv": ("false", "true"), "validation.jsonl": (False, True)},
        {"train.jsonl": (False, True), "validation.csv": ("0", "true"), "train-2.csv": ("0", "1")},
        {"train.parquet": (False, True), "validation.csv": ("FALSE", "TRUE")},
        {"train.parquet": (False, True), "validation.csv": (None, "true")},
        {"train.csv": ("False", "True"), "validation.csv": ("false", "true")},
        {"train.csv": ("0", "1"), "validation.parquet": (False, True)},
        {"train.csv": ("0.0", "1.0"), "validation.csv": ("False", "True")},
        {"train.csv": ("0.0", "1.0"), "validation.jsonl": (False, True)},
        {"train.parquet": (0, 1), "validation.parquet": ("false", "true")},
    ],
    ids=str,
)
def test_true_is_one_class_however_each_table_writes_it(raw_tables, out, tables, flags):
    raw_tables.directory.mkdir()
    for name, spelled in tables.items():
        truths(raw_tables.directory, name, *spelled)
    raw_tables.convert(out, *flags)
    for split in ("train", "validation"):
        for record in records_of(out, split):
            (x,) = record["x"]
            assert record["y"] == [int(x % 3 == 0)]
    labels = read_manifest(str(out)).labels
    assert labels is None or [name.lower() for name in labels.names] in (
        ["false", "true"],
        ["0", "1"],
    )


@pytest.mark.parametrize("cells", [("churn", "stay"), ("7", "9"), ("0", "2")])
def test_true_beside_other_classes_is_refused_with_both_files(raw_tables, out, cells):
    raw_tables.directory.mkdir()
    truths(raw_tables.directory, "train.csv", *cells)
    truths(raw_tables.directory, "validation.jsonl", False, True)
    message = "'y' has true or false in .*/validation.jsonl, but other classes in .*/train.csv"
    with pytest.raises(OptionError, match=message):
        raw_tables.convert(out, "--label-column=y")


def test_true_may_be_a_class_among_others_of_one_table(raw_tables, out):
    raw_tables.directory.mkdir()
    truths(raw_tables.directory, "train.jsonl", "unknown", True)
    truths(raw_tables.directory, "train-1.jsonl", "unknown", None)
    truths(raw_tables.directory, "validation.csv", "unknown", "true")
    raw_tables.convert(out, "--label-column=y")
    assert read_manifest(str(out)).labels.names == ("True", "unknown")
