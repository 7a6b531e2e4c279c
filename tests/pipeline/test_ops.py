"""One contract for every op: a new op is a row in OPS."""

import io
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sweep import SWEEP

from pipeline.datasets import eval_dataset
from pipeline.errors import OptionError, SchemaError
from pipeline.ops import (
    Cast,
    CentralCrop,
    DecodeCentralCrop,
    DecodeJpeg,
    DecodePng,
    DecodeRandomResizedCrop,
    DecodeResize,
    Drop,
    Features,
    GreyToRgb,
    Keep,
    MultiHot,
    OneHot,
    RandomCrop,
    RandomFlip,
    RandomShift,
    Rename,
    Resize,
    Specs,
    TrivialAugmentWide,
)
from pipeline.spec import BYTES, ArraySpec
from pipeline.tf_cpu import tf

BYTES_VALUE = ArraySpec((), BYTES)
IMAGE = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
SPECS = {
    "encoded": BYTES_VALUE,
    "png": BYTES_VALUE,
    "image": ArraySpec(IMAGE.shape, IMAGE.dtype),
    "grey": ArraySpec((5, 4, 1), IMAGE.dtype),
    "label": ArraySpec((), np.dtype("i8")),
    "labels": ArraySpec((None,), np.dtype("i8")),
}
WRONG = ArraySpec((7, 7), np.dtype("f4"))
OPS = [
    DecodeJpeg("encoded", shape=(6, 8, 1)),
    DecodeJpeg("encoded", into="photo", shape=(6, 8, 3)),
    DecodePng("png", shape=(6, 8, 1)),
    DecodePng("png", into="photo", shape=(6, 8, 3)),
    DecodeRandomResizedCrop("encoded", size=(4, 5)),
    DecodeRandomResizedCrop("png", into="photo", size=(4, 5), channels=1, flip=False, method="bicubic"),
    DecodeCentralCrop("encoded", size=(4, 4)),
    DecodeCentralCrop("encoded", size=(4, 4), resize_short=5, antialias=True),
    DecodeResize("encoded", size=(4, 5), method="area"),
    DecodeResize("png", size=(5, 5), fit="pad"),
    RandomShift("image", pixels=2),
    RandomShift("image", pixels=2, fill="edge"),
    RandomShift("image", pixels=0),
    RandomCrop("image"),
    RandomCrop("image", size=(3, 4), padding=1, fill="edge"),
    CentralCrop("image", size=(2, 3)),
    RandomFlip("image"),
    Resize("image", size=(7, 3)),
    Resize("grey", size=(3, 3), method="bicubic", antialias=True),
    GreyToRgb("grey"),
    TrivialAugmentWide("image"),
    TrivialAugmentWide("grey"),
    Keep(["image", "label"]),
    Drop(["label"]),
    Rename({"label": "class", "image": "label"}),
    Cast("label", "uint8"),
    Cast("image", np.float32),
    OneHot("label", 4),
    MultiHot("label", 4),
    MultiHot("labels", 3, base=1, into="hot", ignore=-1),
]
SEEDS = np.random.default_rng(0).integers(-(2**31), 2**31, (20 if SWEEP else 2, 2)).astype(np.int32)
OF_ANY_KIND = (Cast, Drop, Keep, Rename)
SET_NOTHING = (Drop, Keep)
contract = pytest.mark.parametrize("op", OPS, ids=repr)
contract_of_outputs = pytest.mark.parametrize("op", [op for op in OPS if not isinstance(op, SET_NOTHING)], ids=repr)


@pytest.fixture(scope="module")
def example() -> dict:
    picture = tf.constant(np.random.default_rng(1).integers(0, 255, (6, 8, 3), np.uint8))
    encoded = tf.io.encode_jpeg(picture, quality=95)
    png = tf.io.encode_png(picture)
    return {
        "encoded": encoded,
        "png": png,
        "image": tf.constant(IMAGE),
        "grey": tf.constant(IMAGE[..., :1]),
        "label": tf.constant(3, tf.int64),
        "labels": tf.constant([3, 1, -1], tf.int64),
    }


