"""tf.train.Example without TensorFlow: one dict of features, one byte string, always the same.

protobuf's default serialisation orders a map by a hash that differs between processes; here keys are sorted, which
gives the bytes of its deterministic mode. It costs 5-20 us a record, whatever its image weighs, and none of
TensorFlow's 11 s import. Wire format: https://protobuf.dev/programming-guides/encoding/"""

import functools
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from pipeline.shards.errors import SchemaError
from pipeline.shards.schema import Dtype, Feature, Schema

__all__ = [
    "FeatureLayout",
    "Layout",
    "Value",
    "decode_example",
    "encode_example",
    "example_layout",
    "example_pieces",
]

Value = bytes | int | float | Sequence[bytes] | Sequence[int] | Sequence[float] | np.ndarray

# Field numbers in tf.train.Feature: bytes_list = 1, float_list = 2, int64_list = 3; all of them length-delimited.
_LIST_TAG = {"bytes": b"\x0a", "float32": b"\x12", "int64": b"\x1a"}
_DTYPE_OF_TAG: dict[int, Dtype] = {1: "bytes", 2: "float32", 3: "int64"}
_SCALARS, _BOOLS = (bytes, int, float), (bool, np.bool_)
_UINT64_MAX = 2**64 - 1
_SMALL_BYTES, _LARGE_BYTES = 64, 4096
_FLOAT32_END = 3.4028235677973366e38  # half a step above the largest float32: from here on nothing rounds to it
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def encode_example(schema: Schema, values: Mapping[str, Value]) -> bytes:
    """The serialised tf.train.Example of one record.

    Raises SchemaError naming the feature when one is missing, unknown, of the wrong kind or count."""
    return b"".join(example_pieces(schema, values))


def example_pieces(schema: Schema, values: Mapping[str, Value]) -> list[bytes]:
    """The same bytes in pieces, large values among them as they are: to copy an image costs more than to encode it.

    Raises SchemaError like encode_example."""
    if not values.keys() <= schema.features.keys():
        key = next(key for key in values if key not in schema.features)
        raise SchemaError(f"{key!r} is not in schema {schema.name!r} ({', '.join(sorted(schema.features))}).")
    entries: list[bytes] = []
    for key, encoded_key in schema.encoded_keys:
        feature = schema.features[key]
        if key in values:
            value = values[key]
            if _is_small(value, feature):
                entries.append(_small_entry(encoded_key, feature.dtype, value))
            else:
                entries += _entry(encoded_key, feature.dtype, _items(key, feature, value))
        elif not feature.optional:
            raise SchemaError(f"{key!r} is missing; schema {schema.name!r} needs it in every record.")
    return _merged([b"\x0a" + _varint(_length(entries)), *entries])


def _is_small(value: Value, feature: Feature) -> TypeGuard[bytes | int]:
    """Whether the value is one, short, and surely of the feature's kind."""
    if feature.num_values not in (1, None):
        return False
    if type(value) is int:
        return feature.dtype == "int64" and _INT64_MIN <= value <= _INT64_MAX
    return type(value) is bytes and feature.dtype == "bytes" and len(value) <= _SMALL_BYTES


@functools.lru_cache(4096)  # a format, a colour space, a class and a size come again in record after record
def _small_entry(key: bytes, dtype: Dtype, value: bytes | int) -> bytes:
    return b"".join(_entry(key, dtype, (value,)))


def _entry(key: bytes, dtype: Dtype, items: Sequence[Any]) -> list[bytes]:
    """One pair of the feature map, in pieces."""
    body: list[bytes] = []
    if dtype == "bytes":
        for item in items:
            body += (b"\x0a" + _varint(len(item)), item)
    elif items:
        ints = dtype == "int64"
        packed = b"".join([_varint(i & _UINT64_MAX) for i in items]) if ints else struct.pack(f"<{len(items)}f", *items)
        body = [b"\x0a" + _varint(len(packed)) + packed]
    size = _length(body)
    tagged = _LIST_TAG[dtype] + _varint(size)
    head = b"\x0a" + _varint(len(key)) + key + b"\x12" + _varint(len(tagged) + size) + tagged
    return [b"\x0a" + _varint(len(head) + size) + head, *body]


