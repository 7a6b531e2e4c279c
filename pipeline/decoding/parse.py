"""Parses payloads into columns with the shapes and dtypes that the layout states.

The decoder requests only the features that ops and keys need."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from pipeline.decoding.columns import Column, Columns, Ragged, objects
from pipeline.decoding.examples import ExampleParser
from pipeline.errors import OptionError, SchemaError, did_you_mean
from pipeline.shards.schema import Schema
from pipeline.spec import BYTES, Layout, feature_specs

Parser = Callable[[Sequence[bytes]], Mapping[str, Column]]


def parser_of(layout: Layout, keys: Collection[str], *, narrow: bool = False) -> Parser:
    """What makes the features `keys` of n payloads: arrays [n, *shape] according to feature_specs.

    A (None,) feature is Ragged. An optional feature that is absent is 0 or b"", or an empty row. narrow: integers of
    Examples may be int32 where these suffice, which saves a third of the time of parsing text.
    Raises OptionError for an unknown key; the parser raises SchemaError for a payload that does not match the layout,
    such as an Example without a required feature or a struct of another length."""
    specs = feature_specs(layout)
    for key in keys:
        if key not in specs:
            raise OptionError(f"the records have no feature {key!r}.{did_you_mean(key, specs)}")
    if keys and isinstance(layout, np.dtype):  # partial: unlike a lambda, it can be pickled
        return partial(_structs, layout, keys)
    if keys and isinstance(layout, Schema) and not layout.opaque:
        parser = ExampleParser({key: layout.features[key] for key in keys})
        return parser if narrow else partial(_widened, parser)
    return partial(_whole, keys)


def _whole(keys: Collection[str], payloads: Sequence[bytes]) -> Columns:
    return dict.fromkeys(keys, objects(payloads))


def _widened(parser: Parser, payloads: Sequence[bytes]) -> Columns:
    return {key: _wide(column) for key, column in parser(payloads).items()}


def _wide(column: Column) -> Column:
    if isinstance(column, Ragged):
        return Ragged(np.asarray(_wide(column.values)), column.lengths)
    return column.astype(np.int64) if column.dtype == np.int32 else column


def _structs(layout: np.dtype, keys: Collection[str], payloads: Sequence[bytes]) -> Columns:
    for payload in payloads:
        if len(payload) != layout.itemsize:
            raise SchemaError(
                f"a record does not have the {layout.itemsize} bytes of its dtype; it has {len(payload)}."
            )
    specs = feature_specs(layout)
    fields: Any = layout.fields  # the stubs allow only literal names
    table = np.frombuffer(b"".join(payloads), np.uint8).reshape(len(payloads), layout.itemsize)
    parsed = Columns()
    for key in keys:
        field, begin = fields[key][:2]
        cells = np.ascontiguousarray(table[:, begin : begin + field.itemsize])
        shape = (len(payloads), *field.shape)
        if specs[key].dtype == BYTES:
            size, whole = field.base.itemsize, cells.tobytes()
            parsed[key] = objects([whole[at : at + size] for at in range(0, len(whole), size)]).reshape(shape)
        elif field.base.kind == "b":
            parsed[key] = (cells != 0).reshape(shape)  # a uint8 may have any bits, a bool may not
        else:
            parsed[key] = cells.view(field.base).reshape(shape).astype(specs[key].dtype, copy=False)
    return parsed
