"""Options and features that do not suit an op or a batch are refused before anything is read, with what to do."""

from dataclasses import dataclass

import numpy as np
import pytest

from pipeline import ops
from pipeline.decoding.decode import Decoder
from pipeline.decoding.padding import PadTo
from pipeline.errors import OptionError, SchemaError
from pipeline.shards.schema import Feature, Schema
from pipeline.spec import ArraySpec

SHAPE, SIZE = "shape must be", r"size=.* must be \(height, width\)"
MADE = [
    (lambda: ops.DecodeJpeg("x", shape=(6, 8, 4)), rf"{SHAPE} \(height, width, 1\) for grey"),
    (lambda: ops.DecodeJpeg("x", shape=6), SHAPE),  # pyright: ignore[reportArgumentType]
    (lambda: ops.DecodeJpeg("x", shape=(6, 8)), SHAPE),  # pyright: ignore[reportArgumentType]
    (lambda: ops.DecodePng("x", shape=(6, 8, 4)), rf"{SHAPE} \(height, width, 1\) for grey"),
    (
        lambda: ops.DecodeStored("x", shape=(6, 8, 5)),
        rf"{SHAPE} \(height, width, channels\), with 1 to 4 channels of dtype 'uint8'",
    ),
    (lambda: ops.DecodeStored("x", shape=(6, 8, 3), dtype="uint16"), r"or 1 of 'uint16'\."),
    (lambda: ops.DecodeStored("x", dtype="int32"), "dtype='int32'.*or 1 of 'uint16'"),  # pyright: ignore[reportArgumentType]
    (lambda: ops.DecodeResize(size=(0, 8)), SIZE),
    (lambda: ops.DecodeResize(size=32), rf"DecodeResize: {SIZE}"),  # pyright: ignore[reportArgumentType]
    (lambda: ops.DecodeResize(channels=4), r"channels=4 is not one of 1, 3"),  # pyright: ignore[reportArgumentType]
    (lambda: ops.DecodeResize(method="no"), "method='no' is not one of bilinear, bicubic"),  # pyright: ignore[reportArgumentType]
    (lambda: ops.DecodeResize(fit="crop"), "fit='crop' is not one of stretch, pad"),  # pyright: ignore[reportArgumentType]
    (
        lambda: ops.DecodeRandomResizedCrop(area=(0, 1)),
        r"area must be two ascending numbers in \(0, 1\]",
    ),
    (lambda: ops.DecodeCentralCrop(size=(64, 48)), "size must be a square"),
    (
        lambda: ops.DecodeCentralCrop(size=(64, 64), resize_short=32),
        "resize_short=32 must be at least 64",
    ),
    (lambda: ops.RandomShift("image", pixels=-1), "pixels=-1"),
    (lambda: ops.RandomShift("image", fill="wrap"), "fill='wrap'"),  # pyright: ignore[reportArgumentType]
    (lambda: ops.RandomCrop(padding=-1), "padding=-1"),
    (lambda: ops.RandomCrop(fill="wrap"), "fill='wrap'"),  # pyright: ignore[reportArgumentType]
    (lambda: ops.RandomCrop(size=(0, 8)), SIZE),
    (lambda: ops.CentralCrop(size=(8, 8, 3)), SIZE),  # pyright: ignore[reportArgumentType]
    (lambda: ops.Resize(size=(8, 0)), SIZE),
    (lambda: ops.Resize(method="area"), "method='area'"),  # pyright: ignore[reportArgumentType]
    (lambda: ops.Keep("label"), r"Keep\('label'\): keys must be a list\. Give \['label'\]"),
    (lambda: ops.Rename({"a": "c", "b": "c"}), "two features get the same name"),
    (lambda: ops.Cast("a", "float23"), "dtype must be one of bool, uint8, "),
    (lambda: ops.Cast("a", "S4"), "dtype must be one of bool, uint8, "),
    (lambda: ops.MultiHot("many", 0), "num_classes=0 must be at least 1"),
    (lambda: ops.OneHot("one", 0), "num_classes=0 must be at least 1"),
    (
        lambda: ops.MultiHot("many", 3, base=1, ignore=3),
        r"ignore must not be a label, and 1\.\.3 are labels",
    ),
]


