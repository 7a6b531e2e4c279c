"""The graph of an export decodes images to the pixels of the ops, up to rounding."""

import functools

import numpy as np
import pytest
from odd_images import KINDS
from op_rng import rng_of
from pictures import FORMATS, encoded, picture, rotated

from pipeline.errors import SchemaError
from pipeline.ops import DecodeCentralCrop, DecodeJpeg, DecodePng, DecodeResize
from pipeline.tf_cpu import tf
from trainer.serving.graph_decoding import graph_of

SMALL = {name: kind for name, kind in KINDS.items() if not kind.large and not kind.either}
ROUNDED = 1  # level; Pillow rounds also between the passes of an antialiased resizing
PHOTO_OPS = [
    DecodeCentralCrop("image", size=(24, 24)),
    DecodeCentralCrop("image", size=(24, 24), border=0, channels=1, method="bicubic"),
    pytest.param(
        DecodeCentralCrop("image", size=(24, 24), resize_short=27), marks=pytest.mark.slow
    ),
    DecodeCentralCrop("image", size=(24, 24), resize_short=40, antialias=True),
    DecodeResize("image", size=(30, 50)),
    DecodeResize("image", size=(30, 50), fit="pad"),
    pytest.param(
        DecodeResize("image", size=(130, 90), fit="pad", channels=1), marks=pytest.mark.slow
    ),
    DecodeResize("image", size=(100, 90), method="bicubic"),
    DecodeResize("image", size=(20, 30), method="bicubic", antialias=True),
]


@functools.cache
def function_of(op):
    """A graph takes 0.1 s to build, and decodes all images of a test."""
    graph, signature = graph_of(op), [tf.TensorSpec([], tf.string)]
    return tf.function(lambda image: graph({op.key: image}), signature, autograph=False)


def of_graph(op, image):
    return function_of(op)(tf.constant(image))[op.into].numpy()


def apart(op, image):
    """The largest difference in levels; and the share of values that differ."""
    expected, found = op({op.key: image}, rng_of())[op.into], of_graph(op, image)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype == np.uint8
    levels = np.abs(found.astype(int) - expected)
    return levels.max(), (levels > 0).mean()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "name", ["JPEG 4:4:4", "JPEG 4:2:0", "grey JPEG", "progressive JPEG", "PNG", "grey PNG"]
)
def test_images_of_a_known_size_have_the_same_pixels(name, channels):
    op = DecodePng if "PNG" in name else DecodeJpeg
    levels, share = apart(op("image", shape=(80, 120, channels)), FORMATS[name][0])
    grey_of_colours = op is DecodePng and channels == 1 and "grey" not in name
    assert levels <= grey_of_colours
    assert share < 0.001


@pytest.mark.parametrize("op", PHOTO_OPS, ids=repr)
def test_images_of_any_size_have_the_same_pixels_up_to_rounding(op):
    for image in (image for name, (image, _) in FORMATS.items() if "WebP" not in name):
        levels, share = apart(op, image)
        assert levels <= ROUNDED
        assert share < (0.25 if op.antialias else 0.05)  # ties of simple ratios


@pytest.mark.parametrize("endian", "<>")
def test_jpegs_are_turned_by_their_exif_as_by_an_op_that_is_upright(endian):
    op = DecodeResize("image", size=(50, 50), fit="pad", upright=True)
    for image in [
        *(rotated(orientation, endian) for orientation in range(10)),
        encoded(picture(), "PNG"),
    ]:
        assert apart(op, image)[0] <= ROUNDED


@pytest.mark.parametrize("name", SMALL)
def test_an_odd_image_is_decoded_or_refused_as_by_the_op(name):
    op = DecodeResize("image/encoded", size=(8, 8))
    for image in SMALL[name].images(2):
        if "WEBP" in name.upper():  # a served model takes JPEGs and PNGs
            with pytest.raises(tf.errors.InvalidArgumentError, match="neither a JPEG nor a PNG"):
                of_graph(op, image)
        elif SMALL[name].error is None:
            assert apart(op, image)[0] <= ROUNDED
        else:
            with pytest.raises(SchemaError):
                op({op.key: image}, rng_of())
            with pytest.raises(tf.errors.InvalidArgumentError):
                of_graph(op, image)


@pytest.mark.parametrize("op", [DecodeJpeg, DecodePng])
def test_an_image_of_another_size_than_the_known_one_is_refused(op):
    image = encoded(picture(), op.__name__.removeprefix("Decode").upper())
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match="of a size other than 120 x 80. Its height and width are",
    ):
        of_graph(op("image", shape=(120, 80, 3)), image)
