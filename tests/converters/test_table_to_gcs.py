"""Tables: wrong options, layouts and cells, each one clear error; the command line."""

import json
from dataclasses import replace

import pytest

from converters.raw.splits import HeldOut
from converters.table.columns import CLASS_NAME, Column
from converters.table.converter import ImageTableConverter
from converters.table.layouts import find_tables
from pipeline.errors import LabelError, OptionError, RawDataError
from pipeline.shards.example import encode_example
from pipeline.storage.schemes import open_storage

pytestmark = pytest.mark.usefixtures("without_beam")

IMAGES = ("--image-column=file", "--label-column=animal")


WRONG = [
    (["--image-column=fiel"], OptionError, r"--image-column: \S+train-0.csv has no column 'fiel'\. Did you mean"),
    (["--image-column=file", "--target-columns=weight,wieght"], OptionError, r"--target-columns: .*'wieght'.*'weight'"),
    (["--image-column=file", "--target-columns=weight,"], OptionError, "a column is empty, or is listed twice"),
    ([*IMAGES, "--key-column=id"], OptionError, r"--key-column: .* has no column 'id'\. Known: animal, file"),
    ([*IMAGES, "--delimiter=||"], OptionError, "--delimiter='||': it must be one character"),
    (["--image-column=file", "--label-file=x"], OptionError, "--label-file names the classes of --label-column or"),
    ([*IMAGES, "--jpeg-quality=0"], OptionError, "--jpeg-quality=0: must be at least 1 and at most 100"),
    ([*IMAGES, "--splits=test"], RawDataError, r"does not have the test split\. It has: train, validation"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "error", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_option_is_one_clear_error_and_writes_nothing(
    raw_tables, out, flags, error, message
):
    with pytest.raises(error, match=message):
        raw_tables.write().convert(out, *flags)
    assert not out.exists()


@pytest.mark.parametrize(
    "flags", [("--image-column=file", "--text-column=note"), (*IMAGES, "--target-columns=weight")]
)
def test_options_that_exclude_each_other_are_one_line(raw_tables, out, flags):
    excluded = f"argument {flags[-1].split('=')[0]}: not allowed with argument --.*"
    with pytest.raises(OptionError, match=rf"\A{excluded}\Z"):
        raw_tables.write().convert(out, *flags)


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        ("photos.csv", "text,label\na,b\n", RawDataError, r"no table of a split, .*photos.csv.*--validation-fraction"),
        ("train.xls", "", RawDataError, r"has no tables \(\.csv, .*, \.feather\)\. It has: train\.xls"),
        ("train.csv", "", RawDataError, "has no header with the names of its columns: it is empty"),
        ("train.csv", "text,label\na,\n", LabelError, "no table has a label in column 'label'"),
    ],
)  # fmt: skip
def test_a_layout_that_is_not_quite_right_is_one_clear_error(
    table, raw_tables, out, name, text, error, message
):
    table(name, text)
    with pytest.raises(error, match=message):
        raw_tables.convert(out, "--text-column=text", "--label-column=label")


def test_a_table_without_a_split_is_noted_with_its_likely_purpose(
    table, raw_tables, tmp_path, out, capsys
):
    table("train.csv", "text,label\nsome,b\n")
    table("labels.csv", "a\nb\n")
    flags = ("--text-column=text", "--label-column=label")
    raw_tables.convert(out, *flags)
    assert (
        "note: 1 file not read: labels.csv. The names of tables begin with a split. Rename those"
        in capsys.readouterr().out
    )
    raw_tables.convert(tmp_path / "named", *flags, f"--label-file={tmp_path}/raw/labels.csv")
    assert "labels.csv" not in capsys.readouterr().out


