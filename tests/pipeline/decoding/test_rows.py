"""Decoding for any number of rows, to some of the features of a batch."""

import io

import numpy as np
from PIL import Image

from pipeline.datasets import eval_dataset
from pipeline.ops import DecodePng, RandomFlip
from pipeline.spec import ArraySpec
from trainer.recipes.tiny_images import tiny_images

LABEL = "image/class/label"


class Doubled:
    """An op on the label alone."""

    reads = (LABEL,)

    def output_spec(self, specs):
        return {"twice": ArraySpec((), np.dtype(np.int64))}

    def __call__(self, features, rng):
        return {"twice": 2 * features[LABEL]}


def serving(keys):
    ops = [DecodePng("image/encoded", into="image", shape=(4, 6, 3)), Doubled(), RandomFlip("image")]
    given = {"ops": ops, "keys": ["image", "twice"], "global_batch": 32}
    return eval_dataset(tiny_images("validation", (4, 6, 3), 4), **given).serving(keys)


def test_only_what_the_wanted_features_depend_on_is_read():
    assert list(serving(["image"]).stored) == ["image/encoded"]
    assert list(serving(["twice"]).stored) == [LABEL]
    assert sorted(serving(["image", "twice"]).stored) == [LABEL, "image/encoded"]


def test_the_arrays_of_records_are_made_from_their_stored_features():
    both = serving(["image", "twice"])
    payloads = both.payloads([5, 0, 129])
    stored = both.stored_features(payloads)
    arrays = both.rows.decode(payloads, np.zeros((3, both.rows.num_ops, 2), np.int32))
    assert arrays["twice"].tolist() == [2, 0, 2] == (2 * stored[LABEL]).tolist()
    for png, image in zip(stored["image/encoded"], arrays["image"], strict=True):
        np.testing.assert_array_equal(image, Image.open(io.BytesIO(png)))