@contract_of_outputs
def test_an_op_is_the_same_eagerly_and_in_tf_data_and_delivers_what_its_spec_says(op, example):
    eager = [op(example, tf.constant(seed)) for seed in SEEDS]
    in_graph = tf.data.Dataset.from_tensor_slices(SEEDS).map(lambda seed: op(example, seed))
    for a, b in zip(eager, in_graph, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            np.testing.assert_array_equal(a[key], b[key])
    found = {key: (tuple(s.shape), s.dtype.as_numpy_dtype) for key, s in in_graph.element_spec.items()}
    assert found == {key: (spec.shape, spec.dtype.type) for key, spec in op.output_spec(SPECS).items()}


@contract
def test_an_op_prints_compares_hashes_and_pickles(op):
    assert pickle.loads(pickle.dumps(op)) == op
    assert hash(op) == hash(pickle.loads(pickle.dumps(op)))
    assert repr(op).startswith(type(op).__name__)


@contract
def test_an_op_names_a_missing_feature(op):
    (key, *_) = op.keys if isinstance(op, Drop) else op.reads
    with pytest.raises(OptionError, match=rf"reads '{key}', which is neither in the records nor set by an earlier op"):
        op.output_spec({"other": SPECS["label"]})


@pytest.mark.parametrize("op", [op for op in OPS if not isinstance(op, OF_ANY_KIND)], ids=repr)
def test_an_op_refuses_a_feature_of_the_wrong_kind(op):
    with pytest.raises(SchemaError, match=r"is float32 \(7, 7\); it must be"):
        op.output_spec(dict.fromkeys(op.reads, WRONG))


def test_jpegs_decode_close_to_pillow_without_a_bias(example):
    # Smooth, as photos are: where chroma is subsampled, decoders may differ on noise.
    ramp = np.add.outer(np.arange(64) * 2, np.arange(64)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(ramp).save(buffer, "JPEG", quality=90)
    ours = DecodeJpeg("encoded", shape=(64, 64, 1))({"encoded": tf.constant(buffer.getvalue())}, None)["image"]
    exact = np.asarray(Image.open(buffer), int)[..., None]
    difference = ours.numpy().astype(int) - exact
    assert abs(difference).max() <= 1
    assert abs(difference.mean()) < 0.05


@pytest.mark.parametrize("mode", ["L", "RGB", "P", "1"])
def test_pngs_decode_to_exactly_their_pixels(mode):
    noise = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    image = Image.fromarray(noise).convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    channels = 1 if mode in ("L", "1") else 3
    ours = DecodePng("png", shape=(6, 8, channels))({"png": tf.constant(buffer.getvalue())}, None)["image"]
    np.testing.assert_array_equal(ours, np.asarray(image.convert("RGB"))[..., :channels])


@pytest.mark.parametrize("op", [DecodeJpeg("encoded", shape=(224, 224, 3)), DecodePng("png", shape=(224, 224, 3))])
def test_an_image_of_another_size_is_refused_before_it_is_decoded(example, op):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)a size other than the 224 x 224 of .*\[6 8\]"):
        op(example, None)


def test_a_png_that_claims_to_be_huge_is_not_decoded_and_a_jpeg_is_none(example):
    png = example["png"].numpy()
    op = DecodePng("png", shape=(6, 8, 3))
    huge = png[:16] + (2**31 - 1).to_bytes(4, "big") * 2 + png[24:]
    for data, size in ((huge, "2147483647 2147483647"), (b"", "0 0"), (png[:23], "0 8"), (b"\xff" + png[1:], "6 8")):
        message = rf"(?s)is not a PNG, or a PNG of a size other than the 6 x 8 of .*\[{size}\]"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            op({"png": tf.constant(data)}, None)
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not a PNG"):
        op({"png": example["encoded"]}, None)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: DecodeJpeg("encoded", shape=(6, 8, 4)), r"shape must be \(height, width, 1\) for grey"),
        (lambda: DecodeJpeg("encoded", shape=(6, 8)), "shape must be"),  # pyright: ignore[reportArgumentType]
        (lambda: DecodePng("png", shape=(6, 8, 4)), r"shape must be \(height, width, 1\) for grey"),
    ],
)
def test_an_op_with_invalid_options_is_refused_when_it_is_created(make, text):
    with pytest.raises(OptionError, match=text):
        make()


@dataclass(frozen=True)
class Dropping:
    """What a filter would be: it has nothing to say of some records."""

    made: dict[str, int] | None
    reads: tuple[str, ...] = ("number",)

    def output_spec(self, specs: Specs) -> Specs:
        return {"number": specs["number"], "kept": ArraySpec((), np.dtype(np.int32))}

    def __call__(self, features: Features, seed: Any) -> Any:
        return self.made


@pytest.mark.parametrize(("made", "text"), [(None, "returned None"), ({}, r"returned \[\]"), ({"kept": 1}, "'kept'")])
def test_an_op_that_drops_a_record_is_an_error_that_suggests_a_weight_of_zero(numbers_of, made, text):
    source = eval_dataset(numbers_of(5), global_batch=4, ops=[Dropping(made)], keys=("number",))
    told = rf"{text}.* for a record; its output_spec promises \['kept', 'number'\]\. .* give them a weight of 0"
    with pytest.raises(OptionError, match=told):
        next(source.batches())
