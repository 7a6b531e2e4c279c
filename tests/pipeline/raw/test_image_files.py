"""What becomes of an image file: which stay as they are, what the others turn into, and what is refused."""

import contextlib
import io
import random
import struct
import warnings
import zlib

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, features

from beam_jobs.converter import Reject
from pipeline.raw.image_files import ORIENTATION, ToJpeg, orientation
from pipeline.raw.jpeg import VERIFY_LEVELS, to_rgb_jpeg


def encode(pixels, form, mode=None, **options):
    buffer = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(np.asarray(pixels))
    (image.convert(mode) if mode else image).save(buffer, form, **options)
    return buffer.getvalue()


def decode(data):
    image = Image.open(io.BytesIO(data), formats=("JPEG",))
    image.load()
    return image


SMOOTH = Image.fromarray(np.add.outer(np.arange(60), 2 * np.arange(80)).astype(np.uint8)).convert(
    "RGB"
)
LEFT_RED = Image.new("RGB", (64, 32), "blue")
LEFT_RED.paste((255, 0, 0), (0, 0, 32, 32))
EVERYTHING = ToJpeg("decode", max_side=64, apply_orientation=True)


@pytest.mark.parametrize("verify", VERIFY_LEVELS)
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"exif": b"Exif\0\0damaged"}], ids=str
)
def test_a_suitable_jpeg_is_kept_byte_for_byte(mode, options, verify):
    data = encode(SMOOTH, "JPEG", mode, **options)
    image = ToJpeg(verify, max_side=80, apply_orientation=True)(data)
    assert (image.data, image.height, image.width, image.fixups) == (data, 60, 80, ())


@pytest.mark.parametrize(
    ("form", "source", "mode", "options"),
    [
        ("PNG", "RGB", "RGB", {}),
        ("PNG", "RGBA", "RGB", {}),
        ("PNG", "L", "L", {}),
        ("PNG", "LA", "L", {}),
        ("PNG", "P", "RGB", {}),
        ("PNG", "1", "L", {}),
        ("WEBP", "RGB", "RGB", {}),
        ("WEBP", "RGBA", "RGB", {"lossless": True}),
        ("GIF", "P", "RGB", {}),
        ("GIF", "P", "RGB", {"interlace": False}),
        ("BMP", "RGB", "RGB", {}),
        ("BMP", "P", "RGB", {}),
        ("BMP", "1", "L", {}),
        ("TIFF", "RGB", "RGB", {}),
        ("TIFF", "L", "L", {"compression": "tiff_lzw"}),
        ("TIFF", "CMYK", "RGB", {}),
        ("TIFF", "RGB", "RGB", {"big_tiff": True}),
        ("AVIF", "RGB", "RGB", {}),
        ("AVIF", "RGBA", "RGB", {}),
    ],
)
def test_other_formats_become_jpegs_in_grey_or_rgb_that_look_the_same(form, source, mode, options):
    data = encode(SMOOTH, form, source, **options)
    image = ToJpeg()(data)
    decoded = decode(image.data)
    assert (decoded.mode, decoded.size, image.height, image.width) == (mode, (80, 60), 60, 80)
    assert image.fixups == (f"{form.lower()}_to_jpeg",)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert(mode), int)
    assert np.abs(np.asarray(decoded, int) - expected).mean() < (3 if source not in "1P" else 12)


@pytest.mark.parametrize("cut", [None, -1, 5000])
def test_an_animated_gif_becomes_its_first_frame_with_a_note(cut):
    first = encode(SMOOTH, "GIF", "P")
    others = [SMOOTH.rotate(degrees).convert("P") for degrees in (90, 180)]
    animated = encode(SMOOTH, "GIF", "P", save_all=True, append_images=others)
    image = ToJpeg()(animated[:cut])
    assert image.fixups == ("gif_to_jpeg", "first_frame_only")
    assert image.data == ToJpeg()(first).data
    assert image.notes == ("only the first frame of an animated GIF was taken",)
    assert not ToJpeg()(first).notes


def test_a_tiff_of_several_pages_becomes_its_first_page_with_a_note():
    pages = encode(SMOOTH, "TIFF", save_all=True, append_images=[LEFT_RED, LEFT_RED])
    image = ToJpeg()(pages)
    assert image.data == ToJpeg()(encode(SMOOTH, "TIFF")).data
    assert image.fixups == ("tiff_to_jpeg", "first_frame_only")
    assert image.notes == ("only the first page of a TIFF of several was taken",)


