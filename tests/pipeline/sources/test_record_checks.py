"""What verify finds inside records whose bytes are whole."""

import dataclasses
from pathlib import Path

import pytest
from pictures import encoded
from PIL import Image

from pipeline.shards.manifest import read_manifest, update_manifest
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.sources.record_checks import image_problem
from pipeline.storage.local import LocalStorage

FEATURES = {
    "number": Feature("int64"),
    "weight": Feature("float32", optional=True),
    "image": Feature("bytes", optional=True),
}


@pytest.fixture
def rewritten(write_dataset, tmp_path):
    """rewritten(records, **manifest fields): a dataset of one shard whose manifest is then changed; its path."""

    def write(records, **fields):
        directory = write_dataset(
            tmp_path / "rewritten", {"train": [records]}, Schema("wide", FEATURES)
        )
        manifest = dataclasses.replace(read_manifest(directory), **fields)
        update_manifest(LocalStorage(), directory, lambda _: manifest)
        return directory

    return write


def test_a_record_of_another_schema_is_named_with_all_that_does_not_fit(rewritten, verify):
    other = {
        "number": Feature("int64", (2,)),
        "weight": Feature("int64", optional=True),
        "name": Feature("bytes"),
    }
    directory = rewritten(
        [{"number": 1, "weight": 0.5, "image": b""}], schema=Schema("other", other)
    )
    status, printed, damage = verify(directory)
    assert (status, len(damage)) == (1, 1)
    assert "train-00000-of-00001, record 0 at byte 0: " in damage[0]
    assert "'image' is not in schema 'other'" in damage[0]
    assert "'number' has 1 values; its shape [2] holds 2" in damage[0]
    assert "'weight' is of float32; its dtype is int64" in damage[0]
    assert "'name' is missing; schema 'other' has it in every record" in damage[0]
    assert "--splits=train --overwrite" in printed
    assert "--verify-existing" not in printed


def test_labels_are_counted_and_those_outside_the_range_named(rewritten, verify):
    labels = Labels("number", 1, ("cat", "dog", "eel"))
    directory = rewritten([{"number": number} for number in (1, 3, 0, 3, 4)], labels=labels)
    _, printed, damage = verify(directory)
    assert len(damage) == 2
    assert "record 2 at byte" in damage[0]
    assert "label 0 in 'number' is outside 1..3" in damage[0]
    assert "record 4 at byte" in damage[1]
    assert (
        "train: 2 of 3 classes occur, each in 1 to 2 records. 2 labels are outside 1..3." in printed
    )


def test_decode_finds_images_that_end_early_and_only_then(rewritten, verify, images):
    whole = (Path(images) / "train-00000-of-00003").read_bytes()
    jpeg = whole[whole.index(b"\xff\xd8") : whole.index(b"\xff\xd9") + 2]
    schema = Schema(
        "images", {**FEATURES, "image": Feature("bytes", optional=True, content="image")}
    )
    cut = jpeg[:-40] + b"\xff\xd9"  # with an end marker: Pillow would fill it up with grey
    records = [{"number": 0, "image": data} for data in (jpeg, cut, b"GIF89a", b"")]
    directory = rewritten(records, schema=schema)
    status, printed, _ = verify(directory)
    assert status == 0
    assert "not decoded" in printed
    status, printed, damage = verify(directory, "--decode")
    assert status == 1
    assert [line.partition("record ")[2][0] for line in damage] == ["1", "2", "3"]
    assert "'image': truncated or damaged JPEG: " in damage[0]
    assert "it starts with 47 49 46 38" in damage[1]
    assert "it starts with nothing" in damage[2]


def picture(kind, mode):
    return encoded(Image.new(mode, (9, 7)), kind)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("JPEG", "L"),
        ("JPEG", "RGB"),
        ("JPEG", "CMYK"),
        ("PNG", "RGBA"),
        ("PNG", "L"),
        ("WEBP", "RGB"),
    ],
)
def test_every_kind_of_image_is_whole_or_damaged_by_its_pixels(kind, mode):
    data = picture(kind, mode)
    assert image_problem(data) == ""
    assert image_problem(data[: len(data) * 3 // 4]).startswith("truncated or damaged ")


def test_an_image_of_absurd_size_is_not_decoded():
    data = bytearray(picture("JPEG", "RGB"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = b"\xff\xdc\xff\xdc"
    assert image_problem(bytes(data)) == "65500x65500 pixels; allowed are 1 to 100,000,000"
