"""Tables of images and texts: what is said of each record, keys, splits, what goes to the ledger, the command line."""

import csv
import io
import json

import numpy as np
import pyarrow as pa
import pytest
import tensorflow_datasets as tfds
from converted import ledger_of, records_of
from PIL import Image
from pyarrow import parquet

from converters import table_to_gcs
from converters.raw.splits import HeldOut
from converters.table.converter import ImageTableConverter
from converters.table.layouts import find_tables
from pipeline.errors import ConversionError, RawDataError
from pipeline.shards.manifest import read_manifest
from pipeline.storage.schemes import open_storage

pytestmark = pytest.mark.usefixtures("without_beam")

IMAGES = ("--image-column=file", "--label-column=animal")


def test_every_image_arrives_with_its_label_and_bad_rows_are_listed_by_line(raw_tables, out):
    raw_tables.write().convert(out, *IMAGES, "--max-bad-records=4")
    found = records_of(out, "train") + records_of(out, "validation")
    assert len(found) == len(raw_tables.images) == 28
    for record in found:
        (name,), (label,) = record["image/filename"], record["image/class/label"]
        number = int(name.decode().split(".")[0])
        assert (label, record["image/class/text"]) == (
            (1, [b"cat"]) if number % 3 else (2, [b"dog"])
        )
        image = Image.open(io.BytesIO(record["image/encoded"][0]), formats=("JPEG",))
        assert image.size == (record["image/width"][0], record["image/height"][0])
        if name.endswith(b"jpg"):
            assert record["image/encoded"][0] == raw_tables.images[f"img/{name.decode()}"]
    assert ledger_of(out, "train") == {
        "train/img/none.jpg": "line 6: no file 'img/none.jpg' can be found",
        "train/img/0.jpg": "duplicate key: another record of this split has the same name",
        "train/train-1.csv:12": "line 12: 2 cells; the header has 4",
        "train/train-1.csv:13": "line 13: not a csv row: unexpected end of data",
    }
    labels = read_manifest(str(out)).labels
    assert (labels.key, labels.base, labels.names) == ("image/class/label", 1, ("cat", "dog"))


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (("TRAINING-1.csv", "training_2.csv"), ("train", "train")),
        (("Train.csv", "valid.csv", "testing_1.csv"), ("train", "validation", "test")),
        (("dev/1.csv",), ("validation",)),
    ],
)
def test_splits_of_tables_are_known_by_all_their_usual_names(tmp_path, names, splits):
    for name in (*names, "teſt.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n1\n")
    raw = find_tables(str(tmp_path), [], None)
    assert [(s.split, s.tag) for s in raw.sources] == [*zip(splits, names, strict=True)]
    assert raw.others == ["teſt.csv"]


def test_two_names_of_one_split_are_refused(tmp_path):
    for name in ("train.csv", "training.csv"):
        (tmp_path / name).write_text("x\n1\n")
    with pytest.raises(
        RawDataError, match=r"train.csv and training.csv, which both name the split"
    ):
        find_tables(str(tmp_path), [], None)


def test_the_order_of_rows_and_their_cut_into_tables_change_no_byte(
    raw_tables, tmp_path, shard_digests
):
    header = raw_tables.tables["val.csv"][0]
    raw_tables.tables = {"train-0.csv": raw_tables.tables["val.csv"]}
    raw_tables.write().convert(tmp_path / "a", *IMAGES, "--num-train-shards=2")
    (raw_tables.directory / "train-0.csv").unlink()
    lines = raw_tables.tables.pop("train-0.csv")[:0:-1]
    raw_tables.tables = {"train.csv": [header, *lines[:5]], "train_b.csv": [header, *lines[5:]]}
    raw_tables.write().convert(tmp_path / "b", *IMAGES, "--num-train-shards=2")
    a, b = (shard_digests(tmp_path / name) for name in "ab")
    assert {name: a[name] for name in a if "-of-" in name} == {
        name: b[name] for name in b if "-of-" in name
    }


