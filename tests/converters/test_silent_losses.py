"""Tables as people have them: each value arrives as it was, computed by pandas, pyarrow or Python, or is refused by name."""

import datetime
import decimal
import gzip
import json
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from converted import ledger_of, records_of
from PIL import Image
from pyarrow import csv as arrow_csv
from pyarrow import feather, ipc, parquet

from converters import table_to_gcs
from converters.table.converter import ImageTableConverter
from converters.table.row_converter import RowConverter
from converters.text.converter import TextConverter
from converters.text.documents import DocumentFormat
from pipeline.commands.describe import main as describe
from pipeline.errors import ConversionError, OptionError, RawDataError, SchemaError
from pipeline.raw.rows import Table
from pipeline.shards.manifest import read_manifest
from pipeline.shards.schema import USUAL_FORMAT, Schema, TableFormat, read_statistics
from pipeline.storage.local import LocalStorage
from pipeline.tokenizers import ByteTokenizer, TextInfo

pytestmark = pytest.mark.usefixtures("without_beam")

NOON = datetime.datetime(2026, 1, 2, 12, 0, 0, 5000)


@pytest.fixture
def convert(raw, raw_tables, tmp_path, capsys):
    """convert(*flags) -> values by column in the order of keys, features, and what was printed."""

    def run(*flags, keys=None):
        raw_tables.convert(tmp_path / "out", *flags)
        printed = capsys.readouterr().out
        records = records_of(tmp_path / "out")
        columns = {name: [record[name] for record in records] for name in records[0]}
        describe([str(tmp_path / "out")])
        printed += capsys.readouterr().out
        return columns, read_manifest(str(tmp_path / "out")).schema.features, printed

    return run


def of_one(values):
    return sorted(value for (value,) in values)


SAME_INSTANT = {
    "timestamps": (
        [pa.array([NOON], pa.timestamp(unit)) for unit in ("ms", "us", "ns")],
        "ns since 1970-01-01",
        np.datetime64(NOON, "ns").astype(int),
    ),
    "timestamps of a time zone": (
        [pa.array([NOON], pa.timestamp(unit, "Europe/Rome")) for unit in ("ms", "us")],
        "us since 1970-01-01 UTC",
        np.datetime64(NOON, "us").astype(int),
    ),
    "dates beside timestamps": (
        [
            pa.array([NOON.date()], pa.date32()),
            pa.array([datetime.datetime(2026, 1, 2)], pa.timestamp("ms")),
        ],
        "ms since 1970-01-01",
        np.datetime64(NOON.date(), "ms").astype(int),
    ),
    "times of day": (
        [pa.array([NOON.time()], kind) for kind in (pa.time32("ms"), pa.time64("us"))],
        "us since midnight",
        12 * 3600 * 10**6 + 5000,
    ),
    "durations": (
        [
            pa.array([datetime.timedelta(seconds=3)], pa.duration("s")),
            pa.array([datetime.timedelta(seconds=3)], pa.duration("ms")),
        ],
        "ms of duration",
        3000,
    ),
}


@pytest.mark.parametrize("kind", SAME_INSTANT)
def test_one_instant_in_files_of_several_units_is_one_number_in_the_finest(raw, convert, kind):
    arrays, unit, number = SAME_INSTANT[kind]
    for i, array in enumerate(arrays):
        parquet.write_table(pa.table({"at": array}), raw / f"train-{i}.parquet")
    columns, features, printed = convert()
    assert columns["at"] == [[number]] * len(arrays)
    assert features["at"].unit == unit
    assert f"at int64 in {unit}" in printed
    assert re.search(rf"at +int64 .*{unit}", printed)  # of describe


@pytest.mark.parametrize(
    ("others", "text"),
    [
        (pa.array([NOON], pa.timestamp("ms", "UTC")), "ms since 1970-01-01 UTC"),
        (pa.array([1]), "holds int64 and ms since 1970-01-01"),
        (pa.array([NOON.time()], pa.time32("ms")), "ms since midnight"),
    ],
)
def test_columns_that_count_different_things_are_refused_by_name(raw, convert, others, text):
    parquet.write_table(
        pa.table({"at": pa.array([NOON], pa.timestamp("ms"))}), raw / "train-0.parquet"
    )
    parquet.write_table(pa.table({"at": others}), raw / "train-1.parquet")
    with pytest.raises(OptionError, match=f"the column 'at' .*{text}"):
        convert()


