"""What others write as tf.train.Example, read leniently where protobuf is lenient, and never with another error."""

import numpy as np
import pytest
import tensorflow as tf
from example_wire import entry, example, feature, field
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import SchemaError
from pipeline.shards.example import encode_example
from pipeline.shards.example_decoding import decode_example, decode_features, example_shapes
from pipeline.shards.schema import Feature, Schema

ANY = (None,)
LISTS = Schema(
    "lists", {"b": Feature("bytes", ANY), "f": Feature("float32", ANY), "i": Feature("int64", ANY)}
)
VALUES = {"b": [b"xy", b""], "f": [1.5] * 70, "i": [-1, 0, 2**40] * 100}
# field 7 of every wire type
UNKNOWN = b"\x3a\x01?" + b"\x38\x96\x01" + b"\x3d????" + b"\x39????????"


def of(dtype, content):
    """An entry "a" of a list with this content."""
    return entry("a", feature(dtype, content))


FIVE = of("int64", b"\x08\x05")
ODD = {
    "unpacked integers": (example(of("int64", b"\x08\x05\x08\x96\x01")), {"a": [5, 150]}),
    "integers packed and unpacked": (example(of("int64", b"\x0a\x01\x04\x08\x05")), {"a": [4, 5]}),
    "an integer of over 64 bits": (
        example(of("int64", b"\x08" + b"\xff" * 9 + b"\x7f" + b"\x0a\x0a" + b"\xff" * 9 + b"\x7f")),
        {"a": [-1, -1]},
    ),
    "unpacked floats": (example(of("float32", b"\x0d\0\0\x80\x3f")), {"a": [1.0]}),
    "the value before the key": (
        example(field(2, feature("int64", b"\x08\x05")) + field(1, b"a")),
        {"a": [5]},
    ),
    "a key twice": (
        example(*(of("int64", b"\x08" + number) for number in (b"\1", b"\2"))),
        {"a": [2]},
    ),
    "features twice": (
        b"".join(example(entry(key, feature("int64", b"\x08\x05"))) for key in "ab"),
        {"a": [5], "b": [5]},
    ),
    "no list": (example(entry("a", b"")), {}),
    "no value": (example(field(1, b"a")), {}),
    "no key": (example(field(2, feature("int64", b"\x08\x05"))), {"": [5]}),
    "nothing": (b"", {}),
    "a field beside features": (example(FIVE) + UNKNOWN, {"a": [5]}),
    "a field beside the entries": (field(1, UNKNOWN + field(1, FIVE)), {"a": [5]}),
    "a field beside the list": (
        example(entry("a", UNKNOWN + feature("int64", b"\x08\x05"))),
        {"a": [5]},
    ),
}


def by_protobuf(data):
    found = {}
    for key, value in tf.train.Example.FromString(data).features.feature.items():
        if kind := value.WhichOneof("kind"):
            found[key] = list(getattr(value, kind).value)
    return found


@pytest.mark.parametrize("name", ODD)
def test_odd_encodings_are_decoded_as_protobuf_decodes_them_all_or_some_or_only_counted(name):
    data, values = ODD[name]
    assert decode_example(data) == by_protobuf(data) == values
    some = {key: array.tolist() for key, array in decode_features(data, {b"a"}).items()}
    assert some == {key: items for key, items in values.items() if key == "a"}
    if name in ("a field beside features", "a field beside the entries"):
        with pytest.raises(SchemaError, match="unexpected field 7 of wire type 2"):
            example_shapes(data)
    else:
        counts = {key: shape.num_values for key, shape in example_shapes(data).items()}
        assert counts == {key: len(items) for key, items in values.items()}


def test_a_layout_tells_kinds_and_counts_and_where_the_first_bytes_are():
    data = encode_example(LISTS, VALUES)
    layout = example_shapes(data)
    assert {key: found[:2] for key, found in layout.items()} == {
        "b": ("bytes", 2),
        "f": ("float32", 70),
        "i": ("int64", 300),
    }
    begin, end = layout["b"].first
    assert data[begin:end] == b"xy"
    assert decode_example(data) == VALUES


NO_EXAMPLE = {
    "cut in a message": (b"\x0a\x05abc", "cut short"),
    "a number without end": (b"\xff" * 30, "varint of over ten bytes"),
    "a group": (b"\x0b", "wire type 3"),
    "a length beyond its message": (b"\x0a\x02\x0a\x05", "cut short"),
    "a number in place of bytes": (example(of("bytes", b"\x08\x05")), "tag 8 in a list of bytes"),
    "an unknown field of bytes": (example(of("bytes", b"\x12\1?")), "tag 18 in a list of bytes"),
    "a number in place of floats": (
        example(of("float32", b"\x08\x05")),
        "tag 8 in a list of float32",
    ),
    "floats that end within one": (example(of("float32", b"\x0a\x03abc")), "cut short"),
    "integers that end within one": (example(of("int64", b"\x0a\x01\x80")), "cut short"),
    "a key that is no text": (
        example(field(1, b"\xff") + field(2, feature("int64", b"\x08\x05"))),
        "codec can't decode byte 0xff",
    ),
}


def some_features(data):
    return decode_features(data, {b"a", b"\xff"})


@pytest.mark.parametrize("read", [decode_example, example_shapes, some_features])
@pytest.mark.parametrize("name", NO_EXAMPLE)
def test_bytes_that_are_no_example_are_refused(name, read):
    data, message = NO_EXAMPLE[name]
    with pytest.raises(
        SchemaError, match=f"{len(data)} bytes that are not a tf.train.Example: .*{message}"
    ):
        read(data)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_bytes_are_refused_as_such_or_decoding_and_layout_agree(data):
    damaged = bytearray(encode_example(LISTS, {"b": [b"xy", b""], "f": [1.5, 2.5], "i": [-1, 300]}))
    places = st.integers(0, len(damaged) - 1)
    tags = st.sampled_from([0x08, 0x09, 0x0A, 0x0D, 0x12, 0x1A])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(places)] = data.draw(tags | st.integers(0, 255))
    try:
        values, layout = decode_example(bytes(damaged)), example_shapes(bytes(damaged))
    except SchemaError:
        return
    assert layout.keys() <= values.keys()
    counts = {key: layout[key].num_values if key in layout else 0 for key in values}
    assert counts == {key: len(items) for key, items in values.items()}
    for key, array in decode_features(bytes(damaged), {key.encode() for key in values}).items():
        # As objects: an array of bytes would lose the zeros at their ends.
        np.testing.assert_array_equal(array, np.array(values[key], array.dtype))