@pytest.mark.parametrize(("make", "text"), MADE)
def test_an_op_with_invalid_options_is_refused_when_it_is_created(make, text):
    with pytest.raises(OptionError, match=text):
        make()


@dataclass(frozen=True)
class Count:
    """A user's op over a feature of any length."""

    reads: tuple[str, ...] = ("boxes",)
    into: str = "count"

    def output_spec(self, specs):
        return {self.into: ArraySpec((), np.dtype(np.int32))}

    def __call__(self, features, rng):
        return {self.into: np.size(features[self.reads[0]])}


SCHEMA = Schema(
    "all",
    {
        "id": Feature("int64"),
        "name": Feature("bytes"),
        "word": Feature("bytes", (None,), optional=True),
        "boxes": Feature("float32", (None,)),
        "many": Feature("int64", (None,), optional=True),
        "pair": Feature("int64", (2,), optional=True),
        "one": Feature("int64", optional=True),
    },
)


def image(*shape, dtype="u1"):
    return np.dtype([("image", dtype, shape)])


def of(*given):
    """The options of a Decoder with these ops."""
    return {"ops": list(given)}


MASK = "'_mask': names that start with _ are reserved"
OF_OPTIONS = [
    ({"keys": ["nmae"]}, r"keys has 'nmae', .* Did you mean 'name'\? Known: boxes, "),
    ({"keys": "id"}, r"keys='id' is a string; it must be a list of keys\. Give \['id'\]"),
    ({"ops": Count()}, r"ops=Count\(.* must be a list of ops; for a single op, \[op\]"),
    (of(Count), r"Count'> in ops is not an op: .*see pipeline\.ops\.Op\. Give an instance"),
    (of(len), "in ops is not an op: an op has `reads`, `output_spec` and `__call__`"),
    (of(Count(reads=("box",))), r"Count.* reads 'box', .* Did you mean 'boxes'\?"),
    (of(Count(into="_mask")), f"sets {MASK}"),
    ({"pad_values": {"idd": 1}}, r"pad_values has 'idd', .* Did you mean 'id'\?"),
    ({"pad_values": {"id": 2**31}}, r"pad_values\['id'\] is 2147483648, which int32 cannot hold"),
    ({"pad_values": {"id": 0.5}}, "0.5, which int32 cannot hold"),
    ({"pad_values": {"id": np.nan}}, "nan, which int32 cannot hold"),
    ({"pad_to": {"boxs": 3}}, r"'boxs', which is not in the records\. Did you mean 'boxes'\?"),
    (
        {"pad_to": {"id": 3}},
        r"pad_to has 'id', whose shape is \(\) in all records\. Leave it out of pad_to",
    ),
    (
        {"pad_to": {"many": PadTo(3, value=0.5)}},
        r"pad_to\['many'\] has value=0\.5, which int32 cannot hold",
    ),
    ({"pad_to": {"many": PadTo(3, value=2**31)}}, "which int32 cannot hold"),
    ({"pad_to": {"boxes": PadTo(3, length_into="many")}}, "has length_into='many', which is taken"),
    ({"pad_to": {"boxes": PadTo(3, length_into="_n")}}, "length_into='_n', which is taken"),
    (
        {"pad_to": {"boxes": PadTo(3, length_into="n"), "many": PadTo(3, length_into="n")}},
        r"pad_to\['many'\]",
    ),
    *(
        (
            {"pad_to": {"boxes": length}},
            rf"PadTo\(length={length}, .*: length={length} must be at least 1",
        )
        for length in (0, -1)
    ),
]


@pytest.mark.parametrize(("options", "text"), OF_OPTIONS)
def test_options_of_a_batch_that_do_not_suit_the_records_are_refused(options, text):
    with pytest.raises(OptionError, match=text):
        Decoder(SCHEMA, 2, **options)


