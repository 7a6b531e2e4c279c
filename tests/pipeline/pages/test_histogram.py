"""Histograms: which values they count, which they leave out, and what they say."""

import numpy as np
import pytest

from pipeline.pages.figures import BINS, histogram


@pytest.mark.parametrize(
    ("values", "ends", "told"),
    [
        ([3, 1, 2, 2], ("1 pixels", "3 pixels"), "4 values, median 2 pixels."),
        (
            [0.5, np.nan, np.inf, 1.5],
            ("0.5 pixels", "1.5 pixels"),
            "2 values are not finite and not shown.",
        ),
        (
            [1.0, np.nan],
            ("1 pixels", "1 pixels"),
            "1 value, median 1 pixels. 1 value is not finite and not shown.",
        ),
        (
            [2.0**60, 2.0**60 + 256, 2.0**60 + 512],
            ("1.15e+18 pixels", "1.15e+18 pixels"),
            "3 values",
        ),
        ([2.0**60] * 2, ("1.15e+18 pixels", "1.15e+18 pixels"), "2 values"),
        ([1.0, np.nextafter(1.0, 2.0)], ("1 pixels", "1 pixels"), "2 values"),
        ([], ("", ""), "No values."),
        ([10_640.4, 1_234_567], ("10,640 pixels", "1,234,567 pixels"), "median 622,604 pixels"),
        ([1e-9, 1e15], ("1e-09 pixels", "1e+15 pixels"), "2 values"),
    ],
)
def test_a_histogram_counts_every_finite_value_and_says_which_it_leaves_out(values, ends, told):
    made = histogram(np.array(values), "pixels")
    assert sum(count for _, count in made.bins) == np.isfinite(values).sum()
    assert len(made.bins) <= BINS
    assert (made.low, made.high) == ends
    assert told in made.summary


def test_few_integers_have_a_bar_each_and_other_numbers_a_range():
    assert histogram(np.array([4, 5, 5, 7])).bins == [("4", 1), ("5", 2), ("6", 0), ("7", 1)]
    assert histogram(np.array([0.0, 10.5])).bins[0] == ("0 to 0.263", 1)


def test_bytes_are_shown_as_sizes():
    made = histogram(np.array([1285, 8820]), "bytes")
    assert (made.low, made.high, made.summary) == (
        "1.28 KB",
        "8.82 KB",
        "2 values, median 5.05 KB.",
    )