def test_an_avif_is_one_clear_error_where_pillow_cannot_read_it(monkeypatch):
    monkeypatch.setattr(features, "check", lambda name: name != "avif")
    with pytest.raises(Reject, match=r"an AVIF file, which this Pillow cannot read; Pillow 11\.3"):
        ToJpeg()(encode(SMOOTH, "AVIF"))


@pytest.mark.parametrize("form", ["png", "tiff"])
@pytest.mark.parametrize("channels", [1, 3])
def test_sixteen_bits_are_cut_to_eight_with_a_note(form, channels):
    pixels = np.linspace(0, 65535, 80 * 60).reshape(60, 80, 1).astype(np.uint16)
    pixels = np.repeat(pixels, channels, axis=2)
    image = ToJpeg()(cv2.imencode(f".{form}", pixels)[1].tobytes())
    decoded = np.asarray(decode(image.data), int).reshape(pixels.shape)
    assert np.abs(decoded - (pixels >> 8)).max() <= 4
    assert image.notes == (
        "values of more than 8 bits were cut to 8, because a JPEG holds no more",
    )
    assert not ToJpeg()(cv2.imencode(f".{form}", pixels.astype(np.uint8))[1].tobytes()).notes


@pytest.mark.parametrize("form", ["PNG", "WEBP", "GIF", "TIFF", "AVIF"])
def test_transparent_pixels_become_white(form):
    pixels = np.zeros((32, 32, 4), np.uint8)
    pixels[:, :16, 3] = 255  # black; beside it nothing, over black
    image = ToJpeg()(encode(pixels, form))
    decoded = np.asarray(decode(image.data), int)
    assert decoded[:, :12].max() < 20
    assert decoded[:, 20:].min() > 235
    assert image.fixups == (f"{form.lower()}_to_jpeg", "alpha_on_white")


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "AVIF"])
def test_larger_images_are_scaled_to_the_longer_side(form):
    image = ToJpeg(max_side=40)(encode(SMOOTH, form))
    decoded = decode(image.data)
    assert decoded.size == (image.width, image.height) == (40, 30)
    assert image.fixups[-1] == "scaled_down"
    expected = np.asarray(SMOOTH.resize((40, 30), Image.Resampling.LANCZOS), int)
    assert np.abs(np.asarray(decoded, int) - expected).mean() < 3


def test_an_image_one_pixel_high_keeps_that_pixel_when_scaled():
    image = ToJpeg(max_side=10)(encode(Image.new("L", (400, 1)), "PNG"))
    assert (image.width, image.height) == (10, 1)


WHERE_LEFT_GOES = {
    1: "left",
    2: "right",
    3: "right",
    4: "left",
    5: "top",
    6: "top",
    7: "bottom",
    8: "bottom",
}


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", WHERE_LEFT_GOES)
def test_orientation_is_applied_only_when_asked_for(orientation, form):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(LEFT_RED, form, exif=exif)
    left = ToJpeg()(data)
    assert "turned_upright" not in left.fixups
    assert [bool("--apply-orientation" in note) for note in left.notes] == [True] * (
        orientation != 1
    )
    assert form != "JPEG" or left.data == data
    image = ToJpeg(apply_orientation=True)(data)
    assert not image.notes
    assert ("turned_upright" in image.fixups) == (orientation != 1)
    pixels = np.asarray(decode(image.data), int)
    half = {
        "left": pixels[:, :16],
        "right": pixels[:, -16:],
        "top": pixels[:16],
        "bottom": pixels[-16:],
    }
    assert half[WHERE_LEFT_GOES[orientation]][..., 0].min() > 200
    assert (
        pixels.shape[:2]
        == (image.height, image.width)
        == ((32, 64) if orientation < 5 else (64, 32))
    )


def test_the_quality_option_sets_the_size_of_encoded_jpegs():
    sizes = [len(ToJpeg(quality=quality)(encode(SMOOTH, "PNG")).data) for quality in (50, 95, 100)]
    assert sizes == sorted(set(sizes))


def test_a_cmyk_jpeg_becomes_rgb_and_keeps_its_orientation():
    exif = Image.Exif()
    exif[0x0112] = 6
    image = ToJpeg(apply_orientation=True)(encode(LEFT_RED, "JPEG", "CMYK", exif=exif))
    assert image.fixups == ("cmyk_to_rgb", "turned_upright")
    assert (image.width, image.height) == (32, 64)


