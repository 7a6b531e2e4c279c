"""From payloads to values as NumPy arrays and bytes, for any layout.

A RecordParser parses one record. Batches for training are parsed by pipeline.decoding, to the same
values: structs here, together; Examples there, and here one by one if they differ. NumPy only."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.errors import SchemaError
from pipeline.shards.example_decoding import decode_features
from pipeline.shards.schema import Feature, Schema
from pipeline.spec import BYTES, DTYPES, ArraySpec, Layout, chosen_specs, feature_specs, objects


class RecordParser:
    """Parses payloads of one layout. keys: of the features to return; None for all. OptionError for
    an unknown one."""

    def __init__(self, layout: Layout, keys: Iterable[str] | None) -> None:
        self._layout = layout
        self._specs = feature_specs(layout)
        if keys is not None:
            self._specs = chosen_specs(layout, [keys] if isinstance(keys, str) else keys)
        self.keys = tuple(self._specs)
        self._features = None
        if isinstance(layout, Schema) and not layout.opaque:
            self._features = {key.encode(): layout.features[key] for key in self.keys}

    def __call__(self, payload: bytes) -> dict[str, Any]:
        """Key -> value, see Examples. Raises SchemaError if they do not match."""
        if isinstance(self._layout, np.dtype):
            columns = struct_columns(self._layout, self._specs, [payload])
            return {
                key: column[0].copy() if column.ndim > 1 else column[0]
                for key, column in columns.items()
            }
        if self._features is not None:
            return {key: each[()] for key, each in example_values(payload, self._features).items()}
        return dict.fromkeys(self.keys, payload)


def example_values(payload: bytes, features: Mapping[bytes, Feature]) -> dict[str, np.ndarray]:
    """The values of these features of one Example, each in its shape; 0 or b"" if an optional one
    is absent. Raises SchemaError if they do not match."""
    values = decode_features(payload, features)
    names = {key.decode(): feature for key, feature in features.items()}
    return {key: _in_shape(key, feature, values.get(key)) for key, feature in names.items()}


def _in_shape(key: str, feature: Feature, values: np.ndarray | None) -> np.ndarray:
    """The values of a feature in one Example, in its shape; 0 or b"" if an optional one is absent.
    values: those in the record, [n]; None if they are absent. Raises SchemaError if they do not fit
    the feature."""
    dtype = DTYPES[feature.dtype]
    shape: Any = feature.shape
    if values is None:
        if not feature.optional and feature.num_values is not None:
            raise SchemaError(f"{key!r} is missing; the schema has it in every record.")
        values = np.full(feature.num_values or 0, b"" if dtype == BYTES else 0, dtype)
    if values.dtype != dtype:
        stored = "bytes" if values.dtype == BYTES else values.dtype
        raise SchemaError(f"{key!r} is a list of {stored}; its dtype is {feature.dtype}.")
    if feature.num_values is None:
        return values
    if feature.num_values != len(values):
        raise SchemaError(
            f"{key!r} has {len(values)} values; its shape {shape} holds {feature.num_values}."
        )
    return values.reshape(shape)


def struct_columns(
    layout: np.dtype, specs: Mapping[str, ArraySpec], payloads: Sequence[bytes]
) -> dict[str, np.ndarray]:
    """The fields `specs` of n structs, each [n, *shape]. Raises SchemaError for a payload of
    another size."""
    for payload in payloads:
        if len(payload) != layout.itemsize:
            raise SchemaError(
                f"a record does not have the {layout.itemsize} bytes of its dtype; it has "
                f"{len(payload)}."
            )
    fields: Any = layout.fields  # the stubs allow only literal names
    table = np.frombuffer(b"".join(payloads), np.uint8).reshape(len(payloads), layout.itemsize)
    columns = dict[str, np.ndarray]()
    for key, spec in specs.items():
        field, begin = fields[key][:2]
        cells = np.ascontiguousarray(table[:, begin : begin + field.itemsize])
        shape = (len(payloads), *field.shape)
        if spec.dtype == BYTES:
            size = field.base.itemsize
            data = cells.tobytes()
            values = [data[at : at + size] for at in range(0, len(data), size)]
            columns[key] = objects(values).reshape(shape)
        elif field.base.kind == "b":
            columns[key] = (cells != 0).reshape(shape)  # a uint8 may have any bits, a bool may not
        else:
            columns[key] = cells.view(field.base).reshape(shape).astype(spec.dtype, copy=False)
    return columns