LABEL = Column("a", "category", names=("x", "y"), required=True)
TARGETS = [
    LABEL,
    replace(LABEL, shape=(None,), separator="|"),
    Column("b", "float32", (1,), parts=("a",)),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("cell", ["z", True, {"x": 1}, "1\n2", 10**400, [1.5], "\ud800"])
def test_a_target_names_the_value_that_it_cannot_convert(target, cell):
    with pytest.raises(ValueError, match=r"^('a' is .*; (it must be a finite number within float32|a label is a text)|"
                       r"'a' is .*, which is not Unicode text|unknown label '.*Known: x, y)"):  # fmt: skip
        target.value({"a": cell}, bytes)
    with pytest.raises(ValueError, match="no 'a' in it"):
        target.value({"b": cell}, bytes)


def test_paths_that_no_object_of_a_bucket_can_have_are_listed(bucket, gcs_server):
    names = [
        "gs://bucket",
        "gs://bucket/",
        "gs://B?/x",
        "gs://bucket/..",
        "../../..",
        "../..",
        "x\ty",
        "x" * 1025,
    ]
    rows = "".join(json.dumps({"f": name}) + "\n" for name in [*names, "two\nlines"])
    gcs_server.write(bucket.removeprefix("gs://"), "raw/train.jsonl", rows.encode())
    (source,) = find_tables(f"{bucket}/raw", [], None).sources
    (refs,) = ImageTableConverter("f").scan(open_storage(bucket), source)
    errors = [row.error for row in refs]
    assert errors.pop(6) == r"line 7: no file 'x\ty' can be found"
    assert all(error.endswith(" cannot be the name of a file in a bucket") for error in errors)


def test_a_cell_too_long_for_a_path_is_listed_and_makes_no_other_row_wide(table, raw_tables):
    row, long = "img/0.jpg,k\n", "x" * 20_000
    table("train.csv", f"file,id\n{row}{long},k2\n{row}img/0.jpg,{long}\n")
    (source,) = find_tables(str(raw_tables.directory), [], None).sources
    for key_column in (None, "id"):
        converter = ImageTableConverter("file", (), key_column)
        (refs,) = converter.scan(open_storage("/"), source)
        _, second, _, fourth = refs
        assert (second.key, second.error) == (
            "train/train.csv:3",
            "line 3: 'file' has 20,000 characters; it must be the path of an image",
        )
        assert ("a name of 20,006 bytes" in fourth.error) == bool(key_column)
        assert max(refs.key.itemsize, refs.error.itemsize, refs.columns["image"].itemsize) < 400


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.99])
def test_rows_with_long_keys_are_each_assigned_to_exactly_one_split(table, raw_tables, fraction):
    raw_tables.write_images()
    table("all.csv", "file,id\n" + "".join(f"img/0.jpg,{i}{'x' * 5000}\n" for i in range(20)))
    sources = find_tables(str(raw_tables.directory), [], HeldOut(fraction)).sources
    converter = ImageTableConverter("file", (), "id", held_out=HeldOut(fraction))
    found = [
        row
        for source in sources
        for refs in converter.scan(open_storage("/"), source)
        for row in refs
    ]
    assert len({row.key.partition("/")[2] for row in found}) == len(found) == 20


FRUITS = ("apple", "a fruit with a long name")
LABELLED = Column("fruit", "category", names=FRUITS, key="image/class/label", base=1, required=True)
ANY_TARGET = [
    (),
    (LABELLED, replace(LABELLED, kind=CLASS_NAME, key="image/class/text")),
    (Column("fruits", "category", (None,), tuple(map(str, range(128))), separator="|"),),
    (Column("n", "float32", (100,), parts=tuple(f"n{i}" for i in range(100))),),
]


@pytest.mark.parametrize("target", ANY_TARGET, ids=["none", "label", "labels", "numbers"])
def test_sizes_of_table_records_are_predicted_within_a_few_bytes_for_any_target(
    table, raw_tables, target
):
    """What is encoded as it stands is not sampled: shards are as large as this says."""
    numbers = {f"n{i}": i / 7 for i in range(100)}
    rows = [
        {
            "file": f"img/{i}.jpg",
            "text": "ä" * 30 * i,
            "fruit": FRUITS[i % 2],
            "fruits": [*range(i * 9)],
            **numbers,
        }
        for i in range(1, 8)
    ]
    table("train.jsonl", "".join(json.dumps(row) + "\n" for row in [*rows, {"text": "bad"}]))
    raw_tables.write_images()
    storage, (source,) = open_storage("/"), find_tables(str(raw_tables.directory), [], None).sources
    converter = ImageTableConverter("file", target)
    (refs,) = converter.scan(storage, source)
    refs = refs.take(refs.good)
    for ref, predicted in zip(refs, converter.record_bytes(refs).tolist(), strict=True):
        (data,) = storage.read_ranges([(ref.file.uri, ref.offset, ref.size)])
        converted = converter.convert(ref, data)
        if not converted.fixups and not isinstance(converted.features, bytes):
            assert abs(len(encode_example(converter.schema, converted.features)) - predicted) <= 12