def test_times_and_numbers_in_dictionaries_are_what_they_are(raw, convert):
    noon = NOON.replace(microsecond=0, tzinfo=datetime.UTC)
    cells = {
        "at": pa.array([noon, None, noon], pa.timestamp("s", "UTC")),
        "price": pa.array([7, 8, 7], pa.int32()),
        "city": pa.array(["Oslo", "Rome", "Oslo"]),
    }
    table = pa.table({name: cell.dictionary_encode() for name, cell in cells.items()})
    feather.write_feather(table, raw / "train-0.arrow")
    finer = pa.table(cells | {"at": cells["at"].cast(pa.timestamp("ms", "UTC"))})
    parquet.write_table(finer, raw / "train-1.parquet")
    columns, features, _ = convert("--missing=at=0")
    instant = int(noon.timestamp()) * 1000
    rows = zip(columns["at"], columns["price"], strict=True)
    assert sorted(rows) == [([0], [8])] * 2 + [([instant], [7])] * 4
    assert features["at"].unit == "ms since 1970-01-01 UTC"


def test_an_instant_beyond_the_finest_unit_is_refused_with_its_row(raw, convert, tmp_path):
    far = np.array(["2400-01-01", "2020-01-01"], "datetime64[s]")
    parquet.write_table(pa.table({"at": far}), raw / "train-0.parquet")
    parquet.write_table(pa.table({"at": far[1:].astype("datetime64[ns]")}), raw / "train-1.parquet")
    with pytest.raises(
        ConversionError, match=r"train-0.parquet:1: row 1: 'at' is 1356\d+; it must"
    ):
        convert()


def test_decimals_and_long_digits_keep_every_digit(raw, convert):
    table = pa.table({"id": pa.array([decimal.Decimal(1234567890123456789)], pa.decimal128(38))})
    parquet.write_table(table, raw / "train.parquet")
    assert convert()[0]["id"] == [[1234567890123456789]]


def test_decimals_with_a_fraction_of_zeros_are_exact_integers_and_others_are_bad(raw, convert, out):
    cells = ["9007199254740993.00", "-7.00", None, "4503599627370497.25", "0.01"]
    cells = [cell and decimal.Decimal(cell) for cell in cells]
    table = pa.table({"d": pa.array(cells, pa.decimal128(38, 2)), "x": cells})
    parquet.write_table(table, raw / "train.parquet")
    columns, features, _ = convert("--columns=d=int64", "--missing=d=5", "--max-bad-records=2")
    rows = zip(columns["d"], columns["x"], strict=True)
    assert sorted((d, str(x)) for (d,), (x,) in rows) == [
        (-7, "-7.0"), (5, "nan"), (9007199254740993, "9007199254740992.0"),
    ]  # fmt: skip
    assert features["x"].dtype == "float32"
    assert [*ledger_of(out).values()] == [
        "row 4: 'd' is Decimal('4503599627370497.25'); it must be an integer within int64.",
        "row 5: 'd' is Decimal('0.01'); it must be an integer within int64.",
    ]


def test_digits_that_a_number_would_not_keep_are_texts(raw, convert):
    rows = [("00501", "+39 06", 2**63, "7"), ("10001", "+4930", 5, "8"), ("02139", "+1", 6, "-9")]
    lines = "".join(f"{','.join(map(str, row))}\n" for row in rows)
    (raw / "train.csv").write_text(f"zip,phone,id,n\n{lines}")
    columns, features, printed = convert()
    assert {name: feature.dtype for name, feature in features.items()} == {
        "zip": "bytes", "phone": "bytes", "id": "bytes", "n": "int64",
    }  # fmt: skip
    assert of_one(columns["zip"]) == [b"00501", b"02139", b"10001"]
    assert of_one(columns["phone"]) == [b"+1", b"+39 06", b"+4930"]
    assert of_one(columns["id"]) == sorted(str(row[2]).encode() for row in rows)
    assert (
        "zip text (00501, 10001), phone text (+39 06, +4930), id text (9223372036854775808, 5)"
        in printed
    )


def test_integers_of_json_beyond_64_bits_are_refused_by_name(raw, convert):
    (raw / "train.jsonl").write_text(f'{{"id": {2**64}}}\n{{"id": 1}}\n')
    with pytest.raises(OptionError, match="the column 'id' holds int64 and integers beyond int64"):
        convert()