def test_paths_may_be_absolute_or_contain_dots_and_invalid_ones_are_listed(
    raw_tables, table, tmp_path, out
):
    raw_tables.write_images()
    outside = tmp_path / "elsewhere.jpg"
    outside.write_bytes(raw_tables.images["img/1.jpg"])
    good = ["img/0.jpg", "./img/1.jpg", "../raw/img/2.jpg", str(outside)]
    bad = [
        "",
        "img",
        "gs://bucket/x.jpg",
        "http://x/y.jpg",
        "x" * 300 + ".jpg",
        "img/../../none",
        "a\0b",
    ]
    table(
        "train.jsonl",
        "".join(json.dumps({"file": name}) + "\n" for name in [*good, *bad, None, 1.5, ["x"]]),
    )
    raw_tables.convert(out, "--image-column=file", "--max-bad-records=10")
    images = {record["image/encoded"][0] for record in records_of(out, "train")}
    assert images == {raw_tables.images[f"img/{i}.jpg"] for i in range(3)}
    assert len(records_of(out, "train")) == 4
    errors = ledger_of(out, "train")
    assert (
        errors["train/train.jsonl:5"]
        == "line 5: 'file' is ''; it must be text, without zero bytes and not empty"
    )
    assert errors["train/img"] == "line 6: no file 'img' can be found"
    assert errors["train/gs://bucket/x.jpg"] == (
        "line 7: 'gs://bucket/x.jpg' is not in the storage that its table is in. Copy the table to the images."
    )
    assert {error.split(":")[0] for error in errors.values()} == {f"line {n}" for n in range(5, 15)}


def test_in_a_bucket_a_path_goes_up_as_on_a_disk_and_what_is_missing_is_listed(bucket, gcs_server):
    names = [
        "a.jpg",
        "./a.jpg",
        "../raw/x/../a.jpg",
        f"{bucket}/raw/a.jpg",
        "../b.jpg",
        "none.jpg",
        "/a.jpg",
        "az://a/b",
    ]
    gcs_server.write(bucket.removeprefix("gs://"), "raw/a.jpg", b"12345")
    gcs_server.write(
        bucket.removeprefix("gs://"), "raw/train.csv", "\n".join(["f", *names]).encode()
    )
    (source,) = find_tables(f"{bucket}/raw", [], None).sources
    storage = open_storage(bucket)
    rows = [row for refs in ImageTableConverter("f").scan(storage, source) for row in refs]
    assert [(row.file.uri, row.size) for row in rows[:4]] == [(f"{bucket}/raw/a.jpg", 5)] * 4
    elsewhere = "is not in the storage that its table is in. Copy the table to the images."
    assert [row.error for row in rows] == [
        *[""] * 4,
        "line 6: no file '../b.jpg' can be found",
        "line 7: no file 'none.jpg' can be found",
        f"line 8: '/a.jpg' {elsewhere}",
        f"line 9: 'az://a/b' {elsewhere}",
    ]


def test_a_key_column_allows_one_image_in_several_rows(raw_tables, table, out):
    raw_tables.write_images()
    rows = [{"id": i, "file": f"img/{i // 2}.jpg", "animal": "cat"} for i in range(8)]
    table("train.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    raw_tables.convert(out, *IMAGES, "--key-column=id")
    names = [record["image/filename"][0] for record in records_of(out, "train")]
    assert sorted(names) == sorted(b"%d.jpg" % (i // 2) for i in range(8))


def test_one_set_is_split_by_a_hash_of_the_keys(raw_tables, out):
    raw_tables.tables = {"all.csv": ["file,animal", *(f"{name},cat" for name in raw_tables.images)]}
    raw_tables.write().convert(out, *IMAGES, "--validation-fraction=0.3")
    names = {
        split: {f"img/{record['image/filename'][0].decode()}" for record in records_of(out, split)}
        for split in ("train", "validation")
    }
    assert names["validation"] == {
        name for name in raw_tables.images if HeldOut(0.3).split_of(name) == "validation"
    }
    assert names["train"] == set(raw_tables.images) - names["validation"]
    assert 2 <= len(names["validation"]) <= 16


HOUSES = [
    {
        "name": f"house {i}",
        "rooms": i % 7,
        "price": i / 7,
        "gap": i / 2 if i % 5 else None,
        "sold": i % 3 == 0,
        "city": ("Rome", "Oslo", None)[i % 3],
        "floor": str(i % 4),
        "tags": ["old", "big"][: i % 3],
    }
    for i in range(200)
]
ODD = {"name": "odd", "rooms": 2.5, "price": 16777217, "gap": 1, "sold": None, "city": "Aachen", "floor": "top", "tags": []}  # fmt: skip
OF_FLOAT32 = pa.schema(
    [
        pa.field("price", pa.float32()) if field.name == "price" else field
        for field in pa.Table.from_pylist(HOUSES).schema
    ]
)
STORED = {
    "a row more at the head": {"all.csv": [ODD, *HOUSES]},
    "a class more": {"all.csv": [HOUSES[0] | {"name": "new", "city": "Aachen"}, *HOUSES]},
    "in reverse": {"all.csv": HOUSES[::-1]},
    "in two files": {"part-1.csv": HOUSES[:90], "part-0.jsonl": HOUSES[90:]},
    "columns in another order": {"all.csv": [dict(reversed(row.items())) for row in HOUSES]},
    "Parquet": {"all.parquet": HOUSES},
}


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows, OF_FLOAT32), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0]])
            writer.writeheader()
            writer.writerows(row | {"tags": "|".join(row["tags"])} for row in rows)


