"""Bounding boxes: Kaggle's table and tensorflow/models', as parts of the image."""

import csv

import pytest

from beam_jobs.rows.references import concat
from converters.imagenet.boxes import box_features, read_boxes
from converters.imagenet.converter import ImagenetConverter
from converters.imagenet.layouts import find_raw
from pipeline.errors import OptionError, RawDataError
from pipeline.shards.example import encode_example
from pipeline.shards.example_decoding import decode_example
from pipeline.shards.manifest import read_manifest
from pipeline.storage.local import LocalStorage

pytestmark = pytest.mark.usefixtures("without_beam")

KEYS = [f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax", "label")]


@pytest.fixture
def tables(raw_imagenet):
    """One table of each kind; images are 16 pixels wide and 8 + i high."""
    kaggle, relative = (raw_imagenet.directory / name for name in ("boxes.csv", "relative.csv"))
    kaggle.write_text(
        "ImageId,PredictionString\n"
        "n00000001_0,n00000001 4 2 12 8 n00000001 0 0 99 4 \n"
        "ILSVRC2012_val_00000002,n00000002 1 1 2 2\n"
    )
    relative.write_text("n00000002_1.JPEG,0.25,0.5,0.75,1.0\nn00000002_1.JPEG,0.5,0.5,0.5,0.9\n")
    return f"{kaggle},{relative}"


def records(raw, tables):
    found = find_raw(str(raw.directory), ["train", "validation"], raw.synsets, None)
    paths = tuple(tables.split(","))
    converter = ImagenetConverter(
        tuple(raw.synsets), found.validation_labels, form_name="tpu+boxes", box_tables=paths
    )
    storage = LocalStorage()
    for source in found.sources:
        refs = concat(list(converter.scan(storage, source)))
        for ref, predicted in zip(refs, converter.record_bytes(refs), strict=True):
            data = next(storage.read_ranges([(ref.file.uri, ref.offset, ref.size)]))
            converted = converter.convert(ref, data)
            record = encode_example(converter.schema, converted.features)
            assert abs(len(record) - predicted) <= 20
            yield ref.key.rsplit("/")[-1], decode_example(record), converted.fixups


def test_boxes_are_relative_clipped_to_the_image_and_empty_if_it_has_none(raw_imagenet, tables):
    found = {
        name: ([values[key] for key in KEYS], fixups)
        for name, values, fixups in records(raw_imagenet, tables)
    }
    assert found["n00000001_0.JPEG"] == ([[0.25, 0], [0.25, 0], [0.75, 1], [1, 0.5], [1, 1]], ())
    assert found["n00000002_1.JPEG"] == (
        [[0.25], [0.5], [0.75], [1], [2]],
        ("box_outside_of_image",),
    )
    assert found["ILSVRC2012_val_00000002.JPEG"][0][0] == [1 / 16]
    assert found["n00000003_0.JPEG"] == ([[], [], [], [], []], ())


def test_the_bounding_boxes_option_adds_boxes_to_the_records(raw_imagenet, tables, tmp_path, out):
    raw_imagenet.convert(out, f"--bounding-boxes={tables}")
    manifest = read_manifest(str(out))
    assert set(KEYS) < set(manifest.schema.features)
    assert manifest.split("train").fixups == {"box_outside_of_image": 1}
    raw_imagenet.convert(tmp_path / "without")
    assert not set(KEYS) & set(read_manifest(str(tmp_path / "without")).schema.features)


BAD = {
    "other cells": ("a.JPEG,1,2\n", "line 1: 'a.JPEG,1,2' has no bounding boxes (3 cells instead of 5)"),
    "no numbers": ("a.JPEG,1,2,3,x\n", "line 1: 'a.JPEG,1,2,3,x' has no"),
    "no number": ("\na.JPEG,nan,0.1,0.2,0.9\n", "line 2: 'a.JPEG,nan,0.1,0.2,0.9' has no bounding boxes (numbers that"),
    "infinity": ("a.JPEG,0,0,1e999,1\n", "has no bounding boxes (numbers that are not finite)"),
    "half a box": ("ImageId,PredictionString\na,n1 1 2 3\n", "line 2: 'a,n1 1 2 3' has no bounding boxes (4 words"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_a_table_of_another_kind_is_named_with_its_line(tmp_path, bad):
    text, message = BAD[bad]
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(RawDataError) as error:
        read_boxes((str(tmp_path / "t.csv"),))
    assert message in str(error.value)
    assert "Use Kaggle's table" in str(error.value)


def test_a_quote_that_is_never_closed_is_named(tmp_path):
    (tmp_path / "t.csv").write_text('a.JPEG,0,0,1,1\nb.JPEG,"0.1,0.1,0.9,0.9\n' + "x" * 2000)
    limit = csv.field_size_limit(1000)  # of the process: tables have set another
    try:
        with pytest.raises(
            RawDataError,
            match=r"t\.csv, after line \d: not a csv table: field larger than field lim",
        ):
            read_boxes((str(tmp_path / "t.csv"),))
    finally:
        csv.field_size_limit(limit)


@pytest.mark.parametrize("head", ["", "ImageId,PredictionString\n"])
def test_blank_lines_of_a_table_of_boxes_are_skipped(tmp_path, head):
    (tmp_path / "t.csv").write_text(f"{head}a,{'n1 0 0 1 1' if head else '0,0,1,1'}\n\n\r\n")
    assert read_boxes((str(tmp_path / "t.csv"),)) == {
        "a": "p0 0 1 1" if head else "0.0 0.0 1.0 1.0"
    }


def test_tfds_has_no_place_for_boxes(raw_imagenet, tables, tmp_path):
    with pytest.raises(OptionError, match="--schema=tfds has no features for them"):
        raw_imagenet.convert(tmp_path, f"--bounding-boxes={tables}", "--schema=tfds")


def test_boxes_of_an_image_without_size_are_not_divided_by_it():
    features, dropped = box_features("", 0, 0, 3)
    assert (dropped, features[KEYS[4]]) == (0, [])
