"""What iPhones write: the same upright pixels wherever images are read, or one error that says why not."""

import io
import sys

import numpy as np
import pytest
from op_rng import rng_of
from pictures import heic, picture
from PIL import Image
from pillow_heif import HeifImageFile

from pipeline.errors import InfeedError, Reject, SchemaError
from pipeline.ops import DecodeRandomResizedCrop, DecodeResize
from pipeline.pages.figures import thumbnail
from pipeline.raw.image_files import ToJpeg
from pipeline.raw.jpeg import Jpeg
from pipeline.sources.record_checks import image_problem

UPRIGHT = DecodeResize("image", size=(120, 80))
SIDEWAYS = heic(picture(), orientation=6)
READERS = {
    "a conversion": ToJpeg(),
    "a column that keeps images": ToJpeg().stored,
    "training": lambda data: UPRIGHT({"image": data}, rng_of()),
    "verify --decode": image_problem,
    "a page": lambda data: thumbnail(data, ""),
}


def test_pictures_are_those_of_pillow_upright_and_without_an_orientation_to_apply_again():
    own = HeifImageFile(io.BytesIO(SIDEWAYS))
    pixels = np.asarray(own)
    assert pixels.shape == (120, 80, 3)
    np.testing.assert_array_equal(READERS["training"](SIDEWAYS)["image"], pixels)
    for apply_orientation in (False, True):
        image = ToJpeg(apply_orientation=apply_orientation)(SIDEWAYS)
        assert image == Jpeg.of(own, 95, ("heif_to_jpeg",))
    assert ToJpeg().stored(SIDEWAYS)[0] == image.data
    small = thumbnail(SIDEWAYS, "")
    assert small
    assert small.height > small.width
    crop = DecodeRandomResizedCrop("image", size=(8, 8))({"image": SIDEWAYS}, rng_of())["image"]
    assert crop.std() > 5


def test_of_several_pictures_the_main_one_is_taken_with_a_note():
    several = heic(Image.new("RGB", (64, 64)), picture())
    image = ToJpeg()(several)
    assert image.data == ToJpeg()(heic(picture())).data
    assert image.fixups == ("heif_to_jpeg", "first_frame_only")
    assert image.notes == ("only the main picture of a HEIC file of several was taken",)


def test_transparent_pixels_become_white_in_a_conversion():
    image = ToJpeg()(heic(Image.new("RGBA", (64, 64), (0, 0, 0, 0))))
    assert image.fixups == ("heif_to_jpeg", "alpha_on_white")
    assert np.asarray(Image.open(io.BytesIO(image.data))).min() > 250


def test_a_damaged_file_is_decoded_or_refused_and_never_crashes():
    rng = np.random.default_rng(0)
    refused = set()
    for at in rng.choice(len(SIDEWAYS), 60, replace=False).tolist():
        flipped = SIDEWAYS[:at] + bytes([SIDEWAYS[at] ^ 255]) + SIDEWAYS[at + 1 :]
        for data in (flipped, SIDEWAYS[:at]):
            for name in ("a conversion", "training"):
                try:
                    READERS[name](data)
                except (Reject, SchemaError) as error:
                    refused.add(type(error))
            assert isinstance(image_problem(data), str)
    assert refused == {Reject, SchemaError}
    assert image_problem(SIDEWAYS[:-100]).startswith("truncated or damaged image: ")


@pytest.mark.parametrize("reader", READERS)
def test_without_pillow_heif_every_reader_says_how_to_install_it(monkeypatch, reader):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(InfeedError, match=r"^HEIC images need pillow-heif .*\[heic\]'\.$"):
        READERS[reader](SIDEWAYS)
