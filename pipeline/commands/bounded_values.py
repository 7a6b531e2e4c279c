"""Numbers in bounded memory: their count and range, and an unbiased sample of them."""

import math
from array import array
from collections.abc import Sequence

import numpy as np

from pipeline.pages.figures import not_finite

MOST_VALUES = 50_000  # of a feature: 0.4 MB
FEW = 32  # values, up to which a loop is faster than NumPy


class BoundedValues:
    """Keeps the finite numbers, or a random sample if there are more than MOST_VALUES; the same in
    every run.

    count: of all numbers; bad: of those that are not finite. low, high: exact, so integers stay
    integers; infinity and its negative if no number is finite."""

    def __init__(self) -> None:
        self.count = self.bad = 0
        self.low = math.inf
        self.high = -math.inf
        self._kept = array("d")
        self._part = 1
        self._rng = np.random.default_rng(0)

    def add(self, values: Sequence[float]) -> None:
        """Takes these numbers."""
        finite = _finite(values)
        self.count += len(values)
        self.bad += len(values) - len(finite)
        if not finite:
            return
        self.low = min(self.low, *finite)
        self.high = max(self.high, *finite)
        if self._part > 1:
            finite = np.asarray(finite, np.float64)[
                self._rng.random(len(finite)) < 1 / self._part
            ].tolist()
        self._kept.extend(finite)
        while len(self._kept) > MOST_VALUES:
            half = self._rng.random(len(self._kept)) < 0.5
            self._kept = array("d", np.frombuffer(self._kept)[half].tobytes())
            self._part *= 2

    @property
    def complete(self) -> bool:
        """Whether all finite numbers are kept."""
        return self._part == 1

    @property
    def note(self) -> str:
        """What those that were kept leave out, in sentences; "" if nothing."""
        sampled = f"A random sample of {self.count:,} values, plus the smallest and the largest."
        return f"{'' if self.complete else sampled} {not_finite(self.bad)}".strip()

    @property
    def kept(self) -> np.ndarray:
        """float64 [n]: those that were kept; always with the smallest and the largest."""
        return np.array(
            self._kept if self.complete else [*self._kept, self.low, self.high], np.float64
        )


def _finite(values: Sequence[float]) -> Sequence[float]:
    if len(values) <= FEW:
        return [value for value in values if math.isfinite(value)]
    numbers = np.asarray(values)
    if numbers.dtype.kind != "f":
        return values
    return numbers[np.isfinite(numbers)].tolist()
