"""The generated images of --tiny."""

import io

import numpy as np
import pytest
from PIL import Image

from trainer.recipes.tiny_images import tiny_images


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
    assert (records.info.labels.base, records.info.labels.names) == (1, ("class 0", "class 1", "class 2"))


def test_tiny_splits_are_reproducible_and_share_classes_but_not_images():
    train, same, test = (opened(split, (8, 8, 1), 10) for split in ("train", "train", "test"))
    assert train.info.fingerprint == same.info.fingerprint != test.info.fingerprint
    mean = [pixels_of(split).reshape(13, 10, 8, 8).mean(0) for split in (train, test)]
    assert np.abs(mean[0] - mean[1]).mean() < 8  # the noise has a deviation of 14, and is averaged over 13 images
    assert np.abs(mean[0][0] - mean[0][1]).mean() > 30