def held_out(out, split, column):
    return sorted(record[column][0].decode() for record in records_of(out, split))


@pytest.mark.parametrize("flags", [[], ["--text-column=name", "--labels-column=tags"]], ids=len)
def test_rows_held_out_stay_so_whatever_is_added_and_however_they_are_stored(tmp_path, flags):
    key = "text" if flags else "name"
    flags = flags or ["--columns=name=text,tags=skip"]
    flags = [*flags, "--validation-fraction=0.2", "--test-fraction=0.1"]
    found = {}
    for stored, files in {"csv": {"all.csv": HOUSES}, **STORED}.items():
        for name, rows in files.items():
            write_rows(tmp_path / stored / name, rows)
        out = tmp_path / f"{stored} out"
        table_to_gcs.main([f"--raw-data-dir={tmp_path / stored}", f"--output={out}", *flags])
        added = {"odd", "new"}
        found[stored] = [{*held_out(out, split, key)} - added for split in ("validation", "test")]
    assert found == dict.fromkeys(found, found["csv"])
    assert all(found["csv"])


def test_equal_rows_are_in_one_split_and_few_different_ones_warn_with_the_numbers(tmp_path, out):
    write_rows(tmp_path / "raw/all.csv", [*HOUSES[:8] * 30, *HOUSES[8:10]])
    flags = ["--columns=name=text,tags=skip", "--validation-fraction=0.5"]
    table_to_gcs.main([f"--raw-data-dir={tmp_path / 'raw'}", f"--output={out}", *flags])
    train, validation = (held_out(out, split, "name") for split in ("train", "validation"))
    assert {*train}.isdisjoint(validation)
    assert len(train) + len(validation) == 242
    for split, names in (("train", train), ("validation", validation)):
        *odd, copies = json.loads((tmp_path / f"out/_summary/{split}.json").read_text())["warnings"]
        repeated = sum(names.count(name) > 1 for name in names)
        assert copies == f"{repeated} of {len(names)} {split} records occur more than once."
        assert [each.split(". A hash")[0] for each in odd] == (
            [
                f"split 'validation' has {len(names)} of 242 records, {len(names) / 242:.1%}; 50.0% was asked for"
            ]
            if split == "validation"
            else []
        )


def test_targets_arrive_as_float32_and_invalid_numbers_are_listed(table, out, raw_tables):
    texts = ["1.5,-2e3", "0.1,7", ",1", "nan,1", "1,inf", "1e39,1", "1_000,1", "x,1", " 3 ,4"]
    table(
        "train.csv", "text,a,b\n" + "".join(f'"row {i}",{text}\n' for i, text in enumerate(texts))
    )
    flags = ("--text-column=text", "--target-columns=b,a", "--max-bad-records=6")
    raw_tables.convert(out, *flags)
    found = {record["text"][0]: record["target"] for record in records_of(out, "train")}
    assert found == {
        b"row 0": [-2000.0, 1.5],
        b"row 1": [7.0, float(np.float32(0.1))],
        b"row 8": [4.0, 3.0],
    }
    errors = ledger_of(out, "train")
    assert (
        errors["train/train.csv:4"]
        == "line 4: 'a' has no value; it must be a finite number within float32"
    )
    assert set(errors) == {f"train/train.csv:{line}" for line in range(4, 10)}
    manifest = read_manifest(str(out))
    assert (manifest.schema.features["target"].shape, manifest.labels) == ((2,), None)
    assert manifest.schema.features["target"].doc == "b, a"


def test_texts_with_quotes_and_new_lines_arrive_whole_from_csv_and_jsonl(table, out, raw_tables):
    texts = ['say "hi"', "two\nlines", "Käse 🧀, süß", "a\r\nb", "  spaces  "]
    table(
        "train.csv",
        "id,text,label\n"
        + "".join(f'{i},"{t.replace(chr(34), chr(34) * 2)}",{i}\n' for i, t in enumerate(texts)),
    )
    rows = [{"label": i, "text": text} for i, text in enumerate(texts)]
    table(
        "test.jsonl",
        "\n".join(
            [
                *map(json.dumps, rows),
                '{"label": 1, "text": "\\ud800"}',
                '{"label": 1.5, "text": "x"}',
            ]
        ),
    )
    raw_tables.convert(out, "--text-column=text", "--label-column=label", "--max-bad-records=2")
    for split in ("train", "test"):
        found = {
            record["label"][0]: record["text"][0].decode() for record in records_of(out, split)
        }
        assert found == dict(enumerate(texts))
    assert ledger_of(out, "test") == {
        "test/test.jsonl:6": r"line 6: 'text' is '\ud800', which is not Unicode text",
        "test/test.jsonl:7": "line 7: 'label' is 1.5; a label is a text of one line, or an integer",
    }
    assert read_manifest(str(out)).labels.names == ("0", "1", "2", "3", "4")


