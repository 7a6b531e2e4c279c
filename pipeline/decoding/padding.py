"""Pads features of any length to rows of one length, so that they stack to a batch. The decoder pads before ops run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from pipeline.decoding.op import Features, Specs
from pipeline.errors import OptionError, SchemaError, did_you_mean
from pipeline.spec import BYTES, ArraySpec, delivered, holds
from pipeline.tf_cpu import tf

__all__ = ["PadTo", "pad_rows", "padded_specs"]


@dataclass(frozen=True)
class PadTo:
    """A row of `length` values: the record's, then `value`.

    truncate: drops values beyond `length`; without it, a longer row is a SchemaError. length_into: a feature set to
    the number of the record's values in the row, int32 (), 0 to `length`."""

    length: int
    value: float = 0
    truncate: bool = False
    length_into: str | None = None

    def __post_init__(self) -> None:
        if self.length < 1:
            raise OptionError(f"{self!r}: length must be at least 1.")


def padded_specs(specs: Specs, pad_to: Mapping[str, PadTo]) -> dict[str, ArraySpec]:
    """`specs` with the padded rows and their lengths. A padding row looks like that of a record without values.

    Raises OptionError or SchemaError for a feature that does not exist or cannot be padded."""
    result = dict(specs)
    for key, pad in pad_to.items():
        if key not in specs:
            raise OptionError(f"pad_to has {key!r}, which is not in the records.{did_you_mean(key, specs)}")
        spec = specs[key]
        if spec.dtype == BYTES:
            raise SchemaError(
                f"pad_to has {key!r}, which is bytes: devices do not support bytes of any length. "
                "Convert them to numbers in an op, which can read features of any length."
            )
        if None not in spec.shape:
            raise OptionError(
                f"pad_to has {key!r}, whose shape is {spec.shape} in all records. Leave it out of pad_to."
            )
        if not holds(delivered(spec.dtype), pad.value):
            raise OptionError(f"pad_to[{key!r}] has value={pad.value!r}, which {delivered(spec.dtype)} cannot hold.")
        result[key] = replace(spec, shape=(pad.length,), pad=pad.value, missing=pad.value)
        if pad.length_into is not None:
            if pad.length_into in result or pad.length_into.startswith("_"):
                raise OptionError(
                    f"pad_to[{key!r}] has length_into={pad.length_into!r}, which is taken. Choose another."
                )
            result[pad.length_into] = ArraySpec((), np.dtype(np.int32))
    return result


def pad_rows(features: Features, pad_to: Mapping[str, PadTo]) -> Features:
    """Features of a batch, those of any length padded to [n, length], and the lengths. Runs in a graph.

    The graph raises InvalidArgumentError for a row that is too long."""
    result = dict(features)
    for key in features.keys() & pad_to.keys():
        ragged, pad = features[key], pad_to[key]
        lengths = ragged.row_lengths()
        if not pad.truncate:
            longest = tf.reduce_max(lengths)
            message = (
                f"{key!r} has more values than the {pad.length} that pad_to allows. Allow more, or drop the rest with "
                f"PadTo({pad.length}, truncate=True). It has"
            )
            with tf.control_dependencies([tf.debugging.Assert(longest <= pad.length, [message, longest])]):
                lengths = tf.identity(lengths)
        fill = np.array(pad.value, ragged.dtype.as_numpy_dtype)
        with tf.control_dependencies([lengths]):
            result[key] = ragged.to_tensor(fill, shape=[None, pad.length])
        if pad.length_into is not None:
            result[pad.length_into] = tf.cast(tf.minimum(lengths, pad.length), tf.int32)
    return result
