"""What is said of an image's bytes, and repaired in them, at each level of verification."""

import io

import numpy as np
import pytest
from PIL import Image

from beam_jobs.converter import Reject
from pipeline.raw.jpeg import VERIFY_LEVELS, to_rgb_jpeg


def encode(mode="RGB", form="JPEG", size=(16, 12), **options):
    bands = len(Image.new(mode, (1, 1)).getbands())
    pixels = np.random.default_rng(0).integers(0, 255, (size[1], size[0], bands), np.uint8).squeeze()
    buffer = io.BytesIO()
    Image.fromarray(pixels, mode).save(buffer, form, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("verify", VERIFY_LEVELS)
@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"exif": b"Exif\0\0" + b"x" * 500}, {"mode": "L"}], ids=str
)
def test_a_good_jpeg_passes_unchanged_with_its_size(options, verify):
    data = encode(**options)
    image = to_rgb_jpeg(data, verify)
    assert (image.data, image.height, image.width, image.fixups) == (data, 12, 16, ())


@pytest.mark.parametrize("verify", VERIFY_LEVELS)
@pytest.mark.parametrize(("mode", "form", "fixup"), [("CMYK", "JPEG", "cmyk_to_rgb"), ("RGBA", "PNG", "png_to_jpeg")])
def test_cmyk_and_png_become_rgb_jpegs_whatever_they_are_called(mode, form, fixup, verify):
    image = to_rgb_jpeg(encode(mode, form), verify)
    assert image.fixups == (fixup,)
    decoded = Image.open(io.BytesIO(image.data))
    assert (decoded.format, decoded.mode, decoded.size) == ("JPEG", "RGB", (16, 12))
    assert (image.height, image.width) == (12, 16)


TRUNCATED = encode(size=(64, 64))[:-200]
DAMAGED = TRUNCATED + b"\xff\xd9"


@pytest.mark.parametrize(
    ("verify", "data", "found"),
    [
        ("header", TRUNCATED, False), ("end", TRUNCATED, True), ("decode", TRUNCATED, True),
        ("header", DAMAGED, False), ("end", DAMAGED, False), ("decode", DAMAGED, True),
    ],
)  # fmt: skip
def test_each_verification_level_finds_the_damage_it_promises(verify, data, found):
    if found:
        with pytest.raises(Reject, match="truncated or damaged JPEG"):
            to_rgb_jpeg(data, verify)
    else:
        assert to_rgb_jpeg(data, verify).data == data


def test_bytes_after_the_end_mark_are_no_damage():
    data = encode() + b"camera maker's own bytes"
    assert to_rgb_jpeg(data, "end").data == data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GIF89a...", "not a JPEG or PNG: begins with 47 49 46 38"),
        (b"", "not a JPEG or PNG: begins with nothing"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "truncated JPEG: no frame header in its 10 bytes"),
        (b"\xff\xd8", "truncated JPEG"),
        (encode(form="PNG")[:60], "truncated or damaged image"),
        (encode(form="PNG")[:8] + bytes(30), "^truncated or damaged image: its header cannot be read$"),
        (encode("CMYK", size=(64, 64))[:-900], "truncated or damaged JPEG"),
        (b"\xff\xd8\xff\xc0\x00\x11\x08\xff\xff\xff\xff\x03" + b"\0" * 20, r"65535x65535 pixels; allowed are 1"),
        (b"\xff\xd8\xff\xc0\x00\x11\x08\x00\x00\x00\x05\x03" + b"\0" * 20, "5x0 pixels"),
    ],
    ids=range(9),
)
def test_what_is_no_usable_image_is_rejected_with_the_reason(data, message):
    with pytest.raises(Reject, match=message):
        to_rgb_jpeg(data, "end")


@pytest.mark.parametrize("cut", range(0, 600, 7))
def test_a_file_cut_anywhere_is_rejected_and_never_crashes(cut):
    data = encode(size=(16, 16))
    with pytest.raises(Reject):
        to_rgb_jpeg(data[: min(cut, len(data) - 3)], "end")
