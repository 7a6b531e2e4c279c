"""Parses single payloads into NumPy arrays and bytes, according to the layout. No TensorFlow.

Dataset.examples parses with it. Batches for training are parsed by pipeline.decoding, with TensorFlow, to the same
values."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from pipeline.errors import OptionError, SchemaError, did_you_mean
from pipeline.shards.example_decoding import decode_features
from pipeline.shards.schema import Feature, Schema
from pipeline.spec import BYTES, Layout, feature_specs

_DTYPES = {"int64": np.dtype(np.int64), "float32": np.dtype(np.float32), "bytes": BYTES}


class ExampleParser:
    """Parses payloads of one layout. keys: of the features to return; None for all. OptionError for an unknown one."""

    def __init__(self, layout: Layout, keys: Iterable[str] | None) -> None:
        specs = feature_specs(layout)
        self.keys = tuple(specs) if keys is None else (keys,) if isinstance(keys, str) else tuple(keys)
        for key in self.keys:
            if key not in specs:
                raise OptionError(f"the records have no feature {key!r}.{did_you_mean(key, specs)}")
        self._layout, self._wanted = layout, frozenset(key.encode() for key in self.keys)

    def parse(self, payload: bytes, where: Callable[[], str]) -> dict[str, Any]:
        """Key -> value, see Examples. Raises SchemaError, which begins with where(), if they do not match."""
        try:
            if isinstance(self._layout, np.dtype):
                return self._struct(self._layout, payload)
            if isinstance(self._layout, Schema) and not self._layout.opaque:
                return self._example(self._layout, payload)
        except SchemaError as e:
            raise SchemaError(f"{where()}: {e}") from e
        return dict.fromkeys(self.keys, payload)

    def _example(self, schema: Schema, payload: bytes) -> dict[str, Any]:
        found = decode_features(payload, self._wanted)
        return {key: _value(key, schema.features[key], found.get(key)) for key in self.keys}

    def _struct(self, layout: np.dtype, payload: bytes) -> dict[str, Any]:
        if len(payload) != layout.itemsize:
            raise SchemaError(f"{len(payload)} bytes, but the dtype has {layout.itemsize}.")
        fields: Any = layout.fields  # the stubs allow only literal names
        row = np.frombuffer(payload, np.uint8)
        return {key: _field(row[fields[key][1] :], fields[key][0]) for key in self.keys}


def _value(key: str, feature: Feature, found: Any) -> Any:
    """One feature of an Example. found: its values, one-dimensional; None if it is absent."""
    dtype = _DTYPES[feature.dtype]
    if found is None:
        if not feature.optional:
            raise SchemaError(f"{key!r} is missing.")
        found = np.full(feature.num_values or 0, b"" if dtype == BYTES else 0, dtype)
    if found.dtype != dtype:
        stored = "bytes" if found.dtype == BYTES else found.dtype
        raise SchemaError(f"{key!r} is {stored}; the schema says {feature.dtype}.")
    if feature.num_values is None:
        return found
    if len(found) != feature.num_values:
        raise SchemaError(f"{key!r} has {len(found)} values; its shape {feature.shape} has {feature.num_values}.")
    return found.reshape(feature.shape) if feature.shape else found[0]


def _field(row: np.ndarray, field: np.dtype) -> Any:
    """One field of a struct; row: its bytes, and any others after them."""
    size, data = field.base.itemsize, row[: field.itemsize]
    if field.base.type in (np.bytes_, np.void):
        values = np.empty(field.itemsize // size, object)
        values[:] = [data[at : at + size].tobytes() for at in range(0, field.itemsize, size)]
    elif field.base.kind == "b":
        values = data != 0  # a byte may have any bits, a bool may not
    else:
        values = data.copy().view(field.base).astype(field.base.newbyteorder("="))  # a copy may be written to
    return values.reshape(field.shape) if field.shape else values[0]
