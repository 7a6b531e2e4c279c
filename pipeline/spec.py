"""What one feature, or one entry of a batch, looks like before any is read.

Parsing states it from the schema, ops change it, an Input promises it. NumPy only."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.shards.schema import Schema

__all__ = ["ArraySpec", "Layout", "feature_specs"]

BYTES = np.dtype(object)  # TensorFlow's own choice for tf.string
Layout = Schema  # what is inside a record
_DTYPES = {"bytes": BYTES, "int64": np.dtype(np.int64), "float32": np.dtype(np.float32)}


@dataclass(frozen=True)
class ArraySpec:
    """Shape, dtype (object for bytes), and the value that fills a padding row."""

    shape: tuple[int | None, ...]
    dtype: np.dtype
    pad: float = 0

    @property
    def fits_a_batch(self) -> bool:
        """Whether rows of it stack to an array that a device can take."""
        return None not in self.shape and self.dtype != BYTES


def feature_specs(schema: Schema) -> Mapping[str, ArraySpec]:
    """The features of one record as they are parsed."""
    return {key: ArraySpec(feature.shape, _DTYPES[feature.dtype]) for key, feature in schema.features.items()}