@pytest.mark.parametrize("marker", ["?", "-", "#N/A", "\\N", "", "nan", "--"])
def test_the_usual_markers_are_missing_values_in_columns_of_numbers(raw, convert, marker):
    cells = [marker if i % 60 == 0 else f"{i / 4}" for i in range(400)]
    (raw / "train.csv").write_text("x,y\n" + "".join(f"{cell},1\n" for cell in cells))
    columns, features, printed = convert()
    assert features["x"].dtype == "float32"
    numbers = [value for (value,) in columns["x"]]
    assert sum(map(math.isnan, numbers)) == 7
    assert sorted(n for n in numbers if n == n) == [i / 4 for i in range(400) if i % 60]
    assert "x float32 (0.25, 0.5; 7 missing), y int64 (1)" in printed


def test_markers_can_be_given_and_then_no_others_are(raw, convert):
    (raw / "train.csv").write_text("x\n1.5\n999\n\n2.5\n")
    columns, _, _ = convert("--missing-values=999,none")
    assert sorted(map(str, (value for (value,) in columns["x"]))) == ["1.5", "2.5", "nan"]
    (raw / "train.csv").write_text("x\n1.5\n?\n")
    columns, _, _ = convert("--missing-values=999", "--overwrite")
    assert of_one(columns["x"]) == [b"1.5", b"?"]


@pytest.mark.parametrize(
    ("text", "mark"), [("a;b\n1;2\n", "';'"), ("a\tb\n1\t2\n", "tab"), ("sep=;\na;b\n1;2\n", "';'")]
)
def test_another_delimiter_is_refused_with_the_flag_to_give(raw, convert, text, mark):
    (raw / "train.csv").write_text(text)
    with pytest.raises(RawDataError, match=f"Give --delimiter {mark}"):
        convert()
    columns, _, _ = convert(f"--delimiter={mark.strip(chr(39))}")
    assert columns == {"a": [[1]], "b": [[2]]}


def test_decimal_commas_and_single_byte_encodings_are_read_as_arrow_does(raw, convert):
    text = "preis;ort\n1,5;Köln\n-2,25;Düren\n1.000,5;x\n"
    (raw / "train.csv").write_bytes(text[: text.index("1.000")].encode("cp1252"))
    columns, _, _ = convert(
        "--delimiter=;", "--decimal=,", "--encoding=cp1252", "--columns=ort=text"
    )
    options = arrow_csv.ConvertOptions(decimal_point=",")
    read = arrow_csv.read_csv(
        raw / "train.csv",
        arrow_csv.ReadOptions(encoding="cp1252"),
        arrow_csv.ParseOptions(delimiter=";"),
        options,
    )
    assert of_one(columns["preis"]) == sorted(read["preis"].to_pylist())
    assert of_one(columns["ort"]) == sorted(name.encode() for name in read["ort"].to_pylist())
    (raw / "train.csv").write_text(text)
    flags = ("--delimiter=;", "--decimal=,", "--columns=preis=float32", "--overwrite")
    with pytest.raises(ConversionError, match=r"'preis' is '1,000.5'; it must be a finite number"):
        convert(*flags)  # a point that separates thousands is not read over


def test_quotes_that_swallow_rows_are_told_with_their_line_and_may_mean_nothing(
    raw, raw_tables, convert, capsys, out
):
    texts = [f"text {i}" for i in range(60)]
    texts[8] = '"text 8'
    texts[38] = 'text 38"'
    data = "".join(f"{i}\t{text}\n" for i, text in enumerate(texts))
    (raw / "train.tsv").write_text(f"id\ttext\n{data}")
    told = f"note: cells have more than 10 line ends, the first in {raw}/train.tsv:10. If their"
    for flags in ((), ("--text-column=text", "--label-column=id", "--overwrite")):
        columns, _, printed = convert(*flags)
        assert told in printed
        assert len(columns["text"]) == 30
    # of one cell, where the header has two
    (raw / "train.tsv").write_text(f"id\ttext\n{data}".replace('8\t"', '"8\t', 1))
    columns, _, printed = convert("--max-bad-records=1", "--overwrite")
    assert told in printed
    assert len(columns["text"]) == 29
    (raw / "train.tsv").write_text(f"id\ttext\n{data}")
    columns, features, printed = convert("--quote=none", "--columns=text=text", "--overwrite")
    assert told not in printed
    assert of_one(columns["text"]) == sorted(text.encode() for text in texts)
    assert features.keys() == {"id", "text"}
    schema = read_manifest(str(out)).schema
    assert [*Table(f"{raw}/train.tsv", schema.table).rows()][8].cells["text"] == texts[8]
    text = json.loads((out / "manifest.json").read_text())["schema"]["table"]
    assert text["quoted"] is False


