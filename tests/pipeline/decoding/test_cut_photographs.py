"""A JPEG with restart markers is cut, and decodes to the pixels of the whole image."""

import contextlib
import io
import math
import os
import shutil

import numpy as np
import pytest
import simplejpeg
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pictures import encoded as jpeg
from PIL import Image
from sweep import examples

from converters import image_folder_to_gcs, imagenet_to_gcs
from pipeline.datasets import open_dataset, train_dataset
from pipeline.decoding import encoded_images
from pipeline.errors import OptionError, SchemaError
from pipeline.ops import DecodeRandomResizedCrop
from pipeline.raw.image_files import ORIENTATION, ToJpeg, orientation
from pipeline.raw.jpeg import NOT_RESTARTED, Jpeg, decode_jpeg
from pipeline.raw.jpeg_parts import part_of

SIDES = st.integers(1, 300)
SAMPLINGS = {"4:4:4": (8, 8), "4:2:2": (8, 16), "4:2:0": (16, 16)}

needs_jpegtran = pytest.mark.skipif(
    shutil.which("jpegtran") is None and "CI" not in os.environ,
    reason="needs jpegtran; CI fails without it",
)


def picture(height, width, mode="RGB"):
    """Waves with grain, so that all blocks and their chroma differ."""
    y, x = np.mgrid[0:height, 0:width]
    waves = 128 + 100 * np.sin(x / 7 + np.arange(3)[:, None, None]) * np.cos(y / 5)
    grain = np.random.default_rng(0).normal(0, 20, (3, height, width))
    pixels = np.moveaxis(waves + grain, 0, 2).clip(0, 255).astype(np.uint8)
    return Image.fromarray(pixels).convert(mode)


def pixels_of(data, window, scale=1):
    return encoded_images.jpeg_window(data, encoded_images.jpeg_header(data), window, 3, scale)


def whole(data, window, scale=1):
    """The same of the whole image; None where it is damaged."""
    try:
        pixels = encoded_images.jpeg_pixels(data, encoded_images.jpeg_header(data), 3, scale)
    except SchemaError:
        return None
    y, x, h, w = (round(place / scale) for place in window)
    return pixels[y : y + h, x : x + w]


def window_of(data, height, width):
    """A window in an image of this size, which often begins or ends where blocks do."""
    spans = []
    for side in (height, width):
        places = st.integers(0, side - 1) | st.sampled_from(range(0, side, 8))
        begin, end = sorted((data.draw(places), data.draw(places)))
        spans.append((begin, max(end - begin, 1)))
    (y, h), (x, w) = spans
    return y, x, h, w


@settings(max_examples=examples(1000))
@given(
    data=st.data(),
    height=SIDES,
    width=SIDES,
    sampling=st.sampled_from([*SAMPLINGS, "grey", "grey of 2 x 2"]),
    quality=st.integers(1, 100),
    interval=st.integers(1, 4) | st.integers(1, 40),
    scale=st.sampled_from([1, 1, 1, 2, 4, 8]),
)
def test_any_window_of_a_cut_image_has_the_pixels_of_the_whole(
    data, height, width, sampling, quality, interval, scale
):
    options = {"restart_marker_blocks": interval, "quality": quality}
    if sampling.startswith("grey"):
        encoded = jpeg(picture(height, width, "L"), **options)
        if sampling != "grey":  # as some encoders state it
            encoded = encoded.replace(b"\1\1\x11\0", b"\1\1\x22\0", 1)
    else:
        encoded = jpeg(picture(height, width), subsampling=sampling, **options)
    window = window_of(data, height, width)
    scale = scale if min(height, width) > 1 else 1
    np.testing.assert_array_equal(pixels_of(encoded, window, scale), whole(encoded, window, scale))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_part_has_little_more_than_the_window(sampling):
    high, wide = SAMPLINGS[sampling]
    encoded = jpeg(picture(480, 640), subsampling=sampling, restart_marker_blocks=2)
    part = part_of(encoded, (200, 300, 64, 64))
    height, width = part.size
    assert 64 <= height <= 64 + 4 * high
    assert 64 <= width <= 64 + 8 * wide
    assert len(part.data) < len(encoded) / 2
    assert decode_jpeg(part.data).shape == (height, width, 3)  # without a warning of libjpeg


MARKED = jpeg(picture(120, 160), subsampling="4:2:0", restart_marker_blocks=2)
HEAD = MARKED.index(b"\xff\xda")
FIRST = MARKED.index(b"\xff\xd0", HEAD)
INTERVAL = MARKED.index(b"\xff\xdd") + 5
WINDOW = (50, 70, 20, 20)


def changed(at, value):
    return MARKED[:at] + value + MARKED[at + len(value) :]