def _merged(pieces: Sequence[bytes]) -> list[bytes]:
    """The same bytes with small pieces joined."""
    merged, small = [], []
    for piece in pieces:
        if len(piece) < _LARGE_BYTES:
            small.append(piece)
        else:
            merged += (b"".join(small), piece)
            small = []
    return [*merged, b"".join(small)]


def _length(pieces: Sequence[bytes]) -> int:
    return sum(map(len, pieces))


def _items(key: str, feature: Feature, value: Value) -> Sequence[Any]:
    """The values as Python objects of the feature's kind, counted."""
    if isinstance(value, np.ndarray):
        value = value.ravel().tolist()
    items = (value,) if isinstance(value, _SCALARS) else list(value)  # pyright: ignore
    wanted = feature.num_values
    if wanted is not None and len(items) != wanted:
        raise SchemaError(f"{key!r} has {len(items)} values; its shape {feature.shape} holds {wanted}.")
    for item in items:
        if not _fits(feature, item):
            raise SchemaError(f"{key!r} holds {item!r:.60} ({type(item).__name__}); its dtype is {feature.dtype}.")
    return items


def _fits(feature: Feature, item: Any) -> bool:
    if feature.dtype == "bytes":
        return isinstance(item, bytes)
    if isinstance(item, _BOOLS):
        return False
    if feature.dtype == "int64":
        return isinstance(item, int) and _INT64_MIN <= item <= _INT64_MAX
    # What is beyond the largest float32, but not infinite, struct would refuse with an error of its own.
    return isinstance(item, float | int) and not _FLOAT32_END <= abs(item) < math.inf


@functools.lru_cache(4096)  # ~50 of them a record, nearly all of them small or seen before
def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def decode_example(data: bytes) -> dict[str, list[Any]]:
    """The features of one serialised tf.train.Example, each a list of bytes, int or float values.

    Reads every valid encoding, packed or not, in any order; the last of equal keys wins, as in protobuf.
    For tools and tests: training parses with TensorFlow. Raises SchemaError on bytes that are no Example."""
    try:
        features: dict[str, list[Any]] = {}
        for entry in (e for _, block in _fields(data, {1}) for _, e in _fields(block, {1})):
            parts: dict[int, bytes] = dict(_fields(entry, {1, 2}))
            features[parts.get(1, b"").decode()] = _decode_feature(parts.get(2, b""))
        return features
    except (IndexError, struct.error, UnicodeDecodeError, TypeError) as e:
        raise SchemaError(f"{len(data)} bytes that are no tf.train.Example: {e}.") from e


def _decode_feature(data: bytes) -> list[Any]:
    values: list[Any] = []
    for field, body in _fields(data, {1, 2, 3}):
        dtype = _DTYPE_OF_TAG[field]
        values = [v for _, item in _fields(body, {1}) for v in _decode_values(dtype, item)]
    return values


def _decode_values(dtype: str, item: bytes | int) -> list[Any]:
    if dtype == "bytes":
        return [item]
    if dtype == "float32":
        assert isinstance(item, bytes)
        return list(struct.unpack(f"<{len(item) // 4}f", item))
    if isinstance(item, int):  # an unpacked int64
        return [_signed(item)]
    numbers, pos = [], 0
    while pos < len(item):
        number, pos = _read_varint(item, pos)
        numbers.append(_signed(number))
    return numbers


def _signed(number: int) -> int:
    return number - 2**64 if number > _INT64_MAX else number


