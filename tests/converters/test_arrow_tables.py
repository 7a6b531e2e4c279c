"""Parquet, Arrow and Feather tables: each type and encoding, Hugging Face's layout, what is refused, memory."""

import datetime
import decimal
import io
import json
import math
import time

import numpy as np
import pyarrow as pa
import pytest
from converted import ledger_of, records_of
from PIL import Image
from pyarrow import feather, ipc, parquet
from sweep import SWEEP
from table_columns import find_columns

from pipeline.errors import InfeedError, LabelError, OptionError, RawDataError
from pipeline.raw import arrow_files, arrow_tables
from pipeline.raw.rows import Table
from pipeline.shards.manifest import read_manifest

pytestmark = pytest.mark.usefixtures("without_beam")

KINDS = {
    "i": pa.array([1, 2, 3, 4], pa.int16()),
    "f": pa.array([1.5, None, 2.5, 3.5], pa.float64()),
    "h": pa.array([1.5, 2, 3, 4], pa.float16()),
    "b": pa.array([True, False, True, True]),
    "s": pa.array(["x", "x", "x", None]),
    "long": pa.array(["text 1", "text 2", "text 3", "text 4"], pa.large_string()),
    "cat": pa.array(["q", "p", "q", "p"]).dictionary_encode(),
    "bin": pa.array([b"\xff", b"", None, b"a"]),
    "dec": pa.array([decimal.Decimal("1.25")] * 4),
    "day": pa.array([datetime.date(2020, 1, 1)] * 4),
    "at": pa.array([datetime.datetime(2020, 1, 1)] * 4, pa.timestamp("ms")),
    "fixed": pa.array([[1, 2]] * 4, pa.list_(pa.float32(), 2)),
    "ragged": pa.array([[1, 2], [], None, [3]], pa.list_(pa.int64())),
    "tags": pa.array([["a"], [], ["b", "c"], None], pa.list_(pa.string())),
    "none": pa.nulls(4),
}
RECORD = {
    "i": [3], "f": [2.5], "h": [3], "b": [1], "s": [0], "long": [b"text 3"], "cat": [1], "bin": [b""], "dec": [1.25],
    "day": [18262], "at": [1577836800000], "fixed": [1, 2], "ragged": [], "tags": [b"b", b"c"], "none": [b""],
}  # fmt: skip


def features_of(out):
    return {
        name: (feature.dtype, feature.shape)
        for name, feature in read_manifest(str(out)).schema.features.items()
    }


def image(color):
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), color).save(buffer, "PNG")
    return buffer.getvalue()


def write_stream(table, path):
    with ipc.new_stream(path, table.schema) as sink:
        sink.write_table(table)


