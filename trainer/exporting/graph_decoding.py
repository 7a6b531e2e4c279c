"""The decoding of records in a graph, which an export has in front of its model: parsing, padding, ops, 32-bit numbers.

pipeline.decoding.rows computes the same in NumPy. The verification of an export compares what follows from both."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, cast

import numpy as np

from pipeline.decoding.op import Features, Op
from pipeline.decoding.padding import PadTo
from pipeline.decoding.planning import Step
from pipeline.decoding.rows import RowDecoder
from pipeline.errors import ExportError, InfeedError
from pipeline.shards.schema import Feature, Schema
from pipeline.spec import BYTES, ArraySpec, Layout, delivered, feature_specs
from pipeline.tf_cpu import tf
from trainer.exporting.exportable import MOVING_OPS, has_method
from trainer.exporting.graph_images import TWINS, checked

PARALLEL_RECORDS = 32  # of a request, in tf.map_fn, whose default of 10 is less than the cores of a server


def decode_payloads(rows: RowDecoder, payloads: Any) -> Features:
    """The features `keys` of records, string [n]: tensors [n, *shape].

    The graph raises InvalidArgumentError for a record that does not match the layout, such as an Example without a
    required feature, and for numbers out of the range of 32 bits."""
    return _decoded(rows, _parsed(rows.layout, rows.stored, payloads), tf.size(payloads))


def decode_stored(rows: RowDecoder, stored: Features) -> Features:
    """The same, from the features `stored` of n records, each [n, *shape]."""
    return _decoded(rows, stored, tf.shape(next(iter(stored.values())))[0])


def _decoded(rows: RowDecoder, parsed: Features, count: Any) -> Features:
    features = _padded(parsed, rows.pad_to)
    if rows.steps:
        features |= _made_by_ops(rows, features, count)
    return {key: _narrowed(key, features[key]) for key in rows.keys}


def _parsed(layout: Layout, keys: Collection[str], payloads: Any) -> Features:
    """A (None,) feature is a RaggedTensor. An optional feature that is absent is 0 or b"", or an empty row."""
    if not keys:
        return {}
    specs = feature_specs(layout)
    if isinstance(layout, np.dtype):
        return _parsed_structs(layout, specs, keys, payloads)
    if isinstance(layout, Schema) and not layout.opaque:
        parsing = {key: _parsing(layout.features[key], tf.as_dtype(specs[key].dtype)) for key in keys}
        return tf.io.parse_example(payloads, parsing)
    return dict.fromkeys(keys, payloads)


def _parsing(feature: Feature, dtype: Any) -> Any:
    if None in feature.shape:
        return tf.io.RaggedFeature(dtype)
    if not feature.optional:
        return tf.io.FixedLenFeature(feature.shape, dtype)
    default = tf.fill(feature.shape, tf.constant(b"" if dtype == tf.string else 0, dtype))
    return tf.io.FixedLenFeature(feature.shape, dtype, default)


def _parsed_structs(layout: np.dtype, specs: Mapping[str, ArraySpec], keys: Collection[str], payloads: Any) -> Features:
    fields: Any = layout.fields  # the stubs allow only literal names
    lengths = tf.strings.length(payloads)
    wrong = tf.boolean_mask(lengths, lengths != layout.itemsize)
    message = f"a record does not have the {layout.itemsize} bytes of its dtype; it has"
    payloads = checked(payloads, tf.size(wrong) == 0, [message, wrong[:1]])
    table = tf.io.decode_raw(payloads, tf.uint8)
    parsed = {}
    for key in keys:
        field, begin = fields[key][:2]
        if specs[key].dtype == BYTES:
            places = np.arange(begin, begin + field.itemsize, field.base.itemsize)[None]
            values = tf.strings.substr(payloads[:, None], places, np.full_like(places, field.base.itemsize))
        else:
            values = _numbers(table[:, begin : begin + field.itemsize], field.base)
        parsed[key] = tf.reshape(values, [tf.size(payloads), *field.shape])
    return parsed


def _numbers(table: Any, dtype: np.dtype) -> Any:
    """Bytes uint8 [n, m * itemsize] as n * m numbers of `dtype`, in the machine's byte order."""
    if dtype.kind == "b":
        return table != 0  # a uint8 may have any bits, a bool may not
    values = tf.reshape(table, [-1, dtype.itemsize] if dtype.itemsize > 1 else [-1])
    if not dtype.isnative:
        values = tf.reverse(values, [-1])
    return tf.bitcast(values, tf.as_dtype(dtype.newbyteorder("=")))


