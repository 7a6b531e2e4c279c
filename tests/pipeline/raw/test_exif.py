"""Orientation from a JPEG's bytes, against what Pillow reads."""

import io
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pipeline.raw.image_files import ORIENTATION, orientation


def jpeg(exif=b"", **options):
    buffer = io.BytesIO()
    Image.new("L", (8, 8)).save(buffer, "JPEG", exif=exif, **options)
    return buffer.getvalue()


def exif_of(value, order="<", kind=3, extra=5):
    """A directory as a camera writes it: other entries before and after."""
    tags = sorted([0x010F + i for i in range(extra)] + [ORIENTATION])
    entries = [struct.pack(f"{order}HHIHH", tag, kind, 1, value if tag == ORIENTATION else 99, 0) for tag in tags]
    head = b"II*\0" if order == "<" else b"MM\0*"
    return b"Exif\0\0" + head + struct.pack(f"{order}IH", 8, len(entries)) + b"".join(entries) + bytes(4)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("value", range(10))
def test_the_orientation_is_read_in_either_byte_order(order, value):
    data = jpeg(exif_of(value, order), comment=b"before or after")
    assert orientation(data) == (value if 1 <= value <= 8 else 1)
    assert Image.open(io.BytesIO(data)).getexif().get(ORIENTATION) == value


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xd8", jpeg(), jpeg(b"Exif\0\0damaged"), jpeg(exif_of(6, kind=4)), b"GIF89a"]
)
def test_an_image_without_a_valid_orientation_is_upright(data):
    assert orientation(data) == 1


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80), st.integers(0, 100), st.integers(0, 200))
def test_arbitrary_bytes_always_yield_an_orientation(noise, at, cut):
    data = bytearray(jpeg(exif_of(6)))
    data[at : at + len(noise)] = noise
    assert 1 <= orientation(bytes(data[:cut])) <= 8