WRITERS = {
    "train.parquet": lambda table, path: parquet.write_table(table, path, row_group_size=3),
    "train-1.parquet": lambda table, path: parquet.write_table(
        table,
        path,
        compression="zstd",
        use_dictionary=False,
        column_encoding={"i": "DELTA_BINARY_PACKED"},
    ),
    "train-2.parquet": lambda table, path: parquet.write_table(table, path, data_page_version="2.0", version="2.6"),
    "train.arrow": write_stream,
    "train.feather": lambda table, path: feather.write_feather(table, str(path), compression="zstd"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
def test_every_type_arrives_as_the_table_says(raw, raw_tables, out, name):
    WRITERS[name](pa.table(KINDS), raw / name)
    raw_tables.convert(out)
    assert features_of(out) == {
        **dict.fromkeys(("i", "b", "s", "cat", "day", "at"), ("int64", ())),
        **dict.fromkeys(("f", "h", "dec"), ("float32", ())),
        **dict.fromkeys(("long", "bin", "none"), ("bytes", ())),
        "fixed": ("float32", (2,)),
        "ragged": ("int64", (None,)),
        "tags": ("bytes", (None,)),
    }
    records = sorted(records_of(out), key=lambda record: record["i"])
    assert records[2] == RECORD
    assert math.isnan(records[1]["f"][0])
    assert records[3]["s"] == [-1]


def test_hugging_face_s_classes_keep_their_numbers_and_images_become_jpegs(raw, raw_tables, out):
    images = [
        {"bytes": image("red"), "path": None},
        {"bytes": None, "path": "a.png"},
        {"bytes": b"", "path": "a.png"},
    ]
    (raw / "a.png").write_bytes(image("blue"))
    features = {
        "label": {"names": ["zebra", "ant"], "_type": "ClassLabel"},
        "image": {"_type": "Image"},
    }
    for split, number in (("train", 0), ("train", 1), ("validation", 0)):
        table = pa.table({"image": images, "label": [0, 1, 1]})
        table = table.replace_schema_metadata(
            {"huggingface": json.dumps({"info": {"features": features}})}
        )
        parquet.write_table(table, raw / f"{split}-{number:05d}-of-00002.parquet")
    raw_tables.convert(out, "--label-column=label")
    manifest = read_manifest(str(out))
    assert manifest.labels.names == ("zebra", "ant")
    assert {split: entry.num_records for split, entry in manifest.splits.items()} == {
        "train": 6,
        "validation": 3,
    }
    assert manifest.schema.features["image"].content == "image"
    for record in records_of(out):
        red, _, blue = np.asarray(Image.open(io.BytesIO(record["image"][0]))).mean((0, 1))
        assert (red > blue) == (record["label"] == [0])


@pytest.mark.parametrize("kind", ["category", "text"])
def test_numbers_of_hugging_face_s_classes_without_a_name_are_bad_records(
    raw, raw_tables, out, kind
):
    """-1 and null have no label, as in its ClassLabel.encode_example."""
    features = {"y": {"names": ["2", "1", "0"], "_type": "ClassLabel"}}
    table = pa.table({"y": [0, 2, -1, None, 3, -2], "x": range(6)}).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    parquet.write_table(table, raw / "train.parquet")
    raw_tables.convert(out, f"--columns=y={kind}", "--max-bad-records=2")
    found = {record["x"][0]: record["y"][0] for record in records_of(out)}
    expected = (0, 2, -1, -1) if kind == "category" else (b"2", b"0", b"", b"")
    assert found == dict(enumerate(expected))
    errors = ledger_of(out).values()
    assert [error.partition("}")[0] for error in errors] == [
        "row 5: 'y' is {'a class without a name': 3",
        "row 6: 'y' is {'a class without a name': -2",
    ]


def test_only_the_columns_asked_for_are_read(raw, raw_tables, out, monkeypatch):
    parquet.write_table(
        pa.table({"a": [1, 2], "b": ["x", "x"], "c": [{"d": 1}] * 2}), raw / "train.parquet"
    )
    read, iter_batches = [], parquet.ParquetFile.iter_batches

    def spy(*args, columns, **options):
        read.append(columns)
        return iter_batches(*args, columns=columns, **options)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", spy)
    raw_tables.convert(out, "--columns=b=text,c=skip", "--key-column=b", "--dry-run")
    assert read == [[], ["a", "b"]]  # texts are looked at only where they may be classes


def test_texts_and_images_with_labels_come_from_parquet_as_from_csv(raw, raw_tables, tmp_path):
    raw_tables.write_images()
    rows = {
        "file": [f"img/{i}.jpg" for i in range(4)],
        "note": ["a", "b", "", "d"],
        "tag": ["x", "y", "x", "x"],
    }
    parquet.write_table(pa.table(rows), raw / "train.parquet")
    raw_tables.convert(
        tmp_path / "texts", "--text-column=note", "--label-column=tag", "--max-bad-records=1"
    )
    texts = {record["text"][0]: record["label"] for record in records_of(tmp_path / "texts")}
    assert texts == {b"a": [0], b"b": [1], b"d": [0]}
    assert (
        "row 3: 'note' is ''; it must be text"
        in (tmp_path / "texts/_rejects/train.jsonl").read_text()
    )
    raw_tables.convert(tmp_path / "images", "--image-column=file", "--label-column=tag")
    images = {
        record["image/encoded"][0]: record["image/class/label"]
        for record in records_of(tmp_path / "images")
    }
    assert images == {raw_tables.images[f"img/{i}.jpg"]: [1 + (i == 1)] for i in range(4)}


def test_texts_of_digits_stay_texts(raw, raw_tables, out):
    rows = {"zip": ["0123", "0124", "0123", "0124"], "id": ["01", "02", "03", "04"]}
    parquet.write_table(pa.table(rows), raw / "train.parquet")
    raw_tables.convert(out)
    found = {record["id"][0]: record["zip"] for record in records_of(out)}
    assert found == {b"01": [0], b"02": [1], b"03": [0], b"04": [1]}


def test_two_columns_of_one_name_are_refused(raw, raw_tables, out):
    parquet.write_table(
        pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), raw / "train.parquet"
    )
    with pytest.raises(
        RawDataError, match=r"train.parquet has two columns 'a'\. Rename one of them"
    ):
        raw_tables.convert(out)


@pytest.mark.slow
def test_the_time_for_a_table_grows_with_its_columns_not_with_their_square(
    raw, raw_tables, out, capsys
):
    most = 100_000 if SWEEP else 20_000
    seconds = []
    for count in (most // 4, most):
        names = [f"c{i}" for i in range(count)]
        parquet.write_table(pa.table([pa.array([1.5])] * count, names), raw / "train.parquet")
        begin = time.process_time()
        raw_tables.convert(out, "--dry-run")
        seconds.append(time.process_time() - begin)
        assert capsys.readouterr().out.startswith("note: columns: c0 float32, ")
    assert seconds[1] < 8 * seconds[0]  # usually 4 to 5, the square would be 16


def test_classes_of_all_files_are_found(raw):
    for number, names in enumerate((["a", "a"], ["b", "b"])):
        parquet.write_table(pa.table({"s": names * 2}), raw / f"train-{number}.parquet")
    (column,) = find_columns(map(Table, sorted(map(str, raw.iterdir()))), {})
    assert (column.kind, column.names) == ("category", ("a", "b"))


def test_an_integer_that_is_missing_is_named_by_its_row(raw, raw_tables, tmp_path, out):
    parquet.write_table(pa.table({"a": [1, None, 3]}), raw / "train.parquet", row_group_size=1)
    raw_tables.convert(out, "--max-bad-records=1")
    assert (
        "row 2: 'a' has no value. Give --missing a=VALUE"
        in (out / "_rejects/train.jsonl").read_text()
    )
    raw_tables.convert(tmp_path / "zero", "--missing=a=0")
    assert sorted(record["a"][0] for record in records_of(tmp_path / "zero")) == [0, 1, 3]


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (pa.array([{"a": 1}]), "nested columns"),
        (pa.array([[[1]]]), "nested lists"),
        (
            pa.array([[{"a": None}]], pa.list_(pa.struct([("a", pa.list_(pa.null()))]))),
            "nested columns",
        ),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "nested columns"),
    ],
)
def test_a_nested_column_is_refused_by_name(raw, raw_tables, out, array, what):
    parquet.write_table(pa.table({"ok": [1], "nested": array}), raw / "train.parquet")
    with pytest.raises(
        OptionError, match=f"the column 'nested' holds {what}.* --columns nested=skip"
    ):
        raw_tables.convert(out)
    raw_tables.convert(out, "--columns=nested=skip")
    assert records_of(out) == [{"ok": [1]}]


