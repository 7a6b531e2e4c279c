"""One contract for every op: a new op is a row in OPS."""

import io
import pickle
import re
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from odd_images import KINDS
from op_rng import rng_of
from pictures import encoded
from PIL import Image
from sweep import SWEEP

from pipeline import ops
from pipeline.datasets import eval_dataset
from pipeline.decoding.rng import Rng
from pipeline.errors import OptionError, SchemaError
from pipeline.ops import Features, Specs
from pipeline.spec import BYTES, ArraySpec

BYTES_VALUE = ArraySpec((), BYTES)
IMAGE = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
SPECS = {
    "encoded": BYTES_VALUE,
    "png": BYTES_VALUE,
    "indices": BYTES_VALUE,
    "depths": BYTES_VALUE,
    "image": ArraySpec(IMAGE.shape, IMAGE.dtype),
    "grey": ArraySpec((5, 4, 1), IMAGE.dtype),
    "label": ArraySpec((), np.dtype("i8")),
    "labels": ArraySpec((None,), np.dtype("i8")),
}
WRONG = ArraySpec((7, 7), np.dtype("f4"))
OPS = [
    ops.DecodeJpeg("encoded", shape=(6, 8, 1)),
    ops.DecodeJpeg("encoded", into="photo", shape=(6, 8, 3)),
    ops.DecodePng("png", shape=(6, 8, 1)),
    ops.DecodePng("png", into="photo", shape=(6, 8, 3)),
    ops.DecodeStored("indices", shape=(6, 8, 1)),
    ops.DecodeStored("depths", into="depth", shape=(6, 8, 1), dtype="uint16"),
    ops.DecodeStored("png", shape=(6, 8, 3)),
    ops.DecodeRandomResizedCrop("encoded", size=(4, 5)),
    ops.DecodeRandomResizedCrop(
        "png", into="photo", size=(4, 5), channels=1, flip=False, method="bicubic"
    ),
    ops.DecodeCentralCrop("encoded", size=(4, 4)),
    ops.DecodeCentralCrop("encoded", size=(4, 4), resize_short=5, antialias=True),
    ops.DecodeResize("encoded", size=(4, 5), method="bicubic"),
    ops.DecodeResize("png", size=(5, 5), fit="pad"),
    ops.RandomShift("image", pixels=2),
    ops.RandomShift("image", pixels=2, fill="edge"),
    ops.RandomShift("image", pixels=0),
    ops.RandomCrop("image"),
    ops.RandomCrop("image", size=(3, 4), padding=1, fill="edge"),
    ops.CentralCrop("image", size=(2, 3)),
    ops.RandomFlip("image"),
    ops.Resize("image", size=(7, 3)),
    ops.Resize("grey", size=(3, 3), method="bicubic", antialias=True),
    ops.GreyToRgb("grey"),
    ops.TrivialAugmentWide("image"),
    ops.TrivialAugmentWide("grey"),
    ops.Keep(["image", "label"]),
    ops.Drop(["label"]),
    ops.Rename({"label": "class", "image": "label"}),
    ops.Cast("label", "uint8"),
    ops.Cast("image", np.float32),
    ops.OneHot("label", 4),
    ops.MultiHot("label", 4),
    ops.MultiHot("labels", 3, base=1, into="hot", ignore=-1),
    ops.RequireLabel("label", "Why."),
]
SEEDS = np.random.default_rng(0).integers(-(2**31), 2**31, (20 if SWEEP else 2, 2)).astype(np.int32)
OF_ANY_KIND = (ops.Cast, ops.Drop, ops.Keep, ops.Rename)
SET_NOTHING = (ops.Drop, ops.Keep, ops.RequireLabel)
contract = pytest.mark.parametrize("op", OPS, ids=repr)
contract_of_outputs = pytest.mark.parametrize(
    "op", [op for op in OPS if not isinstance(op, SET_NOTHING)], ids=repr
)


@pytest.fixture(scope="module")
def example() -> dict:
    picture = Image.fromarray(np.random.default_rng(1).integers(0, 255, (6, 8, 3), np.uint8))
    return {
        "encoded": encoded(picture, quality=95),
        "png": encoded(picture, "PNG"),
        "indices": encoded(picture.convert("P"), "PNG"),
        "depths": encoded(Image.fromarray(np.arange(48, dtype=np.uint16).reshape(6, 8)), "PNG"),
        "image": IMAGE,
        "grey": IMAGE[..., :1],
        "label": np.int64(3),
        "labels": np.array([3, 1, -1]),
    }


