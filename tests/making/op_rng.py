"""The random numbers that an op gets for one record."""

from collections.abc import Sequence

import numpy as np

from pipeline.decoding.rng import Rng, rngs_of

__all__ = ["rng_of"]


def rng_of(key: np.ndarray | Sequence[int] = (7, -3)) -> Rng:
    """A stream that nobody has drawn from yet."""
    return rngs_of(np.array([key], np.int32))[0]
