"""Plans what a list of ops does to a record's features before any record is read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np

from pipeline.decoding.op import DropsFeatures, Features, Op, Specs, spec_of
from pipeline.decoding.rng import Rng
from pipeline.errors import OptionError, SchemaError
from pipeline.spec import BYTES, ArraySpec, holds


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