def copied(features: dict, writeable: bool = True) -> dict:
    copies = {
        key: value.copy() if isinstance(value, np.ndarray) else value
        for key, value in features.items()
    }
    for value in copies.values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = writeable
    return copies


@contract_of_outputs
def test_an_op_sets_what_its_spec_states_the_same_each_time_and_leaves_its_input_as_it_is(
    op, example
):
    specs = {key: (spec.shape, spec.dtype) for key, spec in op.output_spec(SPECS).items()}
    for seed in SEEDS:
        given = copied(example)
        made = op(given, rng_of(seed))
        assert {key: (value.shape, value.dtype) for key, value in made.items()} == specs
        again = op(copied(example, writeable=False), rng_of(seed))
        for key, value in made.items():
            np.testing.assert_array_equal(value, again[key])
        assert given.keys() == example.keys()
        for key, value in given.items():
            np.testing.assert_array_equal(value, example[key])


@contract
def test_an_op_prints_compares_hashes_and_pickles(op):
    assert pickle.loads(pickle.dumps(op)) == op
    assert hash(op) == hash(pickle.loads(pickle.dumps(op)))
    assert repr(op).startswith(type(op).__name__)


@contract
def test_an_op_names_a_missing_feature(op):
    (key, *_) = op.keys if isinstance(op, ops.Drop) else op.reads
    with pytest.raises(
        OptionError,
        match=rf"reads '{key}', which is neither in the records nor set by an earlier op",
    ):
        op.output_spec({"other": SPECS["label"]})


@pytest.mark.parametrize("op", [op for op in OPS if not isinstance(op, OF_ANY_KIND)], ids=repr)
def test_an_op_refuses_a_feature_of_the_wrong_kind(op):
    with pytest.raises(SchemaError, match=r"is float32 \(7, 7\); it must be"):
        op.output_spec(dict.fromkeys(op.reads, WRONG))


def test_jpegs_decode_close_to_pillow_without_a_bias():
    # Smooth, as photos are: where chroma is subsampled, decoders may differ on noise.
    ramp = np.add.outer(np.arange(64) * 2, np.arange(64)).astype(np.uint8)
    jpeg = encoded(Image.fromarray(ramp), quality=90)
    ours = ops.DecodeJpeg("x", shape=(64, 64, 1))({"x": jpeg}, rng_of())["image"]
    difference = ours[..., 0].astype(int) - np.asarray(Image.open(io.BytesIO(jpeg)), int)
    assert abs(difference).max() <= 1
    assert abs(difference.mean()) < 0.05


@pytest.mark.parametrize("mode", ["L", "RGB", "P", "1"])
def test_pngs_decode_to_exactly_their_pixels(mode):
    noise = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    image = Image.fromarray(noise).convert(mode)
    channels = 1 if mode in ("L", "1") else 3
    op = ops.DecodePng("x", shape=(6, 8, channels))
    pixels = op({"x": encoded(image, "PNG")}, rng_of())["image"]
    np.testing.assert_array_equal(pixels, np.asarray(image.convert("RGB"))[..., :channels])


@pytest.mark.parametrize(
    "op",
    [ops.DecodeJpeg("encoded", shape=(224, 224, 3)), ops.DecodePng("png", shape=(224, 224, 3))],
)
def test_an_image_of_another_size_is_refused_before_it_is_decoded(example, op):
    with pytest.raises(
        SchemaError, match=r"a size other than the 224 x 224 of .* height and width are 6 and 8\."
    ):
        op(example, rng_of())


def test_a_png_that_claims_to_be_huge_is_not_decoded_and_a_jpeg_is_none(example):
    png = example["png"]
    op = ops.DecodePng("png", shape=(6, 8, 3))
    huge = png[:16] + (2**31 - 1).to_bytes(4, "big") * 2 + png[24:]
    for data, ends in (
        (huge, r"\. Its height and width are 2147483647 and 2147483647\."),
        *((data, r"\.$") for data in (b"", png[:23], b"\xff" + png[1:])),
    ):
        message = (
            rf"is not a PNG, or a PNG of a size other than the 6 x 8 of .* images of any size{ends}"
        )
        with pytest.raises(SchemaError, match=message):
            op({"png": data}, rng_of())
    for wrong, data in ((op, "encoded"), (ops.DecodeJpeg("png", shape=(6, 8, 3)), "png")):
        with pytest.raises(SchemaError, match="is not a PNG|DecodeJpeg decodes nothing but JPEG"):
            wrong({"png": example[data]}, rng_of())


