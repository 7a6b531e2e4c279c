"""The values of one feature of many records."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Column", "Ragged"]


class Ragged(NamedTuple):
    """The values of all records, one after the other, and how many each has: int64 [n]."""

    values: np.ndarray
    lengths: np.ndarray

    def rows(self) -> Sequence[np.ndarray]:
        """The values of each record."""
        return np.split(self.values, np.cumsum(self.lengths)[:-1]) if len(self.lengths) else []


Column = np.ndarray | Ragged