OF_FEATURES = [
    (
        SCHEMA,
        {"keys": ["name"]},
        "'name' is bytes, which devices do not support. Add an op .*DecodeJpeg",
    ),
    (SCHEMA, {"keys": ["boxes"]}, "'boxes' has no fixed length, which devices do not support"),
    (SCHEMA, of(ops.DecodeJpeg("id")), r"'id' is int64 \(\); it must be one bytes value"),
    (
        SCHEMA,
        {"pad_to": {"word": 3}},
        "pad_to has 'word', which is bytes: .* Convert them to numbers in an op",
    ),
    (SCHEMA, of(ops.Cast("name", "int32")), "'name' is bytes; it must be numeric"),
    (
        SCHEMA,
        of(ops.Cast("many", "uint8")) | {"pad_to": {"many": PadTo(3, value=-1)}},
        "has -1 for absent values, which uint8 cannot",
    ),
    (
        SCHEMA,
        of(ops.MultiHot("many", 3)) | {"pad_to": {"many": 4}},
        r"'many' has 0 for absent labels, but 0\.\.2 are labels",
    ),
    (
        SCHEMA,
        of(ops.MultiHot("many", 3, base=1)) | {"pad_to": {"many": 4}},
        r"'many' has 0 for absent labels\. Give ignore=0",
    ),
    (
        SCHEMA,
        of(ops.MultiHot("many", 3, ignore=9)) | {"pad_to": {"many": PadTo(4, value=-1)}},
        "Give ignore=-1",
    ),
    (
        SCHEMA,
        of(ops.MultiHot("one", 3)),
        r"'one' has 0 for absent labels.* PadTo\(\.\.\., value=-1\), .* shape \(None,\)",
    ),
    (SCHEMA, of(ops.MultiHot("one", 3, base=1)), "Give ignore=0"),
    (SCHEMA, of(ops.OneHot("one", 3)), r"'one' has 0 for absent labels.* shape \(None,\)"),
    (
        SCHEMA,
        of(ops.OneHot("one", 3, base=1)),
        r"'one' has 0 for absent labels\. MultiHot\(\.\.\., ignore=0\)",
    ),
    (
        SCHEMA,
        of(ops.OneHot("pair", 3)),
        r"'pair' is int64 \(2,\); it must be a single integer, .* MultiHot takes any number",
    ),
    (
        image(32, 32, 3),
        of(ops.CentralCrop(size=(64, 48))),
        r"'image' is 32 x 32, smaller than the 64 x 48 .*Resize\('im",
    ),
    (
        image(32, 32, 3),
        of(ops.RandomCrop(size=(24, 41))),
        "is 32 x 32 and 4 pixels of padding on each side, smaller than",
    ),
    (
        image(8, 8, 3),
        of(ops.GreyToRgb()),
        "has 3 channels. Leave this op out: the image is already RGB",
    ),
    (image(8, 8, 2), of(ops.GreyToRgb()), "has 2 channels. It must have 1"),
    (
        image(8, 8, 3, dtype="f4"),
        of(ops.Resize()),
        "is float32 .* must be a uint8 image .* Put this op before the one",
    ),
    (
        image(8, 8),
        of(ops.RandomFlip()),
        r"is uint8 \(8, 8\); .* A grey image has one channel: \(8, 8, 1\)",
    ),
    (
        image(8, 8, 4),
        of(ops.TrivialAugmentWide()),
        r"has 4 channels; it must have 1 \(grey\) or 3 \(RGB\)",
    ),
    (
        np.dtype([("image", "S9")]),
        of(ops.RandomCrop()),
        r"'image' is bytes; .* Decode it first: DecodeResize, DecodeCentr",
    ),
]


@pytest.mark.parametrize(("layout", "options", "text"), OF_FEATURES)
def test_a_feature_that_does_not_fit_is_refused_with_what_would(layout, options, text):
    with pytest.raises(SchemaError, match=text):
        Decoder(layout, 1, **options)
