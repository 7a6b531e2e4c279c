"""tf.train.Example without TensorFlow: one dict of features, one byte string, always the same.

protobuf's default serialisation orders a map by a hash that differs between processes; here keys are sorted, which
gives the bytes of its deterministic mode. It costs what protobuf costs (~50 us at 110 KB) and none of
TensorFlow's 11 s import. Wire format: https://protobuf.dev/programming-guides/encoding/"""

import functools
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.shards.errors import SchemaError
from pipeline.shards.schema import Feature, Schema

__all__ = ["Value", "decode_example", "encode_example"]

Value = bytes | int | float | Sequence[bytes] | Sequence[int] | Sequence[float] | np.ndarray

# Field numbers in tf.train.Feature: bytes_list = 1, float_list = 2, int64_list = 3; all of them length-delimited.
_LIST_TAG = {"bytes": b"\x0a", "float32": b"\x12", "int64": b"\x1a"}
_DTYPE_OF_TAG = {1: "bytes", 2: "float32", 3: "int64"}
_SCALARS, _BOOLS = (bytes, int, float), (bool, np.bool_)
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def encode_example(schema: Schema, values: Mapping[str, Value]) -> bytes:
    """The serialised tf.train.Example of one record.

    Raises SchemaError naming the feature when one is missing, unknown, of the wrong kind or count."""
    if not values.keys() <= schema.features.keys():
        key = next(key for key in values if key not in schema.features)
        raise SchemaError(f"{key!r} is not in schema {schema.name!r} ({', '.join(sorted(schema.features))}).")
    pieces: list[bytes] = []
    for key, encoded_key in schema.encoded_keys:
        feature = schema.features[key]
        if key in values:
            pieces += _entry(encoded_key, feature, _items(key, feature, values[key]))
        elif not feature.optional:
            raise SchemaError(f"{key!r} is missing; schema {schema.name!r} needs it in every record.")
    # Joined once: each level of the message in a copy of its own cost 100 us at 110 KB.
    return b"".join((b"\x0a", _varint(_length(pieces)), *pieces))


def _entry(key: bytes, feature: Feature, items: Sequence[Any]) -> list[bytes]:
    """One pair of the feature map, in pieces."""
    tag, body = _LIST_TAG[feature.dtype], []
    if feature.dtype == "bytes":
        for item in items:
            body += (b"\x0a" + _varint(len(item)), item)
    elif items:
        if feature.dtype == "int64":
            packed = b"".join([_varint(i & 0xFFFFFFFFFFFFFFFF) for i in items])
        else:
            packed = struct.pack(f"<{len(items)}f", *items)
        body = [b"\x0a" + _varint(len(packed)) + packed]
    size = _length(body)
    tagged = tag + _varint(size)
    head = b"\x0a" + _varint(len(key)) + key + b"\x12" + _varint(len(tagged) + size) + tagged
    return [b"\x0a" + _varint(len(head) + size) + head, *body]


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
    return isinstance(item, float | int)


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
