"""Every augmentation at every strength has pinned pixels: those of Pillow, which the published code calls."""

import numpy as np
import pytest
from google_crc32c import Checksum
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.decoding.rng import rngs_of
from pipeline.decoding.trivial_augment import NAMES, STRENGTHS, TrivialAugmentWide, augmented

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
    np.stack(np.meshgrid(np.arange(256), np.arange(256), [0]), -1)[:, :, 0].astype(np.uint8),  # blends are truncated
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
    height, width, channels = draw(st.integers(1, 40)), draw(st.integers(1, 40)), draw(st.sampled_from([1, 3]))
    low, high = sorted(draw(st.tuples(st.integers(0, 255), st.integers(0, 255))))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    image = rng.integers(low, high, (height + 2, width + 2, 4), np.uint8, endpoint=True)
    view = image[1:-1, 1:-1, :channels]
    image.flags.writeable = view.flags.writeable = False
    return draw(st.sampled_from([view, view[::-1], view[:, ::-1], view.swapaxes(0, 1), view.copy()]))


@settings(deadline=None, max_examples=100)
@given(views(), st.sampled_from(NAMES), st.sampled_from(DRAWN))
def test_an_image_may_have_any_size_and_layout(image, name, drawn):
    which = NAMES.index(name)
    np.testing.assert_array_equal(augmented(image, which, drawn), augmented(image.copy(), which, drawn))


def test_the_op_is_the_augmentation_that_its_seed_draws():
    image, op = IMAGES[0], TrivialAugmentWide()
    seeds = np.random.default_rng(2).integers(-(2**31), 2**31, (20, 2)).astype(np.int32)
    for (which, drawn), rng in zip(seeds.tolist(), rngs_of(seeds), strict=True):
        expected = augmented(image, which % 14, drawn % 62)
        np.testing.assert_array_equal(op({"image": image}, rng)["image"], expected)
