"""Ops that are written for graphs of TensorFlow, as ops of infeed. TensorFlow is imported when one
is used."""

import importlib.util
import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from pipeline.decoding.op import DropsFeatures, Features, Specs
from pipeline.decoding.rng import Rng
from pipeline.errors import SchemaError
from pipeline.spec import BYTES, ArraySpec

__all__ = ["GraphOp", "TensorFlowOp"]

_TRACING = threading.Lock()


class GraphOp(Protocol):
    """An op that takes and returns tensors, and a seed, int32 [2], in place of an Rng."""

    @property
    def reads(self) -> tuple[str, ...]:
        """See Op."""
        ...

    def output_spec(self, specs: Specs) -> Specs:
        """See Op."""
        ...

    def __call__(self, features: Features, seed: Any) -> Features:
        """Runs in a graph, which is traced once for features of the same shapes and dtypes."""
        ...


@dataclass(frozen=True)
class TensorFlowOp:
    """Runs `op` in a graph of TensorFlow, one record at a time. An export contains the same graph.

    Calling the graph takes 0.4 ms, whatever it computes. An InvalidArgumentError in it counts as an
    error of the record."""

    op: GraphOp
    _graphs: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    # features of any length
    _ragged: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def __reduce__(self) -> Any:
        return TensorFlowOp, (self.op,)  # graphs cannot be pickled

    @property
    def reads(self) -> tuple[str, ...]:
        """See Op."""
        return self.op.reads

    def output_spec(self, specs: Specs) -> Specs:
        """See Op."""
        if importlib.util.find_spec("tensorflow") is None:
            _tensorflow()  # raises now: a missing package is not an error of a record
        self._ragged.update(key for key in self.reads if key in specs and None in specs[key].shape)
        return self.op.output_spec(specs)

    def dropped_features(self, specs: Specs) -> Collection[str]:
        """See DropsFeatures."""
        return self.op.dropped_features(specs) if isinstance(self.op, DropsFeatures) else ()

    def __call__(self, features: Features, rng: Rng) -> Features:
        """See Op."""
        tf = _tensorflow()
        op = self.op
        specs = tuple((key, _spec(features[key], key in self._ragged)) for key in self.reads)
        with _TRACING:  # the first of several decoding threads traces, the others find its graph
            if specs not in self._graphs:
                function = tf.function(lambda inputs, seed: dict(op(inputs, seed)), autograph=False)
                self._graphs[specs] = function.get_concrete_function(
                    {key: tf.TensorSpec(spec.shape, spec.dtype) for key, spec in specs},
                    tf.TensorSpec([2], tf.int32),
                )
        graph = self._graphs[specs]
        inputs = {key: tf.constant(features[key]) for key in self.reads}
        try:
            tensors = graph(inputs, tf.constant(rng.key, tf.int32))
        except tf.errors.InvalidArgumentError as e:
            raise SchemaError(f"{self.op!r}: {e.message.partition(chr(10))[0]}") from e
        return {key: value.numpy() for key, value in tensors.items()}

    def tensorflow(self, features: Features) -> Features:
        """What an export computes: the op with a seed of zeros."""
        return self.op(features, _tensorflow().zeros(2, "int32"))


def _tensorflow() -> Any:
    from pipeline.tf_cpu import tf

    return tf


def _spec(value: Any, ragged: bool) -> ArraySpec:
    if isinstance(value, bytes):
        return ArraySpec((), BYTES)
    return ArraySpec((None,) if ragged else np.shape(value), np.asarray(value).dtype)
