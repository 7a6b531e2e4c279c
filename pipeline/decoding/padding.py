"""Pads features of any length to rows of one length, so that they stack to a batch, before
ops run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from pipeline.checks import check_number, did_you_mean
from pipeline.decoding.columns import Column, Ragged
from pipeline.decoding.op import Specs
from pipeline.errors import OptionError, SchemaError
from pipeline.spec import BYTES, ArraySpec, delivered, holds


@dataclass(frozen=True)
class PadTo:
    """A row of `length` values: the record's, then `value`.

    truncate: drops values beyond `length`; without it, a longer row is a SchemaError. length_into:
    a feature set to the number of the record's values in the row, int32 (), 0 to `length`."""

    length: int
    value: float = 0
    truncate: bool = False
    length_into: str | None = None

    def __post_init__(self) -> None:
        check_number(f"{self!r}: length", self.length, at_least=1)


def padded_specs(specs: Specs, pad_to: Mapping[str, PadTo]) -> dict[str, ArraySpec]:
    """`specs` with the padded rows and their lengths. A padding row looks like that of a record
    without values.

    Raises OptionError or SchemaError for a feature that does not exist or cannot be padded."""
    result = dict(specs)
    for key, pad in pad_to.items():
        if key not in specs:
            raise OptionError(
                f"pad_to has {key!r}, which is not in the records.{did_you_mean(key, specs)}"
            )
        spec = specs[key]
        if spec.dtype == BYTES:
            raise SchemaError(
                f"pad_to has {key!r}, which is bytes: devices do not support bytes of any length. "
                "Convert them to numbers in an op, which can read features of any length."
            )
        if None not in spec.shape:
            raise OptionError(
                f"pad_to has {key!r}, whose shape is {spec.shape} in all records. Leave it out of "
                "pad_to."
            )
        if not holds(delivered(spec.dtype), pad.value):
            raise OptionError(
                f"pad_to[{key!r}] has value={pad.value!r}, which {delivered(spec.dtype)} cannot "
                "hold."
            )
        result[key] = replace(spec, shape=(pad.length,), pad=pad.value, missing=pad.value)
        if pad.length_into is not None:
            if pad.length_into in result or pad.length_into.startswith("_"):
                raise OptionError(
                    f"pad_to[{key!r}] has length_into={pad.length_into!r}, which is taken. Choose "
                    "another."
                )
            result[pad.length_into] = ArraySpec((), np.dtype(np.int32))
    return result


def pad_rows(columns: Mapping[str, Column], pad_to: Mapping[str, PadTo]) -> dict[str, Column]:
    """Features of a batch, those of any length padded to [n, length], and the lengths.

    Raises SchemaError for a row that is too long."""
    result = dict(columns)
    for key, column in columns.items():
        if key not in pad_to or not isinstance(column, Ragged):
            continue
        pad = pad_to[key]
        lengths = column.lengths
        longest = int(lengths.max(initial=0))
        if longest > pad.length and not pad.truncate:
            raise SchemaError(
                f"{key!r} has more values than the {pad.length} that pad_to allows. Allow more, or "
                f"drop the rest with PadTo({pad.length}, truncate=True). It has {longest}."
            )
        inside = np.arange(pad.length) < lengths[:, None]
        result[key] = padded = np.full(inside.shape, pad.value, column.values.dtype)
        padded[inside] = column.values if longest <= pad.length else _first(column, pad.length)
        if pad.length_into is not None:
            result[pad.length_into] = np.minimum(lengths, pad.length).astype(np.int32)
    return result


def _first(column: Ragged, length: int) -> np.ndarray:
    """The values of all rows, without those beyond `length` in a row."""
    places = np.arange(len(column.values)) - np.repeat(
        np.cumsum(column.lengths) - column.lengths, column.lengths
    )
    return column.values[places < length]