def test_formats_that_have_quotes_keep_the_digests_of_before_they_could_have_none():
    for converter in (
        RowConverter(()),
        ImageTableConverter("file"),
        TextConverter(TextInfo(ByteTokenizer(), 8, "split"), DocumentFormat()),
    ):
        fields = converter.digest_fields()
        assert fields["format"] == {
            "delimiter": None,
            "decimal": ".",
            "encoding": "utf-8",
            "missing_values": USUAL_FORMAT.missing_values,
        }
        inside = converter.reading if isinstance(converter, TextConverter) else converter
        unquoted = replace(inside, format=TableFormat(quoted=False))
        if inside is not converter:
            unquoted = replace(converter, reading=unquoted)
        assert unquoted.digest_fields()["format"]["quoted"] is False
    other = Schema("", {}, table=TableFormat(decimal=","))
    assert "quoted" not in other.to_json()["table"]


@pytest.mark.parametrize("encoding", ["utf-16", "gbk", "shift_jis", "hex", "nonsense", "euc_jp"])
def test_an_encoding_whose_bytes_are_no_characters_is_refused_by_name(raw, convert, encoding):
    (raw / "train.csv").write_text("a\n1\n")
    with pytest.raises(
        OptionError, match=f"--encoding={encoding}: it must be utf-8, or have ASCII"
    ):
        convert(f"--encoding={encoding}")


def test_everything_in_the_directory_is_read_or_named(raw, convert):
    (raw / "train.csv").write_text("a\n1\n")
    (raw / "train-2.CSV").write_text("a\n2\n")
    (raw / "train-3.csv.gz").write_bytes(gzip.compress(b"a\n3\n"))
    (raw / "train").mkdir()
    (raw / "train" / "more.csv").write_text("a\n4\n")
    (raw / "validation.xlsx").write_bytes(b"PK")
    (raw / "other.csv").write_text("a\n5\n")
    columns, _, printed = convert()
    assert of_one(columns["a"]) == [1, 2, 3, 4]
    assert "note: 1 file not read: validation.xlsx. The names of tables end in .csv" in printed
    assert "note: 1 file not read: other.csv. The names of tables begin with a split" in printed


def test_folders_of_spark_hive_and_save_to_disk_are_tables(raw, convert, tmp_path):
    for date, cell in (("2026-01-01", 1), ("2026-01-02", 2), ("__HIVE_DEFAULT_PARTITION__", 3)):
        folder = raw / "train.parquet" / f"date={date}" / "city=San%20Jos%C3%A9"
        folder.mkdir(parents=True)
        parquet.write_table(pa.table({"n": [cell]}), folder / "part-0.parquet")
        (folder / "_SUCCESS").touch()
    (raw / "train").mkdir()
    table = pa.table({"n": [4, 5], "date": ["x", "y"], "city": ["a", "b"]})
    with ipc.new_stream(raw / "train" / "data-00000-of-00001.arrow", table.schema) as sink:
        sink.write_table(table)
    (raw / "train" / "state.json").write_text("{}")
    columns, _, printed = convert("--columns=date=text,city=text")
    cells = zip(columns["n"], columns["date"], columns["city"], strict=True)
    by_n = {n: (date, city) for (n,), (date,), (city,) in cells}
    place = "San José".encode()
    assert by_n == {
        1: (b"2026-01-01", place), 2: (b"2026-01-02", place), 3: (b"", place), 4: (b"x", b"a"), 5: (b"y", b"b"),
    }  # fmt: skip
    assert "_SUCCESS" not in printed
    assert "1 file not read: train/state.json" in printed


def test_a_rejected_row_is_named_by_its_file(raw, convert, out):
    (raw / "train").mkdir()
    (raw / "train" / "a.csv").write_text("x,y\n1,2\n3\n")
    with pytest.raises(
        ConversionError, match=r"/raw/train/a.csv:3: line 3: 1 cells; the header has 2"
    ):
        convert()
    assert list(ledger_of(out)) == ["train/train/a.csv:3"]