STORED = {
    "a palette": (Image.fromarray(np.arange(48, dtype=np.uint8).reshape(6, 8), "P"), 1),
    "grey of 8 bits": (Image.fromarray(np.arange(0, 240, 5, np.uint8).reshape(6, 8)), 1),
    "grey of 16 bits": (Image.fromarray(np.arange(0, 60000, 1250, np.uint16).reshape(6, 8)), 1),
    "black and white": (Image.fromarray(np.tri(6, 8).astype(bool)), 1),
    "grey with alpha": (Image.fromarray(np.arange(96, dtype=np.uint8).reshape(6, 8, 2)), 2),
    "colours with alpha": (Image.fromarray(np.arange(192, dtype=np.uint8).reshape(6, 8, 4)), 4),
}


@pytest.mark.parametrize("name", STORED)
def test_stored_values_are_those_of_the_file_and_no_others_are_taken(name):
    image, channels = STORED[name]
    data = {"png": encoded(image, "PNG", bits=8)}  # of a palette; no fewer
    dtype = "uint16" if "16" in name else "uint8"
    stored = np.asarray(image).reshape(6, 8, channels)
    pixels = ops.DecodeStored("png", shape=(6, 8, channels), dtype=dtype)(data, rng_of())["image"]
    assert pixels.dtype == dtype
    np.testing.assert_array_equal(pixels, stored)
    other = "uint8" if dtype == "uint16" else "uint16"
    for op in (
        ops.DecodeStored("png", shape=(8, 6, channels), dtype=dtype),
        ops.DecodeStored("png", shape=(6, 8, 3)),
        ops.DecodeStored("png", shape=(6, 8, 1), dtype=other),
    ):
        found = rf"'png' is a PNG of {dtype} \(6, 8, {channels}\), unlike the shape and dtype of "
        with pytest.raises(SchemaError, match=found + re.escape(repr(op))):
            op(data, rng_of())


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("colour", ["grey", "palette"])
def test_values_of_few_bits_are_counted_from_zero(bits, colour):
    rows = bytes([0, 0b00011011, 0, 0b11100100])  # each with the filter 0 before it
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", 8 // bits, 2, bits, 3 * (colour == "palette"), 0, 0, 0))
    ]
    parts += [(b"PLTE", bytes(range(90, 90 + 3 * 2**bits)))] * (colour == "palette")
    parts += [(b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    op = ops.DecodeStored("png", shape=(2, 8 // bits, 1))
    expected = [
        [byte >> shift & (2**bits - 1) for shift in range(8 - bits, -1, -bits)]
        for byte in (0b00011011, 0b11100100)
    ]
    assert op({"png": png}, rng_of())["image"][..., 0].tolist() == expected


def test_sixteen_bits_of_colour_and_damaged_or_other_files_are_refused(example):
    op = ops.DecodeStored("png", shape=(6, 8, 3))
    deep = next(KINDS["16-bit RGB PNG"].images())
    with pytest.raises(SchemaError, match=r"is a PNG of uint16 \(80, 120, 3\), unlike"):
        ops.DecodeStored("png", shape=(80, 120, 3))({"png": deep}, rng_of())
    for data in (b"", example["png"][:25], example["encoded"]):
        with pytest.raises(SchemaError, match="'png' is not a PNG, unlike the shape and dtype of"):
            op({"png": data}, rng_of())
    with pytest.raises(SchemaError, match="the PNG image is damaged or truncated"):
        op({"png": example["png"][:-16] + bytes(4) + example["png"][-12:]}, rng_of())
    unknown = example["png"][:25] + b"\5" + example["png"][26:]
    with pytest.raises(SchemaError, match=r"is a PNG of uint8 \(6, 8, 0\), unlike"):
        op({"png": unknown}, rng_of())


@dataclass(frozen=True)
class Dropping:
    """What a filter would be: it has nothing to say of some records."""

    made: dict[str, Any] | None
    reads: tuple[str, ...] = ("number",)

    def output_spec(self, specs: Specs) -> Specs:
        return {"number": specs["number"], "kept": ArraySpec((), np.dtype(np.int32))}

    def __call__(self, features: Features, rng: Rng) -> Any:
        return self.made


@pytest.mark.parametrize(
    ("made", "text"), [(None, "returned None"), ({}, r"returned \[\]"), ({"kept": 1}, "'kept'")]
)
def test_an_op_that_drops_a_record_is_an_error_that_suggests_a_weight_of_zero(
    numbers_of, made, text
):
    source = eval_dataset(numbers_of(5), global_batch=4, ops=[Dropping(made)], keys=("number",))
    told = rf"{text}.* for a record; its output_spec promises \['kept', 'number'\]\. .* give them a weight of 0"
    with pytest.raises(OptionError, match=told):
        next(source.batches())


PROMISED = {
    "pair": ArraySpec((2,), np.dtype(np.int32)),
    "text": BYTES_VALUE,
    "many": ArraySpec((None,), BYTES),
}


@dataclass(frozen=True)
class Broken:
    """A user's op that returns something else for record 3, or raises it."""

    key: str
    value: Any
    reads: tuple[str, ...] = ("number",)

    def output_spec(self, specs: Specs) -> Specs:
        return PROMISED

    def __call__(self, features: Features, rng: Rng) -> Any:
        made = {"pair": np.zeros(2, np.int32), "text": b"", "many": np.array([b"a", b"b"], object)}
        if features["number"] != 3:
            return made
        if isinstance(self.value, Exception):
            raise self.value
        return made | {self.key: self.value}


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("pair", ValueError("an odd number"), "raised ValueError: an odd number"),
        ("pair", KeyError("x"), "raised KeyError: 'x'"),
        ("pair", SchemaError("no label"), "no label"),
        ("pair", np.zeros(3, np.int32), r"returned 'pair' as int32 \(3,\); its output_spec promises int32 \(2,\)\."),
        ("pair", np.zeros(2, np.int64), r"returned 'pair' as int64 \(2,\); its output_spec promises int32 \(2,\)\."),
        ("pair", [0.5, 1], r"returned 'pair' as float64 \(2,\); its output_spec promises int32 \(2,\)\."),
        ("pair", 1, r"returned 'pair' as int32 \(\); its output_spec promises int32 \(2,\)\."),
        ("pair", [[1], [2, 3]], "raised ValueError: "),
        ("pair", None, r"returned 'pair' as object \(\); its output_spec promises int32 \(2,\)\."),
        ("text", "letters", "returned str for 'text'; its output_spec promises bytes"),
        ("many", [b"a"], r"returned 'many' as \|?S1 \(1,\); its output_spec promises object \(None,\)\."),
    ],
)  # fmt: skip
def test_an_op_that_breaks_its_promise_is_one_error_that_names_op_and_record(
    numbers_of, key, value, text
):
    source = eval_dataset(
        numbers_of(5), global_batch=4, ops=[Broken(key, value)], keys=("number", "pair")
    )
    named = "" if isinstance(value, SchemaError) else r"Broken\(key=.*\) "
    place = r"validation-00000-of-00001, record 3 at byte \d+ \(record 3 of 'validation'\): "
    with pytest.raises(SchemaError, match=place + named + text) as caught:
        next(source.batches())
    assert str(caught.value).count("record 3 ") == 2
    if isinstance(value, KeyError | ValueError) and not isinstance(value, SchemaError):
        assert value in (caught.value.__cause__.__cause__, caught.value.__cause__)


@dataclass(frozen=True)
class Scalar:
    """A user's op that returns one number of Python or NumPy."""

    value: Any
    dtype: str
    reads: tuple[str, ...] = ("number",)

    def output_spec(self, specs: Specs) -> Specs:
        return {"scalar": ArraySpec((), np.dtype(self.dtype))}

    def __call__(self, features: Features, rng: Rng) -> Features:
        return {"scalar": self.value}


@pytest.mark.parametrize(
    ("value", "dtype", "fits"),
    [
        (7, "int32", True),
        (7, "float32", True),
        (0.1, "float32", True),
        (True, "bool", True),
        (np.int32(7), "int32", True),
        (2**31, "int32", False),
        (10**30, "int32", False),
        (0.5, "int32", False),
        (np.float64(2.5), "int32", False),
        (-1, "uint8", False),
        (float("nan"), "int32", False),
        (np.int64(7), "int32", False),
    ],
)
def test_a_number_of_python_gets_the_promised_dtype_if_that_can_hold_it(
    numbers_of, value, dtype, fits
):
    source = eval_dataset(
        numbers_of(5), global_batch=4, ops=[Scalar(value, dtype)], keys=("scalar",)
    )
    if fits:
        assert next(source.batches())["scalar"].tolist() == [np.dtype(dtype).type(value)] * 4
    else:
        with pytest.raises(
            SchemaError,
            match=rf"record 0 .* returned 'scalar' as \w+ \(\); .* promises {dtype} \(\)",
        ):
            next(source.batches())