@pytest.mark.parametrize(
    "odd",
    [
        jpeg(picture(120, 160), progressive=True, restart_marker_blocks=2),
        jpeg(picture(120, 160), restart_marker_blocks=7),  # which does not divide a row of 10
        jpeg(picture(120, 160)),
        MARKED[:-2],
        MARKED[: len(MARKED) // 2],
        MARKED[: len(MARKED) // 2] + b"\xff\xd9",
        MARKED + b"more",
        MARKED[:FIRST] + MARKED[FIRST + 2 :],
        MARKED[:FIRST] + b"\xff\xd0" + MARKED[FIRST:],
        changed(FIRST, b"\xff\xd1"),
        changed(INTERVAL, b"\0"),
        changed(INTERVAL, b"\5"),
        MARKED[: HEAD + 3],
        MARKED[:HEAD],
    ],
    ids=lambda data: str(len(data)),
)
def test_an_odd_image_is_not_cut(odd):
    assert part_of(MARKED, WINDOW)
    assert part_of(odd, WINDOW) is None


@settings(max_examples=1000)
@given(at=st.integers(2, len(MARKED) - 1), value=st.binary(min_size=1, max_size=3))
@example(at=INTERVAL - 4, value=b"\xdc")
def test_a_damaged_image_is_decoded_as_the_whole_or_damaged_elsewhere_or_one_error(at, value):
    damaged = changed(at, value)
    with contextlib.suppress(SchemaError):  # the ops refuse a header that states more
        assume(math.prod(encoded_images.jpeg_header(damaged).size) < 10**6)
    try:
        pixels = pixels_of(damaged, WINDOW)
    except SchemaError:
        assert whole(damaged, WINDOW) is None
        return
    expected = whole(damaged, WINDOW)
    if expected is None or not np.array_equal(pixels, expected):
        np.testing.assert_array_equal(pixels, whole(MARKED, WINDOW))


@needs_jpegtran
@settings(max_examples=100)
@given(
    data=st.data(),
    height=SIDES,
    width=SIDES,
    sampling=st.sampled_from(["444", "422", "420", "440", "411", "Gray"]),
)
def test_restart_markers_change_no_pixel(data, height, width, sampling):
    colours = "GRAY" if sampling == "Gray" else "RGB"
    pixels = np.asarray(picture(height, width, "L" if sampling == "Gray" else "RGB"))
    encoded = simplejpeg.encode_jpeg(pixels.reshape(height, width, -1), 90, colours, sampling)
    after = Jpeg(encoded, height, width).restarted()
    assert not after.notes
    assert after.restarted() == after
    for decode in (decode_jpeg, lambda jpeg: np.asarray(Image.open(io.BytesIO(jpeg)))):
        np.testing.assert_array_equal(decode(after.data), decode(encoded))
    window = window_of(data, height, width)
    np.testing.assert_array_equal(pixels_of(after.data, window), whole(encoded, window))


@needs_jpegtran
def test_a_progressive_image_gets_markers_and_keeps_its_exif():
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    before = jpeg(picture(200, 300), progressive=True, exif=exif)
    after = ToJpeg(restart_markers=True)(before).data
    assert part_of(after, WINDOW)
    assert orientation(after) == 6
    np.testing.assert_array_equal(decode_jpeg(after), decode_jpeg(before))


@needs_jpegtran
def test_what_jpegtran_warns_of_stays_as_it_is_with_a_note():
    damaged = MARKED[: len(MARKED) // 2]
    image = ToJpeg("header", restart_markers=True)(damaged)
    assert image.data == damaged
    assert image.notes == (NOT_RESTARTED,)


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("exit 127", "exit code 127"),
        ("kill -9 $$", "exit code -9"),
        ("/bin/cat", "no restart markers were written"),
        ("exit 0", "no restart markers were written"),
        (None, "Permission denied"),
        ("exec /bin/sleep 60", "did not end within 1 s"),
    ],
)
def test_a_jpegtran_that_does_not_work_is_noticed_at_the_start(
    script, text, photographs, monkeypatch
):
    monkeypatch.setattr("pipeline.raw.jpeg._MAX_SECONDS", 1)
    program = photographs / "bin" / "jpegtran"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755 if script else 0o644)
    monkeypatch.setenv("PATH", str(program.parent))
    with pytest.raises(OptionError, match=text):
        convert(photographs, "out", "--restart-markers")
    assert not (photographs / "out").exists()


@pytest.fixture
def photographs(tmp_path):
    for number in range(8):
        path = tmp_path / "raw" / "train" / "cat" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(picture(200 + number, 300), quality=90))
    return tmp_path


def convert(place, name, *options):
    command = [f"--raw-data-dir={place / 'raw'}", f"--output={place / name}", *options]
    return image_folder_to_gcs.main(command)


@needs_jpegtran
def test_a_conversion_with_markers_trains_on_the_same_pixels(photographs):
    batches = []
    for name, options in (("as_is", ()), ("marked", ("--restart-markers",))):
        assert convert(photographs, name, *options) == 0
        op = DecodeRandomResizedCrop(size=(64, 64))
        data = train_dataset(str(photographs / name), "train", global_batch=8, ops=[op])
        batches.append(next(iter(data.batches()))["image"])
        images = [each["image/encoded"] for each in open_dataset(photographs / name).examples()]
        assert all((b"\xff\xdd\0\4" in image) == bool(options) for image in images)
    np.testing.assert_array_equal(*batches)


@pytest.mark.parametrize("main", [image_folder_to_gcs.main, imagenet_to_gcs.main])
def test_without_jpegtran_a_conversion_says_what_to_install(main, photographs, monkeypatch):
    monkeypatch.setenv("PATH", "")
    command = [f"--raw-data-dir={photographs}/raw", f"--output={photographs}/out"]
    with pytest.raises(OptionError, match="libjpeg-turbo-progs"):
        main([*command, "--restart-markers"])
    assert not (photographs / "out").exists()