def test_a_column_that_only_some_tables_have_is_named_with_a_way_out(raw, convert):
    (raw / "train-1.csv").write_text("a,b\n1,2\n")
    (raw / "train-2.csv").write_text("a\n1\n")
    with pytest.raises(
        OptionError,
        match=r"^columns of other tables, also of splits that --splits .* \(--columns NAME=skip .*train-2.csv has",
    ):
        convert()


def test_the_units_and_markers_of_a_run_are_in_the_schema(raw, convert, out):
    (raw / "train.csv").write_text("x\n1.5\nlost\n")
    convert("--missing-values=lost")
    page = json.loads((out / "manifest.json").read_text())
    assert page["schema"]["table"]["missing_values"] == ["lost"]


def test_times_are_no_classes_and_no_targets(raw, convert):
    parquet.write_table(
        pa.table({"at": pa.array([NOON], pa.timestamp("ms")), "t": ["x"]}), raw / "train.parquet"
    )
    with pytest.raises(OptionError, match="the column 'at' holds category and ms since 1970-01-01"):
        convert("--columns=at=category")
    with pytest.raises(
        ConversionError, match="'at' of .* has ms since 1970-01-01, and a number is"
    ):
        convert("--text-column=t", "--target-columns=at")


def test_only_names_that_spark_hides_are_hidden(raw, convert):
    (raw / "_temporary").mkdir()
    (raw / "_temporary" / "part.csv").write_text("a\n1\n")
    (raw / "_train.csv").write_text("a\n2\n")
    columns, _, printed = convert("--validation-fraction=0")
    assert columns["a"] == [[2]]
    assert "not read" not in printed


def test_only_empty_cells_of_a_category_are_missing(raw, convert):
    (raw / "train.csv").write_text("c,y\n" + "NA,1\nDE,2\n" * 3 + ",3\n")
    columns, _, printed = convert("--missing=c=DE")
    assert sorted(number for (number,) in columns["c"]) == [0, 0, 0, 0, 1, 1, 1]  # DE, NA
    assert "c category of 2 classes (DE; 1 missing)" in printed


ROUNDED = "numbers above 16,777,216 that were rounded, because float32 holds 24 bits: "


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".arrow"])
def test_numbers_that_float32_rounds_are_counted_in_any_format(raw, convert, suffix):
    """As pandas writes a column of integers with a gap."""
    write(raw / f"train-0{suffix}", pd.DataFrame({"x": [16777217, None, 16777216, 1.1]}))
    assert f"{ROUNDED}1." in convert("--columns=x=float32")[2]


def test_every_number_that_is_rounded_counts_also_several_of_one_row(raw, convert):
    rows = [[2**24 + 1, 2**25 + 1, 5], [2**24 + 2, 1, 2], [2**26 + 1, 2**60 + 1, 2**24 + 3]]
    lines = ({"x": row, "y": 1e9 + i} for i, row in enumerate(rows))
    (raw / "train.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    _, _, printed = convert("--columns=x=float32,y=float32")
    numbers = [*np.ravel(rows).tolist(), *(10**9 + i for i in range(3))]
    assert sum(int(np.float32(number)) != number for number in numbers) == 7
    assert f"warning: {ROUNDED}7.\n" in printed


def test_times_without_a_value_are_not_told_to_become_floats(raw, convert, tmp_path):
    times = pa.array([NOON, None], pa.timestamp("us"))
    parquet.write_table(pa.table({"at": times}), raw / "train-0.parquet")
    with pytest.raises(ConversionError) as caught:
        convert()
    assert "Give --missing at=VALUE in us since 1970-01-01" in str(caught.value)
    assert "float32" not in str(caught.value)


def names_in(tmp_path, column):
    """The names of a category's classes."""
    statistics = read_statistics(LocalStorage(), str(tmp_path / "out"))["train"]
    return [*statistics[column].categories]


def write(path, frame):
    """Writes the frame in the format of the path."""
    if path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        getattr(frame, {".parquet": "to_parquet", ".arrow": "to_feather"}[path.suffix])(path)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".arrow"])
