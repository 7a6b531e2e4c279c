"""Serialised examples to tensors with the shapes that the schema states.

One op for a whole batch; the decoder asks for the features that ops and keys need, and no others."""

from collections.abc import Iterable
from typing import Any

from pipeline.ops import Features
from pipeline.shards.errors import OptionError, did_you_mean
from pipeline.shards.schema import Feature, Schema
from pipeline.tf_cpu import tf

__all__ = ["parse_examples"]

_DTYPES = {"bytes": tf.string, "int64": tf.int64, "float32": tf.float32}


def parse_examples(schema: Schema, keys: Iterable[str], payloads: Any) -> Features:
    """The features `keys` of n serialised examples (string [n]): bytes, int64 or float32 [n, *shape].

    A (None,) feature comes as a RaggedTensor. An optional feature that is absent is 0 or b"", or an empty row.
    Raises OptionError for an unknown key; in the graph, InvalidArgumentError for a record without a feature."""
    unknown = [key for key in keys if key not in schema.features]
    if unknown:
        raise OptionError(
            f"schema {schema.name!r} has no feature {unknown[0]!r}.{did_you_mean(unknown[0], schema.features)}"
        )
    wanted = {key: _parsing(schema.features[key]) for key in keys}
    return tf.io.parse_example(payloads, wanted) if wanted else {}


def _parsing(feature: Feature) -> Any:
    dtype = _DTYPES[feature.dtype]
    if None in feature.shape:
        return tf.io.RaggedFeature(dtype)
    if not feature.optional:
        return tf.io.FixedLenFeature(feature.shape, dtype)
    default = tf.fill(feature.shape, tf.constant(b"" if dtype == tf.string else 0, dtype))
    return tf.io.FixedLenFeature(feature.shape, dtype, default)