def png_of(width, height):
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + header
        + struct.pack(">I", zlib.crc32(header))
        + b"\0" * 20
    )


def webp_of(width, height):
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF\x30\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + size + b"\0" * 20


def bmp_of(width, height):
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + header


def animation(form):
    return encode(SMOOTH, form, save_all=True, append_images=[LEFT_RED.resize(SMOOTH.size)])


REFUSED = [
    (b"BM......", "truncated or damaged image: its header cannot be read"),
    (b"", "not a JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF or HEIC file"),
    (b"GIF89a.", "truncated GIF: no header in its 7 bytes"),
    (b"GIF89a" + b"\xff" * 4 + bytes(30), "65535x65535 pixels; allowed are 1 to 100,000,000"),
    (encode(SMOOTH, "GIF")[:900], "truncated or damaged image"),
    (encode(SMOOTH, "JPEG")[:-40], "truncated or damaged JPEG"),
    (encode(SMOOTH, "PNG")[:100], "truncated or damaged image"),
    (encode(SMOOTH, "PNG")[:12], "truncated PNG: no header in its 12 bytes"),
    (encode(SMOOTH, "WEBP")[:100], "truncated or damaged image"),
    (encode(SMOOTH, "WEBP")[:20], "truncated WebP: no header in its 20 bytes"),
    (animation("PNG"), "an animation, not one image"),
    (animation("WEBP"), "an animation, not one image"),
    (animation("AVIF"), "an animation, not one image"),
    (encode(SMOOTH, "AVIF")[:-10], "truncated or damaged image"),
    (encode(SMOOTH, "TIFF")[:500], "truncated or damaged image"),
    (encode(SMOOTH, "BMP")[:500], "truncated or damaged image"),
    (bmp_of(10_000, 10_001), "10000x10001 pixels; allowed are 1 to 100,000,000"),
    (bmp_of(60_000, 60_000), r"image: Image size \(3600000000 pixels\) exceeds limit"),
    (encode(np.zeros((4, 4), np.float32), "TIFF"), "32-bit values, which a JPEG cannot hold"),
    (png_of(60_000, 60_000), "60000x60000 pixels; allowed are 1 to 100,000,000"),
    (webp_of(16_000, 16_000), "16000x16000 pixels; allowed are 1 to 100,000,000"),
    (
        encode(Image.new("1", (70_000, 1)), "PNG"),
        "70000x1 pixels; a JPEG has at most 65,500 per side",
    ),
]


@pytest.mark.filterwarnings("ignore:Image size")  # Pillow's, below its own limit
@pytest.mark.parametrize(("data", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_become_a_jpeg_is_rejected_with_the_reason(data, message):
    with pytest.raises(Reject, match=message):
        ToJpeg()(data)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_hundreds_of_mutated_files_are_taken_or_rejected_and_never_crash(form):
    data, rng, outcomes = encode(SMOOTH.resize((24, 16)), form), random.Random(0), set()
    for case in range(400):
        mutated = bytearray(data[: rng.randrange(len(data))] if case % 3 == 0 else data)
        for _ in range(rng.randrange(1, 6) if mutated else 0):
            mutated[rng.randrange(min(len(mutated), 60 if case % 3 == 1 else len(mutated)))] = (
                rng.randrange(256)
            )
        try:
            with warnings.catch_warnings(action="ignore"):  # Pillow's, on damaged EXIF
                image = EVERYTHING(bytes(mutated))
            outcomes.add(decode(image.data).size == (image.width, image.height))
        except Reject:
            outcomes.add("rejected")
        with contextlib.suppress(Reject), warnings.catch_warnings(action="ignore"):
            ToJpeg().stored(bytes(mutated))
    assert outcomes == {True, "rejected"}


def upright(exif=b"", **options):
    return encode(Image.new("L", (8, 8)), "JPEG", exif=exif, **options)


def exif_of(value, order="<", kind=3, extra=5):
    """A directory as a camera writes it: other entries before and after."""
    tags = sorted([0x010F + i for i in range(extra)] + [ORIENTATION])
    entries = [
        struct.pack(f"{order}HHIHH", tag, kind, 1, value if tag == ORIENTATION else 99, 0)
        for tag in tags
    ]
    head = b"II*\0" if order == "<" else b"MM\0*"
    return (
        b"Exif\0\0"
        + head
        + struct.pack(f"{order}IH", 8, len(entries))
        + b"".join(entries)
        + bytes(4)
    )


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("value", range(10))
def test_the_orientation_is_read_in_either_byte_order(order, value):
    data = upright(exif_of(value, order), comment=b"before or after")
    assert orientation(data) == (value if 1 <= value <= 8 else 1)
    assert Image.open(io.BytesIO(data)).getexif().get(ORIENTATION) == value


def test_bytes_that_fill_the_space_before_a_segment_do_not_hide_the_orientation():
    data = upright(exif_of(6)).replace(b"\xff\xe1", b"\xff\xff\xff\xe1", 1)
    assert orientation(data) == Image.open(io.BytesIO(data)).getexif()[ORIENTATION] == 6


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8",
        upright(exif_of(6))[1:],
        upright(),
        upright(b"Exif\0\0damaged"),
        upright(exif_of(6, kind=4)),
        b"GIF89a",
    ],
)
def test_an_image_without_a_valid_orientation_is_upright(data):
    assert orientation(data) == 1


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=80), st.integers(0, 100), st.integers(0, 200))
def test_arbitrary_bytes_always_yield_an_orientation(noise, at, cut):
    data = bytearray(upright(exif_of(6)))
    data[at : at + len(noise)] = noise
    assert 1 <= orientation(bytes(data[:cut])) <= 8


