"""Thumbnails of images of every kind, and of arrays."""

import base64
import io

import numpy as np
import pytest
from pictures import encoded
from PIL import EpsImagePlugin, Image

from pipeline.pages.figures import is_picture, thumbnail, thumbnail_of_array


def image_of(picture):
    return Image.open(io.BytesIO(base64.b64decode(picture.source.partition(",")[2])))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_a_large_image_of_any_mode_becomes_a_small_one(mode):
    picture = thumbnail(encoded(Image.new(mode, (400, 200)), "PNG"), "an image")
    assert picture is not None
    assert (picture.width, picture.height, picture.pixelated) == (136, 68, False)
    assert image_of(picture).size == (136, 68)
    assert len(picture.source) < 8_000


def test_cmyk_and_large_jpegs_are_decoded():
    for mode in ("CMYK", "RGB"):
        picture = thumbnail(encoded(Image.new(mode, (3000, 1500)), "JPEG"), "a photograph")
        assert picture is not None
        assert image_of(picture).format == "JPEG"


def test_a_tiny_image_keeps_its_pixels_and_is_enlarged():
    pixels = np.arange(28 * 28, dtype=np.uint8).reshape(28, 28)
    picture = thumbnail(encoded(Image.fromarray(pixels), "PNG"), "a digit")
    assert picture is not None
    assert picture.pixelated
    np.testing.assert_array_equal(np.asarray(image_of(picture).convert("L")), pixels)


def test_16_bits_are_scaled_to_what_is_in_the_image():
    pixels = np.linspace(1000, 5000, 100 * 100).astype(np.uint16).reshape(100, 100)
    picture = thumbnail(encoded(Image.fromarray(pixels), "PNG"), "a scan")
    assert picture is not None
    shown = np.asarray(image_of(picture).convert("L"))
    assert shown.min() < 10
    assert 100 < shown.mean() < 155
    assert shown.max() > 245


@pytest.mark.parametrize(
    "data",
    [b"", b"no image", encoded(Image.new("RGB", (90, 90)), "PNG")[:-30]],
    ids=["", "text", "cut"],
)
def test_undecodable_bytes_have_no_thumbnail(data):
    assert thumbnail(data, "nothing") is None


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "DDS", "PPM", "ICO"])
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_damaged_images_never_crash_the_thumbnail(kind):
    rng, data = np.random.default_rng(0), encoded(Image.new("RGB", (32, 32), (9, 99, 200)), kind)
    for _ in range(60):
        damaged = bytearray(data)
        for at in rng.integers(0, min(len(data), 150), 3):
            damaged[at] = rng.integers(256)
        thumbnail(bytes(damaged[: rng.integers(1, 2 * len(data))]), kind)


def test_no_program_is_started_for_postscript(monkeypatch):
    def start(*_, **__):
        pytest.fail("Ghostscript was started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", start)
    data = encoded(Image.new("RGB", (90, 90)), "EPS")
    assert Image.open(io.BytesIO(data)).format == "EPS"
    assert thumbnail(data, "a drawing") is None


@pytest.mark.parametrize("most", [1.0, 3e38])
def test_floats_are_scaled_from_black_to_white(most):
    array = np.array([[[-most], [0.0]], [[most], [np.nan]]], np.float32).repeat(4, 0).repeat(4, 1)
    shown = np.asarray(image_of(thumbnail_of_array(array, "floats")).convert("L"))
    assert shown[::4, ::4].tolist() == [[0, 128], [255, 0]]


@pytest.mark.parametrize(
    "array", [np.zeros((5, 5)), np.full((5, 5, 3), np.nan), np.zeros((5, 5, 1), np.int64)]
)
def test_constant_and_non_finite_arrays_are_black(array):
    # 255: alpha
    assert np.asarray(image_of(thumbnail_of_array(array, "black"))).max(initial=0) in (0, 255)


@pytest.mark.parametrize("shape", [(8, 9, 3), (8, 9, 1), (3, 8, 9), (1, 8, 9), (8, 9)])
def test_an_array_is_an_image_with_its_channels_first_or_last(shape):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    assert is_picture(array)
    shown = np.asarray(image_of(thumbnail_of_array(array, "an array")).convert("RGB"))
    last = np.moveaxis(array, 0, -1) if shape[0] < 4 else array.reshape(8, 9, -1)
    np.testing.assert_array_equal(shown, np.broadcast_to(last, (8, 9, 3)))


@pytest.mark.parametrize(
    "shape", [(9,), (3, 3), (3, 8, 3), (2, 8, 9), (1, 1, 768), (8, 9, 3, 3), ()]
)
def test_other_shapes_are_no_images(shape):
    assert not is_picture(np.zeros(shape, np.uint8))


def test_a_table_of_floats_is_no_image():
    assert not is_picture(np.zeros((8, 9), np.float32))
