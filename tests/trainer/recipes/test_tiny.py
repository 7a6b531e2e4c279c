"""The generated images and texts of --tiny."""

import io

import numpy as np
import pytest
from PIL import Image

from pipeline.sources.open_dataset import open_dataset
from pipeline.tokenizers import ByteTokenizer, CharacterTokenizer, TextInfo
from trainer.metrics.tokens import next_tokens
from trainer.recipes.tiny import tiny_images, tiny_text


def pixels_of(records):
    return np.stack([Image.open(io.BytesIO(each["image/encoded"])) for each in records.examples()])


def opened(*arguments, **options):
    from pipeline.sources.open_dataset import open_dataset

    return open_dataset(tiny_images(*arguments, **options))


@pytest.mark.parametrize(("shape", "encoding"), [((28, 28, 1), "png"), ((20, 30, 3), "jpeg")])
def test_tiny_images_have_the_shape_and_encoding_that_a_recipe_reads(shape, encoding):
    records = opened("train", shape, 3, encoding=encoding)
    images = [Image.open(io.BytesIO(each["image/encoded"])) for each in records.examples()]
    assert {image.format.lower() for image in images} == {encoding}
    assert pixels_of(records).shape == (130, *shape[:2], *([3] if shape[2] == 3 else []))


def test_labels_of_tiny_images_cycle_from_the_base_and_have_names():
    records = opened("train", (8, 8, 1), 3, label_base=1)
    assert [each["image/class/label"] for each in records.examples()[:4]] == [1, 2, 3, 1]
    assert (records.info.labels.base, records.info.labels.names) == (
        1,
        ("class 0", "class 1", "class 2"),
    )


def test_tiny_splits_are_reproducible_and_share_classes_but_not_images():
    train, same, test = (opened(split, (8, 8, 1), 10) for split in ("train", "train", "test"))
    assert train.info.fingerprint == same.info.fingerprint != test.info.fingerprint
    mean = [pixels_of(split).reshape(13, 10, 8, 8).mean(0) for split in (train, test)]
    # the noise has a deviation of 14, and is averaged over 13 images
    assert np.abs(mean[0] - mean[1]).mean() < 8
    assert np.abs(mean[0][0] - mean[0][1]).mean() > 30


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), CharacterTokenizer()], ids=repr)
def test_rows_have_complete_documents_and_the_totals_that_they_state(tokenizer):
    records = open_dataset(tiny_text("train", TextInfo(tokenizer, 64, "documents")))
    rows = {
        key: np.array([example[key] for example in records.examples()])
        for key in ("tokens", "segment_ids")
    }
    sizes = np.array([example["num_bytes"] for example in records.examples()])
    positions = np.array([example["positions"] for example in records.examples()])
    counts = np.asarray(next_tokens(rows)[1])
    assert (len(sizes), rows["tokens"].shape) == (130, (130, 64))
    assert records.info.totals == {"num_bytes": sizes.sum(), "num_tokens": counts.sum()}
    for row in range(130):
        for segment in range(1, rows["segment_ids"][row].max() + 1):
            place = rows["segment_ids"][row] == segment
            first, *text, last = rows["tokens"][row, place].tolist()
            assert (first, last) == (tokenizer.start, tokenizer.end)
            assert tokenizer.decode(text).endswith(".")
            assert positions[row, place].tolist() == list(range(place.sum()))
    decoded = [len(tokenizer.decode(tokens).encode()) for tokens in rows["tokens"]]
    np.testing.assert_array_equal(decoded, sizes)


def test_the_same_tiny_text_split_is_reproducible_and_others_differ():
    info = TextInfo(ByteTokenizer(), 64, "documents")
    train, same, test = (
        tiny_text(split, info).info.fingerprint for split in ("train", "train", "test")
    )
    assert train == same != test
