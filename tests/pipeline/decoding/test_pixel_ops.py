"""Pixels of images: crops, flips, sizes, and every augmentation at every strength, pinned to those of Pillow,
which the published code calls."""

import numpy as np
import pytest
from google_crc32c import Checksum
from hypothesis import given, settings
from hypothesis import strategies as st
from op_rng import rng_of
from pictures import encoded
from PIL import Image
from sweep import examples

from pipeline import ops
from pipeline.decoding.pixel_ops import NAMES, STRENGTHS, augmented
from pipeline.decoding.rng import rngs_of
from pipeline.spec import NUMBERS

DRAWN = range(2 * STRENGTHS)


def ramps(*shape):
    """Ramps in all directions and an edge, between 3 and 250, in integers."""
    y, x, channel = np.indices(shape)
    return (3 + (5 * x + (3 + channel) * y + x * y // 9 + 60 * (x > y)) % 248).astype(np.uint8)


IMAGES = [
    ramps(30, 47, 3),
    ramps(32, 32, 3),
    ramps(29, 41, 1),
    ramps(331, 500, 3),  # where float32 coordinates would miss a few pixels
    np.random.default_rng(1).integers(0, 256, (30, 47, 3), np.uint8),
    np.full((30, 47, 3), 77, np.uint8),  # one level
    np.where(ramps(30, 47, 3) > 110, 200, 10).astype(np.uint8),  # two
    np.random.default_rng(2).integers(100, 104, (9, 70, 3), np.uint8),  # a few
    ramps(1, 5, 3),
    ramps(40, 1, 1),
    # blends are truncated
    np.stack(np.meshgrid(np.arange(256), np.arange(256), [0]), -1)[:, :, 0].astype(np.uint8),
]
# CRC32C of the pixels of all images at all strengths, from an implementation in NumPy and OpenCV that was compared with
# Pillow in 345,464 images.
CHECKSUMS = {
    "identity": 0x3C7C4491,
    "autocontrast": 0x6DA0EAA9,
    "equalize": 0xD867A086,
    "rotate": 0x0C2C0BA7,
    "solarize": 0x0FF11E01,
    "colour": 0x476D6603,
    "posterize": 0x7132FE93,
    "contrast": 0xD195A706,
    "brightness": 0xC0D5DF8A,
    "sharpness": 0x2856E0AF,
    "shear_x": 0x2F213582,
    "shear_y": 0x67C5AA2C,
    "translate_x": 0xBC7348E4,
    "translate_y": 0x88550789,
}


@pytest.mark.parametrize("name", NAMES)
def test_every_augmentation_at_every_strength_has_its_pixels(name):
    found = Checksum()
    for image in IMAGES:
        for drawn in DRAWN:
            made = augmented(image, NAMES.index(name), drawn)
            assert (made.shape, made.dtype) == (image.shape, np.uint8)
            found.update(made.tobytes())
    assert int.from_bytes(found.digest(), "big") == CHECKSUMS[name]


@st.composite
def views(draw):
    """Read-only images of any layout: flipped, transposed, cut out of a larger one."""
    height, width, channels = (
        draw(st.integers(1, 40)),
        draw(st.integers(1, 40)),
        draw(st.sampled_from([1, 3])),
    )
    low, high = sorted(draw(st.tuples(st.integers(0, 255), st.integers(0, 255))))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    image = rng.integers(low, high, (height + 2, width + 2, 4), np.uint8, endpoint=True)
    view = image[1:-1, 1:-1, :channels]
    image.flags.writeable = view.flags.writeable = False
    return draw(
        st.sampled_from([view, view[::-1], view[:, ::-1], view.swapaxes(0, 1), view.copy()])
    )


@settings(deadline=None, max_examples=100)
@given(views(), st.sampled_from(NAMES), st.sampled_from(DRAWN))
def test_an_image_may_have_any_size_and_layout(image, name, drawn):
    which = NAMES.index(name)
    np.testing.assert_array_equal(
        augmented(image, which, drawn), augmented(image.copy(), which, drawn)
    )


def test_the_op_is_the_augmentation_that_its_seed_draws():
    image, op = IMAGES[0], ops.TrivialAugmentWide()
    seeds = np.random.default_rng(2).integers(-(2**31), 2**31, (20, 2)).astype(np.int32)
    for (which, drawn), rng in zip(seeds.tolist(), rngs_of(seeds), strict=True):
        expected = augmented(image, which % 14, drawn % 62)
        np.testing.assert_array_equal(op({"image": image}, rng)["image"], expected)


IMAGE = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
SEEDS = np.random.default_rng(0).integers(-(2**31), 2**31, (500, 2)).astype(np.int32)


def run(op, image=IMAGE, seed=SEEDS[0]):
    return op({op.key: image}, rng_of(seed))[op.key]


def of_kind(dtype, channels):
    return np.resize(IMAGE, (5, 7, channels)).astype(dtype)


def layout(*shape, dtype="u1"):
    return np.dtype([("image", dtype, shape)])


@settings(max_examples=examples(60))
@given(
    st.integers(0, 4), st.tuples(st.integers(1, 5), st.integers(1, 7)) | st.none(), st.sampled_from(["zero", "edge"]),
    st.sampled_from(list(SEEDS)), st.sampled_from(NUMBERS), st.sampled_from([1, 3, 600]),
)  # fmt: skip
def test_a_random_crop_is_the_window_of_the_padded_image_that_the_seed_says(
    padding, size, fill, seed, dtype, channels
):
    """Another window would be another training for everyone who resumes from a checkpoint."""
    image = of_kind(dtype, channels)
    (h, w), p = size or image.shape[:2], padding
    padded = np.pad(image, [(p, p), (p, p), (0, 0)], "edge" if fill == "edge" else "constant")
    y, x = (
        int(s) % (side + 1)
        for s, side in zip(seed, (padded.shape[0] - h, padded.shape[1] - w), strict=True)
    )
    expected = padded[y : y + h, x : x + w]
    both = [
        ops.RandomCrop("image", size, padding, fill),
        *([] if size else [ops.RandomShift("image", padding, fill)]),
    ]
    for op in both:
        cropped = run(op, image, seed)
        assert cropped.dtype == dtype
        np.testing.assert_array_equal(cropped, expected)


@settings(max_examples=20)
@given(st.tuples(st.integers(1, 5), st.integers(1, 7)))
def test_an_uneven_central_crop_has_the_smaller_margin_first(size):
    y, x = (5 - size[0]) // 2, (7 - size[1]) // 2
    np.testing.assert_array_equal(
        run(ops.CentralCrop(size=size)), IMAGE[y : y + size[0], x : x + size[1]]
    )


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("channels", [1, 3, 4, 600])
def test_a_mirrored_image_has_its_columns_in_reverse_whatever_its_kind(dtype, channels):
    image = of_kind(dtype, channels)
    for each in (image, image[:, ::-1], np.broadcast_to(image[..., :1], image.shape)):
        mirrored = run(ops.RandomFlip(), each, (1, 0))
        assert mirrored.dtype == dtype
        np.testing.assert_array_equal(mirrored, each[:, ::-1])
        np.testing.assert_array_equal(run(ops.RandomFlip(), each, (-2, 1)), each)


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
def test_resize_equals_decode_resize(method):
    png = encoded(Image.fromarray(IMAGE), "PNG")
    expected = ops.DecodeResize("image", size=(4, 9), method=method)({"image": png}, rng_of())[
        "image"
    ]
    np.testing.assert_array_equal(run(ops.Resize(size=(4, 9), method=method)), expected)


def test_grey_becomes_three_equal_channels():
    np.testing.assert_array_equal(
        run(ops.GreyToRgb(), IMAGE[..., :1]), np.repeat(IMAGE[..., :1], 3, -1)
    )
