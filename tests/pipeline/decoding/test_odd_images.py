"""Odd and damaged images are decoded, or one error that names record, problem and remedy."""

import re
import struct

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from odd_images import KINDS, verdicts
from op_rng import rng_of
from pictures import FORMATS, encoded, picture
from PIL import Image
from sweep import SWEEP

from pipeline.datasets import eval_dataset
from pipeline.decoding.encoded_images import jpeg_header
from pipeline.errors import Reject, SchemaError
from pipeline.ops import DecodeResize
from pipeline.raw.jpeg import to_rgb_jpeg

SOME = KINDS if SWEEP else {name: kind for name, kind in KINDS.items() if not kind.large}
# fill bytes, a stuffed zero, markers without a length, no marker, lengths that are too small
ODD_SEGMENTS = [b"\xff", b"\xff\0", b"\xff\1", b"\xff\xd3", b"ab", b"\xff\xe5\0\1", b"\xff\xfe\0\2"]
OF_EACH = None if SWEEP else 1


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Kind -> the errors of its first images, None where one was decoded."""
    images = [list(kind.images(OF_EACH)) for kind in SOME.values()]
    op = DecodeResize(size=(8, 8))
    reasons = iter(
        verdicts(
            [image for each in images for image in each],
            tmp_path_factory.mktemp("odd") / "data",
            op,
        )
    )
    return {name: [next(reasons) for _ in each] for name, each in zip(SOME, images, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_an_odd_image_is_decoded_or_an_error_that_says_what_it_is_and_what_to_do(found, name):
    kind = KINDS[name]
    for reason in found[name]:
        if kind.error is None:
            assert reason is None
        elif reason is not None or not kind.either:
            assert re.search(
                rf"record \d+ \(record \d+ of .*, split 'train'\): {kind.error}", reason
            )


@pytest.mark.parametrize(
    "name", ["interlaced PNG", "16-bit RGB PNG", "16-bit RGBA PNG, interlaced"]
)
def test_a_png_of_any_depth_and_order_has_its_pixels(name):
    data = next(KINDS[name].images())
    pixels = DecodeResize("image", size=(80, 120))({"image": data}, rng_of())["image"]
    np.testing.assert_array_equal(pixels, picture())


def test_a_frame_hidden_behind_a_stuffed_zero_is_the_one_that_counts():
    """libjpeg finds it. A reader that skips what seems to be a segment would see a small image, and
    decode 2.7 GB."""
    small = encoded(picture(8, 8))
    frame = small.index(b"\xff\xc0")
    hidden = bytearray(small[2:-2])
    hidden[frame + 3 : frame + 7] = struct.pack(">HH", 30_000, 30_000)
    segment = b"\xff\x00" + struct.pack(">H", len(hidden) + 2) + hidden
    data = small[:2] + segment + small[frame:]
    assert simplejpeg.decode_jpeg_header(data, strict=False)[:2] == (30_000, 30_000)
    assert jpeg_header(data).size == (30_000, 30_000)
    with pytest.raises(Reject, match="30000x30000 pixels; allowed are 1 to"):
        to_rgb_jpeg(data, "decode")


@given(
    st.sampled_from(["RGB", "L", "CMYK"]),
    st.dictionaries(st.integers(2, 220), st.integers(0, 255), max_size=3),
    st.lists(st.sampled_from(ODD_SEGMENTS), max_size=3),
)
def test_the_size_of_a_jpeg_with_any_header_is_that_of_libjpeg(mode, changes, odd):
    comment = b"\xff\xc0 is no frame"
    data = bytearray(encoded(picture(mode=mode), comment=comment, progressive=mode == "L"))
    table = data.index(b"\xff\xc4")  # of Huffman codes; it may also stand before the frame
    data[2:2] = data[table : table + 2 + int.from_bytes(data[table + 2 : table + 4])]
    for at, byte in changes.items():
        data[at] = byte
    data[2:2] = b"".join(odd)
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(bytes(data), strict=False)
    except (ValueError, KeyError):
        return
    header = jpeg_header(bytes(data))
    assert header.size == (height, width)
    assert header.plain == (colours not in ("CMYK", "YCCK"))


@pytest.mark.parametrize("name", ["JPEG with bytes before its end", "JPEG of an unknown version"])
@pytest.mark.parametrize("channels", [1, 3])
def test_what_libjpeg_only_warns_of_does_not_change_the_pixels(name, channels):
    op = DecodeResize("image", size=(80, 120), channels=channels)
    pixels = op({"image": next(KINDS[name].images())}, rng_of())["image"]
    intact = op({"image": encoded(picture())}, rng_of())["image"]
    assert abs(pixels.astype(int) - intact).max() <= (2 if channels == 1 else 0)


@pytest.mark.parametrize("name", ["palette PNG", "lossy WebP", "CMYK JPEG"])
def test_max_pixels_is_the_only_limit_of_the_size_of_an_image(monkeypatch, name):
    # Pillow warns of more, and refuses twice as many
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert DecodeResize("image", size=(8, 8))({"image": FORMATS[name][0]}, rng_of())["image"].any()


def test_nothing_is_printed_about_an_image_that_cannot_be_decoded(capfd, write_dataset, tmp_path):
    images = [
        next(KINDS[name].images())
        for name in ("JPEG, truncated", "PNG, truncated", "a GIF", "animated WebP")
    ]
    for number, image in enumerate(images):
        record = {"image/encoded": image, "image/class/label": 1, "image/weight": [0, 0]}
        directory = write_dataset(tmp_path / str(number), {"train": [[record]]})
        source = eval_dataset(
            directory, "train", global_batch=1, ops=[DecodeResize(size=(8, 8))], keys=["image"]
        )
        with pytest.raises(SchemaError, match="train-00000-of-00001, record 0"):
            next(iter(source.batches()))
    assert capfd.readouterr().err == ""
