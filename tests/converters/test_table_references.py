"""Rows of tables as references: their keys, places and sizes, and what they are when they are read again."""

import json

import pytest

from converters.table.converter import ImageTableConverter, TextTableConverter
from converters.table.layouts import find_tables
from converters.table.targets import MultiLabel, Numbers, SingleLabel, Unlabelled
from pipeline.errors import RawDataError
from pipeline.shards.example import encode_example
from pipeline.storage.schemes import open_storage

pytestmark = pytest.mark.usefixtures("without_beam")


def test_paths_that_no_object_of_a_bucket_can_have_are_listed(bucket, gcs_server):
    names = ["gs://bucket", "gs://bucket/", "gs://B?/x", "gs://bucket/..", "../../..", "../..", "x\ty", "x" * 1025]
    rows = "".join(json.dumps({"f": name}) + "\n" for name in [*names, "two\nlines"])
    gcs_server.write(bucket.removeprefix("gs://"), "raw/train.jsonl", rows.encode())
    (source,) = find_tables(f"{bucket}/raw", [], None).sources
    (refs,) = ImageTableConverter("f", Unlabelled()).scan(open_storage(bucket), source)
    errors = [row.error for row in refs]
    assert errors.pop(6) == r"line 7: no file 'x\ty' can be found"
    assert all(error.endswith(" cannot be the name of a file in a bucket") for error in errors)


def test_a_cell_too_long_for_a_path_is_listed_and_makes_no_other_row_wide(table, raw_tables):
    row, long = "img/0.jpg,k\n", "x" * 20_000
    table("train.csv", f"file,id\n{row}{long},k2\n{row}img/0.jpg,{long}\n")
    (source,) = find_tables(str(raw_tables.directory), [], None).sources
    for key_column in (None, "id"):
        converter = ImageTableConverter("file", Unlabelled(), key_column)
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
    table("all.csv", "text,id\n" + "".join(f"a,{i}{'x' * 5000}\n" for i in range(20)))
    sources = find_tables(str(raw_tables.directory), [], fraction).sources
    converter = TextTableConverter("text", Unlabelled(), "id", validation_fraction=fraction)
    found = [row for source in sources for refs in converter.scan(open_storage("/"), source) for row in refs]
    assert sorted(row.offset for row in found) == [8 + i * 5004 + max(0, i - 10) for i in range(20)]


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("train.csv", ['x,"other text"\n', 'x,"some text\n', "x\n", "\n\n\n", '"', "\udcff"]),
        ("train.jsonl", ['{"text": "other"}\n', '{"t": "some text"}\n', "{\n", "3", "\udcff"]),
    ],
)
def test_a_row_that_changes_between_scan_and_reading_ends_the_conversion(table, raw_tables, name, changed):
    """As a bad record it would be lost without a word where --max-bad-records allows some."""
    row = '{"id": 0, "text": "some text"}\n' if name.endswith("jsonl") else 'x,"some text"\n'
    table(name, row if name.endswith("jsonl") else f"id,text\n{row}")
    converter = TextTableConverter("text", Unlabelled())
    (source,) = find_tables(str(raw_tables.directory), [], None).sources
    ((ref,),) = converter.scan(open_storage("/"), source)
    assert converter.convert(ref, row.encode()).features == {"text": b"some text"}
    for other in changed:
        with pytest.raises(RawDataError, match=f"{name} changed during the conversion. Restore it"):
            converter.convert(ref, other.encode("utf-8", "surrogateescape"))


FRUITS = ("apple", "a fruit with a long name")
TARGETS = [
    Unlabelled(),
    SingleLabel("fruit", FRUITS),
    SingleLabel("fruit", FRUITS, "image/class/label", 1, "image/class/text"),
    MultiLabel("fruits", tuple(map(str, range(128)))),
    Numbers(tuple(f"n{i}" for i in range(100))),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: type(target).__name__)
def test_sizes_of_table_records_are_predicted_within_a_few_bytes_for_any_target(table, raw_tables, target):
    """What is encoded as it stands is not sampled: shards are as large as this says."""
    numbers = {f"n{i}": i / 7 for i in range(100)}
    rows = [
        {"file": f"img/{i}.jpg", "text": "ä" * 30 * i, "fruit": FRUITS[i % 2], "fruits": [*range(i * 9)], **numbers}
        for i in range(1, 8)
    ]
    table("train.jsonl", "".join(json.dumps(row) + "\n" for row in [*rows, {"text": "bad"}]))
    raw_tables.write_images()
    storage, (source,) = open_storage("/"), find_tables(str(raw_tables.directory), [], None).sources
    for converter in (TextTableConverter("text", target), ImageTableConverter("file", target)):
        (refs,) = converter.scan(storage, source)
        refs = refs.take(refs.good)
        for ref, predicted in zip(refs, converter.record_bytes(refs).tolist(), strict=True):
            (data,) = storage.read_ranges([(ref.file.uri, ref.offset, ref.size)])
            converted = converter.convert(ref, data)
            if not converted.fixups and not isinstance(converted.features, bytes):
                assert abs(len(encode_example(converter.schema, converted.features)) - predicted) <= 12
