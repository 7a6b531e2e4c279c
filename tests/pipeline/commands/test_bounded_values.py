"""Numbers in a bounded memory: count, range and what is not finite are exact, and the sample is fair."""

import numpy as np
import pytest

from pipeline.commands.bounded_values import MOST_VALUES, BoundedValues


@pytest.mark.parametrize(("records", "each"), [(10, 3), (2 * MOST_VALUES, 1), (100, 5000)])
def test_kept_values_are_bounded_in_number_and_spread_over_all_records(records, each):
    values = BoundedValues()
    for number in range(records):
        values.add([number] * each)
    assert values.count == records * each
    assert values.complete == (values.count <= MOST_VALUES)
    assert min(values.count, MOST_VALUES / 4) < len(values.kept) + 1 <= MOST_VALUES + 3
    assert (values.kept.min(), values.kept.max()) == (0, records - 1)
    assert abs(np.median(values.kept) - records / 2) < max(1, records / 50)


def test_kept_values_are_unbiased_for_periodic_data_and_have_no_nan():
    values = BoundedValues()
    for _ in range(MOST_VALUES // 2):
        values.add([0.0, 1.0, np.nan, 1.0])
    assert not values.complete
    assert abs(values.kept.mean() - 2 / 3) < 0.02
    assert values.bad == MOST_VALUES // 2


@pytest.mark.parametrize("each", [1, 1000])
def test_the_range_and_the_number_of_values_that_are_not_finite_are_exact(each):
    numbers = np.random.default_rng(0).standard_normal(120_000)
    numbers[[7, 70_000]] = 1000, -1000
    numbers[[8, 70_001, 70_002]] = np.inf, -np.inf, np.nan
    values = BoundedValues()
    for part in np.split(numbers, len(numbers) // each):
        values.add(part.tolist())
    assert (values.low, values.high, values.bad, values.count) == (-1000, 1000, 3, 120_000)
    assert (values.kept.min(), values.kept.max()) == (-1000, 1000)


def test_integers_stay_exact():
    values = BoundedValues()
    values.add([1_700_000_000_000_000_000, 1_700_000_000_000_000_100])
    assert (values.low, values.high) == (1_700_000_000_000_000_000, 1_700_000_000_000_000_100)
    many = BoundedValues()
    many.add(list(range(2**60, 2**60 + 40)))
    assert (many.low, many.high) == (2**60, 2**60 + 39)


def test_without_finite_numbers_there_is_no_range():
    values = BoundedValues()
    values.add([np.nan, np.inf])
    assert (values.low, values.high, values.bad, len(values.kept)) == (np.inf, -np.inf, 2, 0)