def test_classes_are_those_that_occur_whatever_their_type(raw, convert, tmp_path, suffix):
    frame = pd.DataFrame({"number": [7, 9, 7], "truth": [True, False, True], "x": [0.5, 1, 2]})
    write(raw / f"train-0{suffix}", frame)
    columns, _, _ = convert("--columns=number=category,truth=category")
    assert names_in(tmp_path, "number") == ["7", "9"]
    assert names_in(tmp_path, "truth") == ["False", "True"]
    rows = zip(*(columns[name] for name in ("x", "number", "truth")), strict=True)
    assert sorted(rows) == [([0.5], [0], [1]), ([1], [1], [0]), ([2], [0], [1])]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
def test_folders_state_a_column_whatever_else_the_tables_have(raw, convert, suffix):
    for city in ("Oslo", "Rome"):
        (raw / "train" / f"city={city}").mkdir(parents=True)
        write(raw / f"train/city={city}/0.{suffix}", pd.DataFrame({"x": [1.5, 2.5]}))
    columns, _, _ = convert()
    assert sorted(zip(columns["city"], columns["x"], strict=True)) == [
        *(([n], [x]) for n in (0, 1) for x in (1.5, 2.5)),
    ]


def test_a_class_that_pandas_writes_with_and_without_a_fraction_is_one(raw, convert, tmp_path):
    (raw / "train-1.csv").write_text("k,x\n1.0,\n,\n2.0,\n")
    (raw / "train-0.csv").write_text("k,x\n1,\n2,\n2,\n")
    convert("--columns=k=category,x=skip")
    assert names_in(tmp_path, "k") == ["1", "2"]


def test_what_turns_numbers_into_texts_or_is_left_out_is_shown(raw, convert):
    rows = "".join(f"row {i},{i % 4}.5\n" for i in range(40))
    (raw / "train.csv").write_text(f',price\n{rows}other,"1,234.5"\n')
    printed = convert()[2]
    assert "(no name) skip (row 0, row 1)" in printed
    assert "price category of 5 classes (0.5, 1.5, 1,234.5)" in printed


def test_odd_names_of_columns_are_told(raw, convert):
    (raw / "train.csv").write_text("5.1,3.5, setosa\n4.9,3.0, setosa\n")
    assert "columns are named '5.1', '3.5', ' setosa': the first line must" in convert()[2]


def test_markers_that_are_numbers_are_missing_however_they_are_written(raw, convert):
    (raw / "train-0.jsonl").write_text('{"a": -999}\n{"a": "-999"}\n{"a": -999.0}\n{"a": 2.5}\n')
    (raw / "train-1.csv").write_text("a\n-999.0\n-999\n3.5\n")
    columns, _, _ = convert("--missing-values=-999", "--missing=a=0")
    assert sorted(columns["a"]) == [[0.0]] * 5 + [[2.5], [3.5]]


def test_integers_of_a_column_that_has_texts_keep_their_digits(raw, convert):
    rows = "".join(f'{{"id": "x{i}"}}\n' for i in range(5))
    (raw / "train.jsonl").write_text(f'{rows}{{"id": 12345678901234567890}}\n')
    columns, _, _ = convert("--columns=id=text")
    assert [b"12345678901234567890"] in columns["id"]


def test_a_key_that_a_json_row_has_twice_is_refused_with_its_line(raw, convert):
    (raw / "train.jsonl").write_text('{"a": 1}\n{"a": 1, "a": 2}\n')
    with pytest.raises(ConversionError, match="line 2: not JSON: a key is there twice"):
        convert()


def test_caches_beside_saved_datasets_are_left_out_and_named(raw, convert):
    (raw / "train").mkdir()
    for name in ("data-00000-of-00001", "cache-1234567890abcdef"):
        with ipc.new_stream(
            raw / "train" / f"{name}.arrow", pa.schema([("x", pa.int64())])
        ) as sink:
            sink.write_table(pa.table({"x": [1, 2]}))
    columns, _, printed = convert()
    assert of_one(columns["x"]) == [1, 2]
    assert "1 file not read: train/cache-1234567890abcdef.arrow" in printed


def test_a_delta_table_is_refused_because_its_log_says_what_counts(raw, convert):
    (raw / "train" / "_delta_log").mkdir(parents=True)
    (raw / "train" / "_delta_log" / "0.json").write_text("{}")
    (raw / "train" / "a.csv").write_text("x\n1\n")
    with pytest.raises(RawDataError, match="_delta_log/0.json is of a Delta table, whose log says"):
        convert()