def noise(mode="RGB", form="JPEG", size=(16, 12), **options):
    bands = len(Image.new(mode, (1, 1)).getbands())
    pixels = (
        np.random.default_rng(0).integers(0, 255, (size[1], size[0], bands), np.uint8).squeeze()
    )
    return encode(Image.fromarray(pixels, mode), form, **options)


@pytest.mark.parametrize("verify", VERIFY_LEVELS)
@pytest.mark.parametrize(
    ("mode", "form", "fixups"),
    [("CMYK", "JPEG", ("cmyk_to_rgb",)), ("RGBA", "PNG", ("png_to_jpeg",)), ("L", "JPEG", ())],
)
def test_cmyk_and_png_become_rgb_jpegs_and_other_jpegs_stay(mode, form, fixups, verify):
    data = noise(mode, form)
    image = to_rgb_jpeg(data, verify)
    assert (image.fixups, image.height, image.width) == (fixups, 12, 16)
    assert decode(image.data).mode == ("RGB" if fixups else "L")
    assert fixups or image.data == data


TRUNCATED = noise(size=(64, 64))[:-200]
DAMAGED = TRUNCATED + b"\xff\xd9"


@pytest.mark.parametrize(
    ("verify", "data", "found"),
    [
        ("header", TRUNCATED, False), ("end", TRUNCATED, True), ("decode", TRUNCATED, True),
        ("header", DAMAGED, False), ("end", DAMAGED, False), ("decode", DAMAGED, True),
        ("end", noise() + b"camera maker's own bytes", False),
    ],
)  # fmt: skip
def test_each_verification_level_finds_the_damage_it_promises(verify, data, found):
    if found:
        with pytest.raises(Reject, match="truncated or damaged JPEG"):
            to_rgb_jpeg(data, verify)
    else:
        assert to_rgb_jpeg(data, verify).data == data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GIF89a...", "not a JPEG or PNG file"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "truncated JPEG: no frame header in its 10 bytes"),
        (
            noise(form="PNG")[:8] + bytes(30),
            "^truncated or damaged image: its header cannot be read$",
        ),
        (noise("CMYK", size=(64, 64))[:-900], "truncated or damaged JPEG"),
        (
            b"\xff\xd8\xff\xc0\x00\x11\x08\xff\xff\xff\xff\x03" + b"\0" * 20,
            "65535x65535 pixels; allowed are 1",
        ),
        (b"\xff\xd8\xff\xc0\x00\x11\x08\x00\x00\x00\x05\x03" + b"\0" * 20, "5x0 pixels"),
        (b"\xff\xd8\xff\xc0\x00\x11\x08\x00\x05\x00\x00\x03" + b"\0" * 20, "0x5 pixels"),
    ],
    ids=range(7),
)
def test_what_is_no_usable_image_is_rejected_with_the_reason(data, message):
    with pytest.raises(Reject, match=message):
        to_rgb_jpeg(data, "end")


def test_a_file_cut_anywhere_is_rejected_and_never_crashes():
    data = noise(size=(16, 16))
    for cut in range(0, len(data) - 3, 7):
        with pytest.raises(Reject):
            to_rgb_jpeg(data[:cut], "end")