def test_rows_may_have_several_labels_which_tfds_reads(table, tmp_path, out, raw_tables):
    table("train.csv", "text,tags\na,x|y\nb,\nc,y\nd,x|x\ne,x||y\n")
    raw_tables.convert(out, "--text-column=text", "--labels-column=tags", "--max-bad-records=2")
    found = {record["text"][0]: record["labels"] for record in records_of(out, "train")}
    assert found == {b"a": [0, 1], b"b": [], b"c": [1]}
    assert ledger_of(out, "train") == {
        "train/train.csv:5": "line 5: 'tags' has a label twice: 'x|x'",
        "train/train.csv:6": "line 6: 'tags' is ''; a label is a text of one line, or an integer",
    }
    builder = tfds.builder_from_directory(str(out))
    read = {
        example["text"].numpy(): list(example["labels"].numpy())
        for example in builder.as_dataset(split="train")
    }
    assert read == found
    assert builder.info.features["labels"].feature.names == ["x", "y"]
    builder.info.features.save_config(tmp_path)
    assert (tmp_path / "features.json").read_text() == (out / "features.json").read_text()


def test_the_first_object_of_a_json_table_may_lack_a_column(table, raw_tables, out):
    table("train.jsonl", '{"text": "a"}\n{"text": "b", "tags": ["x"]}\n')
    raw_tables.convert(out, "--text-column=text", "--labels-column=tags", "--max-bad-records=1")
    assert ledger_of(out, "train") == {"train/train.jsonl:1": "line 1: no 'tags' in it"}


def test_blanks_around_a_label_are_stripped(table, raw_tables, tmp_path):
    table(
        "train.csv", 'text,label,tags\na,cat,cat | dog\nb,cat ,dog|cat\nc, dog," "\nd, ,cat| cat\n'
    )
    (tmp_path / "classes").write_text("cat\n dog\n")
    for flags in ((), (f"--label-file={tmp_path}/classes",)):
        out = tmp_path / f"out{len(flags)}"
        raw_tables.convert(
            out / "one", "--text-column=text", "--label-column=label", "--max-bad-records=1", *flags
        )
        assert {r["text"][0]: r["label"] for r in records_of(out / "one", "train")} == {
            b"a": [0],
            b"b": [0],
            b"c": [1],
        }
        raw_tables.convert(
            out / "all", "--text-column=text", "--labels-column=tags", "--max-bad-records=1", *flags
        )
        found = {r["text"][0]: r["labels"] for r in records_of(out / "all", "train")}
        assert found == {b"a": [0, 1], b"b": [1, 0], b"c": []}
        assert ledger_of(out / "all", "train") == {
            "train/train.csv:5": "line 5: 'tags' has a label twice: 'cat| cat'"
        }


def test_classes_are_those_of_all_splits_sorted_as_numbers_if_they_are_and_a_label_file_has_its_own_order(
    table, tmp_path, out, raw_tables
):
    table("train.csv", "text,label\na,10\nb,9\n")
    table("test.csv", "text,label\nc,100\n")
    flags = ("--text-column=text", "--label-column=label")
    raw_tables.convert(out, *flags, "--splits=train")
    assert read_manifest(str(out)).labels.names == ("9", "10", "100")
    (tmp_path / "classes").write_text("10\n9\n")
    with pytest.raises(ConversionError, match="split 'test': 1 bad record"):
        raw_tables.convert(tmp_path / "by_file", *flags, f"--label-file={tmp_path}/classes")
    assert ledger_of(tmp_path / "by_file", "test") == {
        "test/test.csv:2": "line 2: unknown label '100'. Did you mean '10'? Known: 10, 9."
    }
    assert {r["text"][0]: r["label"] for r in records_of(tmp_path / "by_file", "train")} == {
        b"a": [0],
        b"b": [1],
    }


def test_a_text_that_is_changed_in_place_is_another_plan(table, out, raw_tables):
    table("train.csv", "text\nold\n")
    raw_tables.convert(out, "--text-column=text")
    table("train.csv", "text\nnew\n")
    with pytest.raises(ConversionError, match="--overwrite"):
        raw_tables.convert(out, "--text-column=text")
