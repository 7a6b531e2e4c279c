"""The distribution of numbers as a block of a page."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.pages.page import Histogram
from pipeline.sizes import counted, format_bytes, format_number

BINS = 40


def histogram(title: str, values: np.ndarray, unit: str, *, note: str = "") -> Histogram:
    """How many of the numbers are in each of at most 40 bins; non-finite ones are left out, which its note states.

    unit: what they are numbers of; bytes are shown as sizes."""
    values = np.asarray(values, np.float64).ravel()
    finite = values[np.isfinite(values)]
    shown, after = (format_bytes, "") if unit == "bytes" else (format_number, f" {unit}".rstrip())
    if bad := len(values) - len(finite):
        note = f"{note} {bad:,} value{'s are' if bad != 1 else ' is'} not finite and not shown.".strip()
    if not len(finite):
        return Histogram([], "", "", title=title, note=note or "No values.")
    counts, edges = np.histogram(finite, _bins(finite))
    low, middle, high = np.percentile(finite, [0, 50, 100])
    told = f"{counted(len(finite), 'value')}, median {shown(middle)}{after}. {note}".strip()
    rows = list(zip(_names(edges, shown), counts.tolist(), strict=True))
    return Histogram(rows, f"{shown(low)}{after}", f"{shown(high)}{after}", title=title, note=told)


def _bins(finite: np.ndarray) -> Any:
    """The number of bins, or their edges: a bin for each integer, if these are few."""
    width, resolution = np.ptp(finite), np.spacing(np.abs(finite).max())
    if width < BINS and resolution < 0.5 and (finite == finite.round()).all():
        return np.arange(finite.min(), finite.max() + 2) - 0.5
    if width == 0 and resolution >= 0.5:  # a bin needs a width
        return finite[0] + resolution * np.array([-1, 1])
    return max(1, min(BINS, int(width / resolution)))


def _names(edges: np.ndarray, shown: Callable[[float], str]) -> list[str]:
    if (edges % 1 == 0.5).all() and (np.diff(edges) == 1).all():
        return [shown(edge + 0.5) for edge in edges[:-1].tolist()]
    ends = [shown(edge) for edge in edges.tolist()]
    return [f"{low} to {high}" for low, high in itertools.pairwise(ends)]
