"""Ops over labels."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.decoding.op import Features, Specs, spec_of
from pipeline.shards.errors import OptionError, SchemaError
from pipeline.spec import ArraySpec
from pipeline.tf_cpu import tf

__all__ = ["MultiHot"]


@dataclass(frozen=True)
class MultiHot:
    """Sets `into` to float32 [num_classes]: 1.0 at every label of the record, 0.0 elsewhere; [0] is label `base`.

    Any integers will do: one, many, of any length, or filled up by pad_to. A record without labels gets zeros.
    ignore: a value that is no label, such as pad_to's or that of an optional feature where a record has none. Any
    other label outside of base..base + num_classes - 1 is an error that names it."""

    key: str
    num_classes: int
    base: int = 0
    into: str = "labels"
    ignore: int | None = None

    def __post_init__(self) -> None:
        if self.num_classes < 1:
            raise OptionError(f"{self!r}: num_classes must be at least 1.")
        if self.ignore is not None and self._is_label(self.ignore):
            raise OptionError(f"{self!r}: ignore must be no label, and {self._labels} are labels.")

    @property
    def reads(self) -> tuple[str, ...]:
        """See Op."""
        return (self.key,)

    def output_spec(self, specs: Specs) -> Specs:
        """See Op."""
        spec = spec_of(self, self.key, specs)
        if spec.dtype.kind not in "iu":
            raise SchemaError(f"{self!r}: {self.key!r} is {spec.dtype} {spec.shape}; it must be integers.")
        if spec.missing is not None and self._is_label(int(spec.missing)):
            raise SchemaError(
                f"{self!r}: {self.key!r} has {spec.missing} where a record has no label, and {self._labels} are "
                "labels: nothing could tell them apart. Give pad_to another value, such as PadTo(..., value=-1), and "
                "store labels that may be absent with shape (None,)."
            )
        if spec.missing not in (None, self.ignore):
            raise SchemaError(
                f"{self!r}: {self.key!r} has {spec.missing} where a record has no label. Give ignore={spec.missing}."
            )
        return {self.into: ArraySpec((self.num_classes,), np.dtype(np.float32))}

    def __call__(self, features: Features, seed: Any) -> Features:
        """See Op."""
        del seed
        labels = tf.reshape(tf.cast(features[self.key], tf.int64), [-1])
        if self.ignore is not None:
            labels = tf.boolean_mask(labels, labels != self.ignore)
        wrong = tf.boolean_mask(labels, (labels < self.base) | (labels >= self.base + self.num_classes))
        message = f"{self.key!r} has a label outside of {self._labels}, the classes of {self!r}:"
        with tf.control_dependencies(
            [tf.raw_ops.Assert(condition=tf.size(wrong) == 0, data=[message, wrong[:1]], summarize=1)]
        ):
            places = labels[:, None] - self.base
        hot = tf.tensor_scatter_nd_update(tf.zeros([self.num_classes]), places, tf.ones_like(labels, tf.float32))
        return {self.into: hot}

    @property
    def _labels(self) -> str:
        return f"{self.base}..{self.base + self.num_classes - 1}"

    def _is_label(self, value: int) -> bool:
        return self.base <= value < self.base + self.num_classes
