"""From records to the features of any number of rows, in a graph: parsing, ops, and 32-bit numbers.

The Decoder makes batches of them; an exported model uses the same code, so it sees what an evaluation sees."""

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.decoding.op import Features
from pipeline.decoding.padding import PadTo, pad_rows
from pipeline.decoding.parse import parse_records
from pipeline.decoding.planning import Plan, Step
from pipeline.spec import Layout, delivered
from pipeline.tf_cpu import tf

__all__ = ["RowDecoder"]

PARALLEL_RECORDS = max(10, os.cpu_count() or 1)  # in tf.map_fn


class RowDecoder:
    """Makes the features `keys` of a plan's output, each a tensor [n, *shape]. Everything runs in a graph.

    stored: the features of a record from which it makes them. only_needed: leaves out ops that none of the keys depends
    on, and so what only they read."""

    def __init__(
        self,
        layout: Layout,
        plan: Plan,
        pad_to: Mapping[str, PadTo],
        keys: Sequence[str],
        *,
        only_needed: bool = False,
    ) -> None:
        self._layout, self._pad_to, self._keys, self._specs = layout, pad_to, tuple(keys), plan.specs
        self.num_ops = len(plan.steps)
        self._steps, read = (_needed if only_needed else _all)(plan, keys)
        counted = {pad.length_into: key for key, pad in pad_to.items()}
        self.stored = sorted({counted.get(key, key) for key in read})

    def __repr__(self) -> str:  # equal for equal configurations: graphs are shared by it
        return f"RowDecoder({vars(self)!r})"

    def decode(self, payloads: Any, seeds: Any) -> Features:
        """The features of payloads, string [n]. seeds: int32 [n, ops, 2]."""
        return self.from_stored(parse_records(self._layout, self.stored, payloads), seeds)

    def from_stored(self, parsed: Features, seeds: Any) -> Features:
        """The same, from the features `stored` of n records."""
        features = pad_rows(parsed, self._pad_to)
        if self._steps:
            features = self._apply_ops(features, seeds)
        return {key: _narrowed(key, features[key]) for key in self._keys}

    def _apply_ops(self, parsed: Features, seeds: Any) -> Features:
        def one(example: tuple[Features, Any]) -> Features:
            features, seed = example
            for place, step in self._steps.items():
                features = step(features, seed[place])
            return {key: features[key] for key in self._keys}

        signature = {key: tf.TensorSpec(self._specs[key].shape, self._specs[key].dtype) for key in self._keys}
        return tf.map_fn(one, (parsed, seeds), fn_output_signature=signature, parallel_iterations=PARALLEL_RECORDS)


def _all(plan: Plan, keys: Collection[str]) -> tuple[dict[int, Step], set[str]]:
    return dict(enumerate(plan.steps)), {*plan.reads, *(set(keys) - plan.made)}


def _needed(plan: Plan, keys: Collection[str]) -> tuple[dict[int, Step], set[str]]:
    """The steps by their place in the list, without those that none of the keys depends on; and what they read."""
    steps, wanted = dict[int, Step](), set(keys)
    for place, step in reversed(list(enumerate(plan.steps))):
        if wanted & step.sets.keys():
            steps[place] = step
            wanted = (wanted - step.sets.keys()) | set(step.op.reads)
    return dict(sorted(steps.items())), wanted


def _narrowed(key: str, value: Any) -> Any:
    """Narrows 64 bits to 32, because JAX computes in 32. A value out of range is an error; floats are rounded."""
    wide = np.dtype(value.dtype.as_numpy_dtype)
    dtype = delivered(wide)
    if dtype == wide:
        return value
    small = tf.cast(value, dtype)
    same = (
        tf.math.is_finite(small) == tf.math.is_finite(value)
        if dtype.kind == "f"
        else tf.cast(small, value.dtype) == value
    )
    message = f"{key!r} is delivered as {dtype} and has a value out of range; leave it out of keys, or map it in an op."
    check = tf.debugging.Assert(tf.reduce_all(same), [message, tf.reduce_max(value), tf.reduce_min(value)])
    with tf.control_dependencies([check]):
        return tf.identity(small)
