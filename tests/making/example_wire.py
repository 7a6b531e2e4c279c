"""tf.train.Examples byte by byte: in any encoding that protobuf allows, damaged, and as protobuf reads them."""

import struct
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from google.protobuf.message import DecodeError
from tensorflow.core.example.example_pb2 import Example

from pipeline.shards.example import varint
from pipeline.shards.schema import Dtype, Feature

__all__ = ["by_protobuf", "damaged", "entry", "example", "feature", "field", "odd_example"]

LISTS = {"bytes": (1, "bytes_list"), "float32": (2, "float_list"), "int64": (3, "int64_list")}
UNKNOWN = b"\x3a\x01?", b"\x38\x96\x01", b"\x3d????", b"\x39????????"  # field 7 of every wire type

Values = Mapping[str, Sequence[Any] | None]


def field(number: int, body: bytes) -> bytes:
    """A field with a length."""
    return varint(number << 3 | 2) + varint(len(body)) + body


def feature(dtype: Dtype, body: bytes) -> bytes:
    return field(LISTS[dtype][0], body)


def entry(key: str, value: bytes) -> bytes:
    return field(1, key.encode()) + field(2, value)


def example(*entries: bytes) -> bytes:
    return field(1, b"".join(field(1, each) for each in entries))


def plain_list(dtype: Dtype, values: Sequence[Any]) -> bytes:
    """As protobuf writes it."""
    if dtype == "bytes":
        return b"".join(field(1, value) for value in values)
    return field(1, b"".join(map(packed, values))) if values else b""


def packed(value: float) -> bytes:
    return varint(value & 2**64 - 1) if isinstance(value, int) else struct.pack("<f", value)


def odd_example(
    random: Random, features: Mapping[str, Feature], values: Values, odd: float
) -> bytes:
    """The keys in the order of `values`. None: a feature without a kind. odd: the chance of each oddity."""

    def now() -> bool:
        return random.random() < odd

    def listed(dtype: Dtype, items: Sequence[Any]) -> bytes:
        if not now():
            return plain_list(dtype, items)
        cut = random.randint(0, len(items))
        single = b"" if dtype == "bytes" else b"\x08" if dtype == "int64" else b"\x0d"
        unpacked = (
            [single + packed(item) for item in items[:cut]]
            if single
            else [plain_list(dtype, items[:cut])]
        )
        return (
            b"".join(unpacked)
            + plain_list(dtype, items[cut:])
            + (b"\x0a\0" if now() and single else b"")
        )

    def unknown() -> bytes:
        return random.choice(UNKNOWN) if now() else b""

    entries = []
    for key, items in values.items():
        dtype = features[key].dtype if key in features else "int64"
        body = (
            b"" if items is None else unknown() + feature(dtype, listed(dtype, items)) + unknown()
        )
        name, value = field(1, key.encode()), field(2, body)
        entries.append(
            value + name if now() else name + (b"" if items is None and now() else value)
        )
        if now():
            entries.insert(0, entry(key, feature(dtype, b"")))  # a later one counts
    parts = [entries]
    if now():
        cut = random.randint(0, len(entries))
        parts = [entries[:cut], entries[cut:]]
    return b"".join(
        field(1, unknown() + b"".join(field(1, each) for each in part)) + unknown()
        for part in parts
    )


def damaged(random: Random, payload: bytes, other: bytes) -> bytes:
    """With bits flipped, bytes changed, inserted, left out, repeated or those of another record, or truncated."""
    data = bytearray(payload)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        at, count = random.randrange(len(data)), random.randint(1, 20)
        there = random.randrange(len(other))
        structure = random.choice((0, 1, 2, 3, 4, 5, 8, 10, 11, 12, 13, 18, 26, 127, 128, 255))
        change = random.choice(
            ("flip", "set", "insert", "delete", "repeat", "replace", "truncate", "lengthen")
        )
        match change:
            case "flip":
                data[at] ^= 1 << random.randrange(8)
            case "set":
                data[at] = structure
            case "insert":
                data[at:at] = random.randbytes(random.randint(1, 3))
            case "delete":
                del data[at : at + random.randint(1, 3)]
            case "repeat":
                data[at:at] = data[at : at + count]
            case "replace":
                data[at : at + count] = other[there : there + count]
            case "truncate":
                del data[at:]
            case "lengthen":
                data[at] = (data[at] + 1) % 256
                data[at + 1 : at + 1] = bytes([structure])
        if not data:
            break
    return bytes(data)


def by_protobuf(features: Mapping[str, Feature], payload: bytes) -> dict[str, list[Any]] | str:
    """The values of the features, or the reason why there are none."""
    try:
        found = Example.FromString(payload).features.feature
    except DecodeError:
        return "protobuf"
    values: dict[str, list[Any]] = {}
    for key, wanted in features.items():
        kind = found[key].WhichOneof("kind") if key in found else None
        count = wanted.num_values
        if kind is None:
            if not wanted.optional and wanted.num_values is not None:
                return "missing"
            values[key] = [b"" if wanted.dtype == "bytes" else 0] * (count or 0)
        elif kind != LISTS[wanted.dtype][1]:
            return "kind"
        else:
            values[key] = list(getattr(found[key], kind).value)
            if count not in (None, len(values[key])):
                return "count"
    return values