def test_a_cell_that_folder_and_file_state_is_refused_wherever_it_is(raw, convert):
    folder = raw / "train.jsonl" / "date=1"
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_text('{"x": 1}\n' * 1001 + '{"date": 5, "x": 1}\n')
    with pytest.raises(
        ConversionError, match="a.jsonl:1002: line 1002: date: a column and a folder"
    ):
        convert()
    (folder / "date=2").mkdir()
    (folder / "a.jsonl").rename(folder / "date=2" / "a.jsonl")
    with pytest.raises(RawDataError, match="two columns 'date'"):
        convert("--overwrite")


def test_images_of_tables_in_folders_have_the_labels_of_the_folders(raw, convert, out):
    for label in ("cat", "dog"):
        folder = raw / "train.csv" / f"label={label}"
        folder.mkdir(parents=True)
        (folder / "a.csv").write_text(f"f\n{label}.png\nno {label}.png\n")
        Image.new("RGB", (4, 4)).save(folder / f"{label}.png")
    (raw / "more").mkdir()
    columns, _, printed = convert("--image-column=f", "--label-column=label", "--max-bad-records=2")
    assert of_one(columns["image/class/text"]) == [b"cat", b"dog"]
    assert len(ledger_of(out)) == 2
    assert "1 file not read: more. Folders are searched for images" in printed


@pytest.mark.parametrize("name", ["train.csv.GZ", "train.CSV.gz"])
def test_compressed_files_are_recognized_in_any_case(raw, convert, name):
    (raw / name).write_bytes(gzip.compress(b"a\n3\n"))
    assert convert()[0]["a"] == [[3]]


def test_a_path_that_goes_up_and_down_again_is_the_same_directory(
    raw, raw_tables, out, monkeypatch
):
    (raw / "train.csv").write_text("a\n3\n")
    monkeypatch.chdir(raw)
    table_to_gcs.main(["--raw-data-dir=../raw", f"--output={out}"])
    assert records_of(out) == [{"a": [3]}]


def test_a_header_of_one_column_may_have_a_comma_in_quotes(raw, convert):
    (raw / "train.csv").write_text('"last, first"\nx\ny\n')
    assert of_one(convert()[0]["last, first"]) == [b"x", b"y"]


def test_options_for_cells_without_a_value_are_refused_where_they_would_do_nothing(raw, convert):
    (raw / "train.csv").write_text("t,x\nsome text,1\n,2\n")
    with pytest.raises(
        OptionError, match="--missing: 't' holds text. Give it numbers and categories"
    ):
        convert("--missing=t=none")
    (raw / "train.csv").unlink()
    parquet.write_table(pa.table({"x": [1, -999]}), raw / "train.parquet")
    with pytest.raises(
        OptionError, match="--missing-values: it is for text; Parquet and Arrow have"
    ):
        convert("--missing-values=-999")


@pytest.mark.parametrize(
    "wrong", [{"delimiter": "ab"}, {"encoding": "hex"}, {"encoding": "utf-16"}]
)
def test_a_schema_of_others_cannot_state_another_form_of_text(wrong):
    with pytest.raises(SchemaError, match="must be one character, and utf-8 or one with a byte"):
        TableFormat(**wrong)


def test_a_decimal_that_states_a_million_zeros_takes_no_time(raw, convert):
    buffer = pa.py_buffer((7).to_bytes(16, "little"))
    array = pa.Array.from_buffers(pa.decimal128(5, -1_000_000), 1, [None, buffer])
    with ipc.new_stream(raw / "train.arrow", pa.schema([("x", array.type)])) as sink:
        sink.write_batch(pa.record_batch([array], names=["x"]))
    with pytest.raises(ConversionError, match="'x' is inf; it must|cannot be read"):
        convert()


def test_a_column_of_times_in_folders_keeps_its_unit(raw, convert):
    (raw / "train" / "city=Oslo").mkdir(parents=True)
    table = pa.table({"at": pa.array([NOON], pa.timestamp("ms"))})
    parquet.write_table(table, raw / "train/city=Oslo/0.parquet")
    columns, features, _ = convert()
    assert features["at"].unit == "ms since 1970-01-01"
    assert len(columns["city"]) == 1
