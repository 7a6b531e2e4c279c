"""The encoder against protobuf's own deterministic serialisation."""

import struct

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples

from pipeline.errors import SchemaError
from pipeline.shards.example import encode_example, example_pieces
from pipeline.shards.example_decoding import decode_example
from pipeline.shards.schema import Feature, Schema

VALUES = {
    "bytes": st.binary(max_size=300),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float32": st.floats(width=32, allow_nan=False),
}


def prefix_free(keys):
    """Where one key begins another, Python's protobuf (upb) puts the longer first, C++'s the shorter. So do we."""
    return not any(a != b and b.startswith(a) for a in keys for b in keys)


@st.composite
def schemas_and_values(draw):
    features, values = {}, {}
    for key in draw(st.lists(st.text(max_size=20), max_size=6, unique=True).filter(prefix_free)):
        dtype = draw(st.sampled_from(sorted(VALUES)))
        size = draw(st.sampled_from([None, 1, 3]))
        items = draw(st.lists(VALUES[dtype], min_size=size or 0, max_size=size or 130))
        features[key] = Feature(dtype, (size,))
        values[key] = items
    return Schema("random", features), values


def as_protobuf(schema, values):
    example = tf.train.Example()
    example.features.SetInParent()
    for key, items in values.items():
        feature = example.features.feature[key]
        dtype = schema.features[key].dtype
        lists = {
            "bytes": feature.bytes_list,
            "int64": feature.int64_list,
            "float32": feature.float_list,
        }
        lists[dtype].SetInParent()
        lists[dtype].value.extend(items)
    return example


@settings(max_examples=examples(120), deadline=None)
@given(schemas_and_values())
def test_an_encoded_example_is_byte_equal_to_protobufs_deterministic_mode(drawn):
    schema, values = drawn
    assert encode_example(schema, values) == as_protobuf(schema, values).SerializeToString(
        deterministic=True
    )


@settings(max_examples=examples(120), deadline=None)
@given(schemas_and_values())
def test_decoding_gives_back_what_was_encoded_also_from_protobufs_default_mode(drawn):
    schema, values = drawn
    expected = {k: [struct.unpack("<f", struct.pack("<f", v))[0] if isinstance(v, float) else v for v in items]
                for k, items in values.items()}  # fmt: skip
    assert decode_example(encode_example(schema, values)) == expected
    assert decode_example(as_protobuf(schema, values).SerializeToString()) == expected


@pytest.mark.parametrize("value", [1e39, -1e39, 10**400, 3.4028235677973366e38])
def test_floats_beyond_float32_are_refused_but_infinity_and_nan_are_encoded(value):
    schema = Schema("s", {"x": Feature("float32")})
    with pytest.raises(SchemaError, match="'x' holds"):
        encode_example(schema, {"x": value})
    for fine in (3.4028235677973362e38, float("inf"), float("-inf"), float("nan")):
        assert encode_example(schema, {"x": fine})


def test_numpy_arrays_are_encoded_in_row_major_order():
    schema = Schema("s", {"a": Feature("float32", (2, 2))})
    encoded = encode_example(schema, {"a": np.array([[1, 2], [3, 4]], np.float32)})
    assert decode_example(encoded) == {"a": [1.0, 2.0, 3.0, 4.0]}


BAD_VALUES = [
    ({"a": 1}, r"'b' is missing; schema 's' needs it"),
    ({"a": 1, "b": b"x", "c": 2}, r"'c' is not in schema 's' \(a, b, f\)"),
    ({"a": [1, 2], "b": b"x"}, r"'a' has 2 values; its shape \(\) holds 1"),
    ({"a": 1.5, "b": b"x"}, r"'a' holds 1.5 \(float\); its dtype is int64"),
    ({"a": True, "b": b"x"}, r"'a' holds True \(bool\)"),
    ({"a": 2**63, "b": b"x"}, r"'a' holds 9223372036854775808"),
    ({"a": 1, "b": "text"}, r"'b' .* its dtype is bytes|'b' has 4 values"),
]


@pytest.mark.parametrize(("values", "message"), BAD_VALUES)
def test_values_that_do_not_fit_the_schema_are_refused_by_name(values, message):
    schema = Schema(
        "s", {"a": Feature("int64"), "b": Feature("bytes"), "f": Feature("float32", optional=True)}
    )
    with pytest.raises(SchemaError, match=message):
        encode_example(schema, values)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.sampled_from(sorted(VALUES)).flatmap(lambda dtype: st.tuples(st.just(dtype), VALUES[dtype]))
)
def test_one_value_is_encoded_as_a_list_of_it(case):
    dtype, value = case
    single, listed = (
        Schema("one", {"key": Feature(dtype)}),
        Schema("one", {"key": Feature(dtype, (None,))}),
    )
    expected = encode_example(listed, {"key": [value]})
    assert (
        encode_example(single, {"key": value}) == encode_example(listed, {"key": value}) == expected
    )


def test_equal_values_of_another_type_are_still_checked():
    ints, floats = (
        Schema("ints", {"key": Feature("int64")}),
        Schema("floats", {"key": Feature("float32")}),
    )
    encode_example(ints, {"key": 1})
    for value in (True, 1.0, b"1"):
        with pytest.raises(SchemaError, match="its dtype is int64"):
            encode_example(ints, {"key": value})
    assert encode_example(floats, {"key": 1}) != encode_example(ints, {"key": 1})
    assert encode_example(floats, {"key": 0.0}) != encode_example(floats, {"key": -0.0})


def test_an_image_is_not_copied_to_be_encoded():
    schema = Schema(
        "image", {"a": Feature("int64"), "image": Feature("bytes"), "z": Feature("bytes")}
    )
    values = {"a": 1, "image": bytes(5000), "z": b"end"}
    pieces = example_pieces(schema, values)
    assert len(pieces) == 3
    assert pieces[1] is values["image"]
    assert b"".join(pieces) == encode_example(schema, values)
