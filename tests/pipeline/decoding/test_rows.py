"""Decoding for any number of rows, to some of the features of a batch."""

import numpy as np

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

    def __call__(self, features, seed):
        return {"twice": 2 * features[LABEL]}


def serving(keys):
    ops = [DecodePng("image/encoded", into="image", shape=(4, 6, 3)), Doubled(), RandomFlip("image")]
    given = {"ops": ops, "keys": ["image", "twice"], "global_batch": 32}
    return eval_dataset(tiny_images("validation", (4, 6, 3), 4), **given).serving(keys)


def test_only_what_the_wanted_features_depend_on_is_read():
    assert list(serving(["image"]).stored) == ["image/encoded"]
    assert list(serving(["twice"]).stored) == [LABEL]
    assert sorted(serving(["image", "twice"]).stored) == [LABEL, "image/encoded"]


def test_decoding_a_record_and_its_stored_features_yields_the_same_arrays():
    both = serving(["image", "twice"])
    payloads = both.payloads([5, 0, 129])
    stored = both.stored_features(payloads)
    assert both.decode(payloads)["twice"].numpy().tolist() == [2, 0, 2]
    for name, value in both.decode_stored(stored).items():
        np.testing.assert_array_equal(value, both.decode(payloads)[name])