def _padded(features: Features, pad_to: Mapping[str, PadTo]) -> Features:
    """Those of any length padded to [n, length], and their lengths."""
    result = dict(features)
    for key in features.keys() & pad_to.keys():
        ragged, pad = features[key], pad_to[key]
        lengths = ragged.row_lengths()
        if not pad.truncate:
            longest = tf.reduce_max(lengths)
            message = f"{key!r} has more values than the {pad.length} that pad_to allows. It has"
            ragged = checked(ragged, longest <= pad.length, [message, longest])
        fill = np.array(pad.value, ragged.dtype.as_numpy_dtype)
        result[key] = ragged.to_tensor(fill, shape=[None, pad.length])
        if pad.length_into is not None:
            result[pad.length_into] = tf.cast(tf.minimum(lengths, pad.length), tf.int32)
    return result


def _made_by_ops(rows: RowDecoder, features: Features, count: Any) -> Features:
    """The features among `keys` that ops set."""
    sets = {key: spec for step in rows.steps.values() for key, spec in step.sets.items()}
    made = {key: tf.TensorSpec(sets[key].shape, sets[key].dtype) for key in rows.keys if key in sets}

    def one(record: tuple[Features, Any]) -> Features:
        features = record[0]
        for step in rows.steps.values():
            features = features | _made(step, features)
        return {key: features[key] for key in made}

    # Ops may need no feature of a record; then the range states how many there are.
    elements = (features, tf.range(count))
    return tf.map_fn(one, elements, fn_output_signature=made, parallel_iterations=PARALLEL_RECORDS)


def _made(step: Step, features: Features) -> Features:
    """What an op sets. Raises ExportError if its method fails, or returns anything but what the op promises."""
    try:
        made = graph_of(step.op)(features)
        made = {key: tf.convert_to_tensor(made[key]) for key in step.sets}
    except InfeedError:
        raise
    except Exception as e:
        raise ExportError(f"{step.op!r}: its method tensorflow raised {type(e).__name__}: {e}") from e
    for key, spec in step.sets.items():
        found = made[key]
        if found.dtype != tf.as_dtype(spec.dtype) or not found.shape.is_compatible_with(spec.shape):
            raise ExportError(
                f"{step.op!r}: its method tensorflow returned {key!r} as {found.dtype.name} {found.shape}; its "
                f"output_spec promises {tf.as_dtype(spec.dtype).name} {spec.shape}."
            )
    return made


def graph_of(op: Op) -> Callable[[Features], Features]:
    """What computes with tensors what the op computes with arrays. The op is none of ops_without_graph."""
    if has_method(op):
        return cast(Any, op).tensorflow
    if type(op) in MOVING_OPS:
        return partial(op, rng=cast(Any, None))
    return partial(TWINS[type(op)], op)


def _narrowed(key: str, value: Any) -> Any:
    """Narrows 64 bits to 32, because JAX computes in 32. A value out of range is an error; floats are rounded."""
    wide = np.dtype(value.dtype.as_numpy_dtype)
    dtype = delivered(wide)
    if dtype == wide:
        return value
    small = tf.cast(value, dtype)
    if dtype.kind == "f":
        same = tf.math.is_finite(small) == tf.math.is_finite(value)
    else:
        same = tf.cast(small, value.dtype) == value
    message = f"{key!r} has a value out of the range of {dtype}. Its maximum and minimum are"
    return checked(small, tf.reduce_all(same), [message, tf.reduce_max(value), tf.reduce_min(value)])