@pytest.mark.parametrize("name", ["train.parquet", "train.arrow", "train.feather"])
@pytest.mark.parametrize(
    "damage", [lambda _: b"", lambda _: b"nonsense" * 9, lambda data: data[: len(data) // 2]]
)
def test_a_file_that_is_none_is_one_clear_error(raw, raw_tables, out, name, damage):
    WRITERS[name](pa.table({"a": list(range(1000))}), raw / name)
    (raw / name).write_bytes(damage((raw / name).read_bytes()))
    with pytest.raises(RawDataError, match=rf"{name} cannot be read: .* Write it again\."):
        raw_tables.convert(out)


@pytest.mark.slow
def test_a_small_file_that_repeats_a_long_text_is_read_in_parts(raw):
    text = "x" * 1_000_000
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), [text])
    parquet.write_table(pa.table({"a": repeated}), raw / "train.parquet")
    assert (raw / "train.parquet").stat().st_size < 10**6
    rows = arrow_tables.arrow_rows(str(raw / "train.parquet"), None, {})
    assert sum(size for cells, size in rows if cells["a"] == text) == 20 * 10**9


def test_a_value_that_cannot_be_read_in_parts_is_refused_by_name(
    raw, raw_tables, tmp_path, out, monkeypatch
):
    monkeypatch.setattr(arrow_files, "MAX_BATCH_BYTES", 10_000)
    parquet.write_table(pa.table({"a": [1], "big": [[1.0] * 2000]}), raw / "train.parquet")
    with pytest.raises(
        InfeedError, match="column 'big' of .*train.parquet has 16 KB that cannot be read"
    ):
        raw_tables.convert(out)
    raw_tables.convert(out, "--columns=big=skip")
    (raw / "train.parquet").unlink()
    feather.write_feather(pa.table({"a": [1] * 2000}), str(raw / "train.feather"))
    with pytest.raises(
        InfeedError, match="column 'a' of .*train.feather has 16 KB that cannot be read"
    ):
        raw_tables.convert(tmp_path / "feather")


def test_metadata_of_hugging_face_that_is_damaged_names_no_classes(raw):
    features = (
        b'{"a": 5}',
        b'{"a": {"_type": "ClassLabel"}}',
        b'{"a": {"_type": "ClassLabel", "names": [1]}}',
    )
    for text in (b"{", b"[]", *(b'{"info": {"features": %s}}' % each for each in features)):
        table = pa.table({"a": [0, 1]}).replace_schema_metadata({"huggingface": text})
        parquet.write_table(table, raw / "train.parquet")
        assert arrow_tables.arrow_cells(str(raw / "train.parquet")) == {"a": [0]}


@pytest.mark.parametrize("kind", [None, "category"])
@pytest.mark.parametrize(
    "first", [[f"https://example.com/{i}" for i in range(9)], [None] * 120_000]
)
def test_texts_that_begin_alike_and_many_empty_cells_before_others_are_looked_at(raw, first, kind):
    texts = [f"https://example.com/{i}" for i in range(120_000)]
    parquet.write_table(pa.table({"a": first + texts}), raw / "train.parquet")
    if kind:
        with pytest.raises(LabelError, match="over 100,000 different values"):
            find_columns([Table(str(raw / "train.parquet"))], {"a": kind})
        return
    ((column, seen),) = find_columns([Table(str(raw / "train.parquet"))], {"a": kind}).items()
    assert column.kind == "text"
    missing = "; 120,000 missing" * (first[0] is None)
    assert seen == f" (https://example.com/{missing})"
