"""Encodes many records of small integers, such as rows of tokens: ten times as fast as one by one.

The bytes are those of example.encode_example."""

import itertools
import math
from collections.abc import Mapping

import numpy as np

from pipeline.errors import SchemaError
from pipeline.shards.example import entry_head, varint
from pipeline.shards.schema import Schema

__all__ = ["encode_integer_examples"]

_BITS = 7  # per byte of a varint
_LONGEST = 4  # bytes; larger numbers would need more columns for all


def encode_integer_examples(schema: Schema, columns: Mapping[str, np.ndarray]) -> list[bytes]:
    """The serialised tf.train.Example of each record. columns: [records, ...] from 0 to 2^28 - 1, for every feature.

    Raises SchemaError for other features, shapes or numbers."""
    for key in sorted(columns.keys() | schema.features.keys()):
        _check(schema, key, columns.get(key))
    entries = [
        [_entry(encoded_key, packed) for packed in _varints(columns[key])] for key, encoded_key in schema.encoded_keys
    ]
    joined = map(b"".join, zip(*entries, strict=True))
    return [b"\x0a" + varint(len(features)) + features for features in joined]


def _check(schema: Schema, key: str, values: np.ndarray | None) -> None:
    if key not in schema.features:
        raise SchemaError(f"{key!r} is not in schema {schema.name!r} ({', '.join(sorted(schema.features))}).")
    shape = schema.features[key].shape
    if schema.features[key].dtype != "int64" or values is None or values.shape[1:] != shape:
        found = "missing" if values is None else f"{values.dtype} {list(values.shape)}"
        wanted = ", ".join(map(str, ("records", *shape)))
        raise SchemaError(f"{key!r} is {found}; schema {schema.name!r} needs integers [{wanted}].")
    if values.size and not 0 <= values.min() <= values.max() < 1 << _BITS * _LONGEST:
        raise SchemaError(f"{key!r} holds {values.min()} to {values.max()}; allowed are 0 to 2^28 - 1.")


def _entry(key: bytes, packed: bytes) -> bytes:
    body = b"\x0a" + varint(len(packed)) + packed
    return entry_head(key, "int64", len(body)) + body


def _varints(values: np.ndarray) -> list[bytes]:
    """The numbers of each record as consecutive varints."""
    numbers = values.reshape(-1).astype(np.uint32)
    lengths = np.ones(len(numbers), np.uint8)
    layers = []
    for n in range(1, _LONGEST):
        longer = np.flatnonzero(numbers >= 1 << _BITS * n)
        lengths[longer] += 1
        layers.append(longer)
    ends = np.cumsum(lengths, dtype=np.int64)
    begins = ends - lengths
    out = np.empty(ends[-1] if len(ends) else 0, np.uint8)
    out[begins] = numbers & 0x7F
    for n, longer in enumerate(layers, 1):
        place = begins[longer] + n
        out[place - 1] |= 0x80
        out[place] = numbers[longer] >> _BITS * n & 0x7F
    data = out.tobytes()
    bounds = np.append(0, ends)[:: max(1, math.prod(values.shape[1:]))].tolist()
    return [data[begin:end] for begin, end in itertools.pairwise(bounds)]
