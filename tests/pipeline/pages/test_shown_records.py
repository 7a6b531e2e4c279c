"""What a page shows of a record: a picture of each image, texts, and values; nothing is lost without a word."""

import io

import numpy as np
import pytest
from PIL import Image

from pipeline.pages.shown_records import show_records
from pipeline.shards.schema import Feature, Schema
from pipeline.sources.open_dataset import open_dataset

IMAGE, RAW, NUMBERS = (
    Feature("bytes", content="image"),
    Feature("bytes"),
    Feature("float32", (None,)),
)
SOUND = b"RIFF$\0\0\0WAVEfmt \x10\0\0\0"


def encoded(kind, side=90):
    sink = io.BytesIO()
    Image.new("RGB", (side, side), (200, 30, 30)).save(sink, kind)
    return sink.getvalue()


@pytest.fixture
def shown(write_dataset, tmp_path):
    """shown(feature, *its value in each record, **options) -> the records as shown; the feature is called "it"."""

    def show(feature, *values, **options):
        records = [{} if value is None else {"it": value} for value in values]
        directory = write_dataset(
            tmp_path / "data", {"train": [records]}, Schema("records", {"it": feature})
        )
        return show_records(open_dataset(directory, "train"), range(len(values)), **options)

    return show


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM"])
def test_an_image_of_any_format_is_a_picture(shown, kind):
    (record,) = shown(IMAGE, encoded(kind))
    assert (len(record.pictures), list(record.pictured)) == (1, ["it"])
    assert not record.texts
    assert not record.values


def test_bytes_that_turn_out_to_be_an_image_are_a_picture(shown):
    assert [len(record.pictures) for record in shown(RAW, encoded("JPEG"), encoded("WEBP"))] == [
        1,
        1,
    ]


def test_an_image_that_cannot_be_decoded_is_named(shown):
    (damaged, good) = shown(IMAGE, b"\xff\xd8\xffno", encoded("PNG"))
    assert (list(damaged.pictures), damaged.texts) == ([], ["it: unreadable image (5 bytes)"])
    assert (len(good.pictures), good.texts) == (1, [])


def test_only_the_first_images_of_a_record_are_shown_with_the_total(shown):
    (record,) = shown(Feature("bytes", (None,), content="image"), [encoded("PNG", 8)] * 13)
    assert (len(record.pictures), record.texts) == (12, ["the first 12 of 13 images"])


def test_a_text_is_labelled_only_if_a_record_has_several(shown, write_dataset, tmp_path):
    text = Feature("bytes", content="text")
    assert [record.texts for record in shown(text, b"a\nb", b"")] == [["a \u21b5 b"], []]
    data = write_dataset(
        tmp_path / "two",
        {"train": [[{"a": b"x", "b": b""}]]},
        Schema("two", {"a": text, "b": text}),
    )
    (record,) = show_records(open_dataset(data, "train"), [0])
    assert record.texts == ["a: x"]


def test_an_image_that_is_absent_is_not_called_unreadable(shown):
    (record,) = shown(Feature("bytes", content="image", optional=True), None)
    assert (list(record.pictures), record.texts) == ([], [])


@pytest.mark.parametrize(
    "data",
    [SOUND, b"BM, as words may begin", b"\x89PNG\r\n but no more"],
    ids=["sound", "words", "damaged"],
)
def test_bytes_that_only_begin_like_an_image_are_shown_as_bytes(shown, data):
    (record,) = shown(RAW, data)
    assert record.values == {"it": f"{data[:8].hex(' ')} ... ({len(data)} bytes)"}
    assert not record.pictures
    assert not record.texts


def test_only_the_first_of_many_values_are_shown_with_the_total(shown):
    few, many, none = shown(NUMBERS, [0.5, 1], [0.25] * 17, [])
    assert (few.values, many.values, none.values) == (
        {"it": "0.5, 1"},
        {"it": "0.25, 0.25, 0.25, 0.25, ... (17 values)"},
        {},
    )
    (record,) = shown(Feature("bytes", (None,)), [b"a"] * 6)
    assert record.values == {"it": "61 (1 byte), " * 3 + "61 (1 byte), ... (6 values)"}


def test_an_array_with_the_shape_of_an_image_is_a_picture_and_no_numbers(shown):
    (record,) = shown(Feature("float32", (8, 8, 3)), np.linspace(0, 1, 192).tolist())
    assert (list(record.pictured), record.values) == (["it"], {})


def test_long_values_are_omitted_if_their_text_is_shown(shown):
    (record,) = shown(NUMBERS, [1.0] * 17, text_of=lambda _: "a\nb")
    assert (record.texts, record.values) == (["a \u21b5 b"], {})
    (record,) = shown(NUMBERS, [1.0], text_of=lambda _: "a")
    assert record.values == {"it": "1"}


def test_records_are_shown_with_their_label_their_file_and_what_damages_them(digits):
    dataset = open_dataset(str(digits[1]), "validation")
    third, first = show_records(
        dataset, [3, 0], text_of=lambda values: f"label {values['image/class/label']}\nnext"
    )
    assert (third.number, first.number) == (3, 0)
    example = dataset.examples()[3]
    assert third.name.encode() == example["image/filename"]
    assert third.label == dataset.labels.names[example["image/class/label"] - 1]
    assert third.texts[-1] == f"label {example['image/class/label']} ↵ next"
    assert "validation-00000-of-0000" in third.where
    (picture,) = third.pictures
    assert picture.alt.startswith("record 3, label ")


def test_a_record_that_cannot_be_read_says_why():
    values = np.zeros(2, np.uint8)
    changed = open_dataset({"values": values})
    values[1] = 5
    intact, damaged = show_records(changed, [0, 1])
    assert not intact.problem
    assert "They have been written to since" in damaged.problem
