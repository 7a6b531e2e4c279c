"""Plans what a list of ops does to a record's features before any record is read, and pads features
of any length to rows of one length, so that they stack to a batch, before ops run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import numpy as np

from pipeline.checks import check_number, did_you_mean
from pipeline.decoding.columns import Column, Ragged
from pipeline.decoding.op import DropsFeatures, Features, Op, Rng, Specs, spec_of
from pipeline.errors import OptionError, SchemaError
from pipeline.spec import BYTES, ArraySpec, delivered, holds


@dataclass(frozen=True)
class Step:
    """An op and the features that it sets. Features that it drops are simply not used any more."""

    op: Op
    sets: Specs

    def __call__(self, features: Features, rng: Rng) -> Features:
        """The features after the op.

        Raises OptionError if one in its output_spec is missing; SchemaError if one has another
        shape or dtype, and if the op raises an error, which is then its cause."""
        try:
            values = self.op(features, rng)
            if not isinstance(values, dict) or not self.sets.keys() <= values.keys():
                raise OptionError(
                    f"{self.op!r} returned "
                    f"{sorted(values) if isinstance(values, dict) else values!r} for a record; its "
                    f"output_spec promises {sorted(self.sets)}. An op cannot drop a record, "
                    "because an evaluation counts every record. To leave records out, give them a "
                    "weight of 0 in a feature, and use it in the metrics. Keep and Drop leave "
                    "features out."
                )
            return features | {key: self._as_promised(key, values[key]) for key in self.sets}
        except (SchemaError, OptionError, MemoryError):
            raise
        except Exception as e:
            raise SchemaError(f"{self.op!r} raised {type(e).__name__}: {e}") from e

    def _as_promised(self, key: str, value: Any) -> Any:
        spec = self.sets[key]
        if type(value) is np.ndarray and value.shape == spec.shape and value.dtype == spec.dtype:
            return value
        if spec.dtype == BYTES and spec.shape == ():
            if not isinstance(value, bytes):
                raise SchemaError(
                    f"{self.op!r} returned {type(value).__name__} for {key!r}; its output_spec "
                    "promises bytes."
                )
            return value
        number = isinstance(value, int | float) and spec.dtype != BYTES and holds(spec.dtype, value)
        array = np.asarray(value, spec.dtype if number else None)
        fits = len(array.shape) == len(spec.shape) and all(
            known in (None, side) for side, known in zip(array.shape, spec.shape, strict=True)
        )
        if array.dtype != spec.dtype or not fits:
            raise SchemaError(
                f"{self.op!r} returned {key!r} as {array.dtype} {array.shape}; its output_spec "
                f"promises {spec.dtype} {spec.shape}."
            )
        return array


@dataclass(frozen=True)
class Plan:
    """The ops in order. specs: of the features after all ops. dropped: feature -> the op that
    dropped it."""

    steps: Sequence[Step]
    specs: dict[str, ArraySpec]
    dropped: dict[str, Op]


def listed(ops: Sequence[Op]) -> tuple[Op, ...]:
    """The ops of a list. Raises OptionError if it is not a list, or contains anything but ops."""
    if not isinstance(ops, Iterable):
        raise OptionError(f"ops={ops!r} must be a list of ops; for a single op, [op].")
    for op in ops:
        if isinstance(op, type) or not isinstance(op, Op):
            raise OptionError(
                f"{op!r} in ops is not an op: an op has `reads`, `output_spec` and `__call__`, see "
                "pipeline.ops.Op. Give an instance, such as DecodeJpeg('image/encoded')."
            )
        if "seed" in signature(op.__call__).parameters:
            raise OptionError(
                f"{op!r} is an op for graphs of TensorFlow: it takes `seed`. Ops are NumPy and "
                "take `rng`, see pipeline.ops.Op. Write it so, or wrap it: TensorFlowOp(op), from "
                "pipeline.tensorflow_op."
            )
    return tuple(ops)


def planned(stored: Specs, ops: Sequence[Op]) -> Plan:
    """The plan for records with the features `stored`. Raises OptionError or SchemaError if the
    ops do not fit them."""
    steps = []
    specs = dict(stored)
    dropped = dict[str, Op]()
    for op in ops:
        drops = tuple(sorted(op.dropped_features(specs))) if isinstance(op, DropsFeatures) else ()
        for key in (*op.reads, *drops):
            if key in dropped:
                raise OptionError(
                    f"{op!r} reads {key!r}, which {dropped[key]!r} dropped. Put it before that op, "
                    f"or keep {key!r}."
                )
            spec_of(op, key, specs)
        sets = op.output_spec(specs)
        if taken := [key for key in sets if key.startswith("_")]:
            raise OptionError(
                f"{op!r} sets {taken[0]!r}: names that start with _ are reserved. Choose another."
            )
        steps.append(Step(op, sets))
        specs = {key: spec for key, spec in specs.items() if key not in drops} | dict(sets)
        dropped |= dict.fromkeys(drops, op)
        for key in sets:
            dropped.pop(key, None)
    return Plan(steps, specs, dropped)


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