def _fields(data: Any, wanted: set[int]) -> list[tuple[int, Any]]:
    """The (number, value) pairs of one message; value is an int for a varint, else bytes."""
    found, pos = [], 0
    while pos < len(data):
        tag, pos = _read_varint(data, pos)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value, pos = _read_varint(data, pos)
        elif wire_type in (1, 2, 5):
            size, pos = (8, pos) if wire_type == 1 else (4, pos) if wire_type == 5 else _read_varint(data, pos)
            value, pos = data[pos : pos + size], pos + size
            if pos > len(data):
                raise IndexError("cut short")
        else:
            raise IndexError(f"wire type {wire_type}")
        if number in wanted:
            found.append((number, value))
    return found


def _read_varint(data: bytes, pos: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[pos]
        number |= (byte & 0x7F) << shift
        pos += 1
        if byte < 0x80:
            return number, pos
        shift += 7
        if shift > 63:
            raise IndexError("varint of over ten bytes")


class FeatureLayout(NamedTuple):
    """What one feature of one record holds, without its values."""

    dtype: Dtype
    num_values: int
    first: tuple[int, int]  # of bytes: where in the record the first value begins and ends


Layout = dict[str, FeatureLayout]


def example_layout(data: bytes) -> Layout:
    """Kinds and counts of the features of one serialised tf.train.Example. Values are stepped over, not decoded.

    So it costs a few microseconds a feature, however large: decode_example takes 9 ms for 600 KB of floats. A feature
    without a list counts as absent, as for TensorFlow. Raises SchemaError on bytes that are no Example; stricter than
    decode_example: a field beside `features`, such as a SequenceExample has, is refused."""
    layout: Layout = {}
    try:
        for field, start, stop in _spans(data, 0, len(data)):
            if field != 1:
                raise IndexError(f"field {field} beside features")
            for _, begin, end in _spans(data, start, stop):
                key, found = b"", None
                for part, at, to in _spans(data, begin, end):
                    if part == 1:
                        key = data[at:to]
                    elif part == 2:
                        found = _feature_layout(data, at, to)
                if found:
                    layout[key.decode()] = found
    except (IndexError, UnicodeDecodeError) as e:
        raise SchemaError(f"{len(data)} bytes that are no tf.train.Example: {e}.") from e
    return layout


_CONTINUED = bytes(range(0x80, 0x100))  # bytes of a varint that more follow


def _feature_layout(data: bytes, start: int, stop: int) -> FeatureLayout | None:
    found = None
    for field, begin, end in _spans(data, start, stop):
        dtype = _DTYPE_OF_TAG.get(field)
        if dtype == "bytes":
            items = _spans(data, begin, end)
            found = FeatureLayout(dtype, len(items), items[0][1:] if items else (0, 0))
        elif dtype:
            found = FeatureLayout(dtype, sum(_count(data, dtype, *item) for item in _spans(data, begin, end)), (0, 0))
    return found


def _count(data: bytes, dtype: Dtype, _: int, start: int, stop: int) -> int:
    if dtype == "float32":
        if (stop - start) % 4:
            raise IndexError("cut short")
        return (stop - start) // 4
    if stop > start and data[stop - 1] >= 0x80:
        raise IndexError("cut short")
    return len(data[start:stop].translate(None, _CONTINUED))


def _spans(data: bytes, pos: int, stop: int) -> list[tuple[int, int, int]]:
    """(number, begin, end) of the value of each field of the message in bytes pos..stop."""
    found = []
    while pos < stop:
        tag, pos = (data[pos], pos + 1) if data[pos] < 0x80 else _read_varint(data, pos)
        wire_type, size = tag & 7, 0
        if wire_type == 2:
            size, pos = (data[pos], pos + 1) if data[pos] < 0x80 else _read_varint(data, pos)
        elif wire_type == 0:
            size = _read_varint(data, pos)[1] - pos
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
        else:
            raise IndexError(f"wire type {wire_type}")
        found.append((tag >> 3, pos, pos + size))
        pos += size
    if pos > stop:
        raise IndexError("cut short")
    return found
