"""The graph of an export decodes records to what the input decodes them to."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from pictures import encoded, heic, picture

from pipeline.decoding.decode import Decoder
from pipeline.decoding.padding import PadTo
from pipeline.decoding.rows import RowDecoder
from pipeline.errors import ExportError
from pipeline.ops import DecodeResize, Rename
from pipeline.shards.example import encode_example
from pipeline.shards.schema import Feature, Schema
from pipeline.spec import ArraySpec, Opaque
from pipeline.tf_cpu import tf
from trainer.serving.graph_decoding import decode_payloads, decode_stored

SCHEMA = Schema(
    "notes",
    {
        "words": Feature("int64", (None,)),
        "scores": Feature("float32", (None,)),
        "box": Feature("float32", (2, 2)),
        "weight": Feature("int64", optional=True),
        "text": Feature("bytes"),
    },
)
NOTES = [
    {"words": [1, 2, 3], "scores": [0.5], "box": [1, 2, 3, 4], "weight": 7, "text": b"abc"},
    {"words": [], "scores": [1, 2, 3, 4, 5], "box": [0, 0, 0, 0], "text": b""},
]


@dataclass(frozen=True)
class Length:
    """An op of bytes. graph: what its method tensorflow returns instead."""

    key: str = "text"
    graph: Any = None

    @property
    def reads(self):
        return (self.key,)

    def output_spec(self, specs):
        return {"length": ArraySpec((), np.dtype(np.int32))}

    def __call__(self, features, rng):
        return {"length": len(features[self.key])}

    def tensorflow(self, features):
        return (
            {"length": tf.strings.length(features[self.key])} if self.graph is None else self.graph
        )


class Ones:
    """An op that reads nothing."""

    reads = ()

    def output_spec(self, specs):
        return {"ones": ArraySpec((3,), np.dtype(np.float64))}

    def __call__(self, features, rng):
        return {"ones": np.ones(3)}

    def tensorflow(self, features):
        return {"ones": tf.ones(3, tf.float64)}


def rows_of(layout, keys, **options) -> RowDecoder:
    return Decoder(layout, 2, **options).rows_of(keys)


def graph(decode, rows, given):
    return tf.function(lambda given: decode(rows, given), autograph=False)(given)


def notes():
    return [encode_example(SCHEMA, note) for note in NOTES]


PADS = {"words": PadTo(2, -1, truncate=True, length_into="count"), "scores": 5}
ROWS = {
    "examples": (
        rows_of(SCHEMA, ["words", "count", "scores", "box", "weight"], pad_to=PADS),
        notes(),
    ),
    "ops": (
        rows_of(SCHEMA, ["n", "box"], ops=[Length(), Rename({"length": "n"})], pad_to=PADS),
        notes(),
    ),
    "padded for an op": (
        rows_of(SCHEMA, ["m", "words"], ops=[Rename({"count": "m"})], pad_to=PADS),
        notes(),
    ),
    "an op without inputs": (rows_of(SCHEMA, ["ones"], ops=[Ones()]), notes()),
    "offsets": (
        rows_of(
            SCHEMA, ["weight", "words"], offsets={"weight": 17 * 10**17, "words": 1}, pad_to=PADS
        ),
        [
            encode_example(SCHEMA, NOTES[0] | {"weight": weight})
            for weight in (-(2**63), 2**63 - 1, 17 * 10**17 + 2**24 - 1, 0)
        ],
    ),
    "opaque": (rows_of(Opaque("note"), ["length"], ops=[Length("note")]), [b"abc", b""]),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_graph_makes_the_arrays_of_the_row_decoder(name):
    rows, payloads = ROWS[name]
    expected = rows.decode(
        payloads, np.zeros((len(payloads), rows.num_ops, 2), np.int32), np.arange(len(payloads))
    )
    found = graph(decode_payloads, rows, tf.constant(payloads))
    assert list(found) == list(expected)
    for key, value in expected.items():
        assert found[key].dtype.as_numpy_dtype == value.dtype
        np.testing.assert_array_equal(found[key], value)


def test_the_graph_makes_the_same_from_stored_features():
    rows = rows_of(SCHEMA, ["box", "length"], ops=[Length()])
    stored = {"box": tf.constant([[[1.0, 2], [3, 4]]]), "text": tf.constant([b"abc"])}
    found = graph(decode_stored, rows, stored)
    np.testing.assert_array_equal(found["box"], [[[1, 2], [3, 4]]])
    assert found["length"].numpy().tolist() == [3]


@pytest.mark.parametrize(
    ("layout", "options", "keys", "payload", "text"),
    [
        (
            SCHEMA,
            {},
            ["weight"],
            encode_example(SCHEMA, NOTES[0] | {"weight": 2**31}),
            "out of the range of int32",
        ),
        (SCHEMA, {"pad_to": {"words": 2}}, ["words"], notes()[0], "more values than the 2"),
        (SCHEMA, {}, ["box"], b"", "box"),
    ],
)
def test_the_graph_refuses_a_record_that_the_input_refuses(layout, options, keys, payload, text):
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        graph(decode_payloads, rows_of(layout, keys, **options), tf.constant([payload]))


def test_images_that_the_graph_cannot_decode_are_refused_by_row():
    schema = Schema("photos", {"image": Feature("bytes", content="image")})
    images = [
        encoded(picture(), "WEBP")
        if row in (1, 3)
        else heic(picture())
        if row == 4
        else encoded(picture())
        for row in range(6)
    ]
    payloads = [encode_example(schema, {"image": image}) for image in images]
    rows = rows_of(schema, ["pixels"], ops=[DecodeResize("image", into="pixels", size=(8, 8))])
    message = r"neither a JPEG nor a PNG, which an export decodes, in the rows\] \[1 3 4\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        graph(decode_payloads, rows, tf.constant(payloads))
    good = tf.constant([payloads[row] for row in (0, 2, 5)])
    assert graph(decode_payloads, rows, good)["pixels"].shape == (3, 8, 8, 3)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        ({"length": 1.0}, r"returned 'length' as float32 \(\)"),
        ({"length": [1, 2]}, r"returned 'length' as int32 \(2,\)"),
        ({"size": 1}, "raised KeyError: 'length'"),
        (7, "raised TypeError"),
    ],
)
def test_a_method_that_breaks_the_promise_of_its_op_is_one_error(made, text):
    rows = rows_of(Opaque(), ["length"], ops=[Length("record", made)])
    with pytest.raises(ExportError, match=rf"Length\(.*\): .*{text}"):
        graph(decode_payloads, rows, tf.constant([b"a"]))
