import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.datasets import PadTo, eval_dataset, train_dataset
from pipeline.decoding.decode import nested_tree
from pipeline.errors import OptionError
from pipeline.ops import DecodeJpeg
from pipeline.tf_cpu import tf
from pipeline.tf_data import dataset_of

LABEL, WEIGHT, XMIN = "image/class/label", "image/weight", "image/object/bbox/xmin"
PIXELS = DecodeJpeg("image/encoded", into="image/pixels", shape=(8, 8, 1))
OPTIONS = {
    "global_batch": 8,
    "ops": [PIXELS],
    "pad_to": {XMIN: PadTo(3, value=-1, length_into="image/object/count")},
}


def flattened(tree: dict, above: str = "") -> dict:
    flat = {}
    for key, value in tree.items():
        flat |= (
            flattened(value, f"{above}{key}/") if isinstance(value, dict) else {above + key: value}
        )
    return flat


@given(st.dictionaries(st.text("ab/", max_size=5), st.integers(), max_size=6))
def test_nesting_loses_nothing_or_is_refused(flat):
    folders = {key[:i] for key in flat for i, letter in enumerate(key) if letter == "/"}
    if folders & flat.keys():
        with pytest.raises(OptionError, match="a nested batch cannot have both"):
            nested_tree(flat)
    else:
        assert flattened(nested_tree(flat)) == flat


def batches(data, make: str) -> list[dict]:
    return list(data.batches()) if make == "batches" else list(dataset_of(data).as_numpy_iterator())


@pytest.mark.parametrize("make", ["batches", "as_dataset"])
def test_a_nested_batch_holds_the_same_arrays_as_a_flat_one(images, make):
    flat = eval_dataset(images, **OPTIONS, pad_values={LABEL: 7})
    tree = eval_dataset(images, **OPTIONS, pad_values={LABEL: 7}, nested=True)
    assert flattened(tree.spec) == flat.spec
    assert set(tree.spec) == {"image", "_mask", "_index", "_crc"}
    for ours, theirs in zip(batches(tree, make), batches(flat, make), strict=True):
        assert set(ours) == set(tree.spec)
        assert ours["image"]["class"]["label"].tolist() == theirs[LABEL].tolist()
        for key, value in flattened(ours).items():
            np.testing.assert_array_equal(value, theirs[key])
            assert (value.shape, value.dtype) == (flat.spec[key].shape, flat.spec[key].dtype)
    element = dataset_of(tree).element_spec
    assert tf.nest.map_structure(lambda x: tuple(x.shape), element) == {
        "image": {
            "class": {"label": (8,)},
            "object": {"bbox": {"xmin": (8, 3)}, "count": (8,)},
            "pixels": (8, 8, 8, 1),
            "weight": (8, 2),
        },
        **dict.fromkeys(("_mask", "_index", "_crc"), (8,)),
    }


def test_training_delivers_nested_batches_too(images):
    batch = next(train_dataset(images, global_batch=8, keys=[LABEL], nested=True).batches())
    assert flattened(batch).keys() == {LABEL, "_mask", "_index", "_crc", "_seed"}


def test_a_value_that_is_also_a_folder_is_refused_before_anything_is_read(images):
    image = DecodeJpeg("image/encoded", shape=(8, 8, 1))
    text = r"cannot have both 'image', a value, and 'image/class/label' inside it\. Leave one .* \(into='image/value'\)"
    with pytest.raises(OptionError, match=text):
        eval_dataset(images, global_batch=8, ops=[image], keys=["image", LABEL], nested=True)
    assert set(eval_dataset(images, global_batch=8, ops=[image], keys=["image", LABEL]).spec) > {
        "image",
        LABEL,
    }
