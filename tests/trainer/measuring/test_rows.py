"""The arithmetic of a row: rates, their order, shares, and the keys of its JSON."""

import pytest

from trainer.measuring.repeating import Times
from trainer.measuring.rows import Row, per_call, rate, skipped

TIMES = Times(median=0.5, shortest=0.25, longest=2.0, repetitions=5)


def test_a_rate_is_lowest_where_the_time_was_longest():
    row = rate("matmul", "8x8", "float32", "tflops_per_second", 3e12, TIMES)
    assert row == Row("matmul", "8x8", "float32", "tflops_per_second", 6.0, 1.5, 12.0, 5)
    assert rate("memory", "1 MiB", None, "gigabytes_per_second", 3e9, TIMES).median == 6.0


def test_a_dispatch_takes_its_part_of_the_call_in_microseconds():
    row = per_call("dispatch", "synchronous", 1000, TIMES)
    assert row == Row("dispatch", "synchronous", None, "microseconds_per_dispatch", 500.0, 250.0, 2000.0, 5)


@pytest.mark.parametrize(("longest", "noisy"), [(1.0, False), (1.2, False), (1.5, True)])
def test_a_row_is_noisy_if_its_values_differ_by_more_than_thirty_percent_of_the_median(longest, noisy):
    row = rate("matmul", "8x8", "float32", "tflops_per_second", 1e12, Times(1.0, 1.0, longest, 3))
    assert row.spread == pytest.approx(1 - 1 / longest)
    assert row.noisy == noisy


def test_only_flops_have_a_share_of_a_peak_that_is_known():
    flops = rate("matmul", "8x8", "bfloat16", "tflops_per_second", 3e12, TIMES)
    assert flops.share_of(24) == 0.25
    assert flops.share_of(None) is None
    assert rate("memory", "1 MiB", None, "gigabytes_per_second", 3e9, TIMES).share_of(24) is None
    assert skipped("matmul", "8x8", "bfloat16", "tflops_per_second", "too slow").share_of(24) is None


def test_the_keys_of_the_json_have_units():
    row = rate("matmul", "8x8", "bfloat16", "tflops_per_second", 3e12, TIMES)
    assert row.json(0.25) == {
        "measurement": "matmul",
        "size": "8x8",
        "dtype": "bfloat16",
        "tflops_per_second": 6.0,
        "tflops_per_second_min": 1.5,
        "tflops_per_second_max": 12.0,
        "share_of_peak": 0.25,
        "repetitions": 5,
        "noisy": True,
        "skipped": None,
    }
    assert {*per_call("dispatch", "synchronous", 1, TIMES).json(None)} == {
        *("measurement", "size", "dtype", "repetitions", "noisy", "skipped"),
        *("microseconds_per_dispatch", "microseconds_per_dispatch_min", "microseconds_per_dispatch_max"),
    }


def test_a_skipped_row_has_a_reason_instead_of_values():
    row = skipped("memory", "1 MiB", "float32", "gigabytes_per_second", "would take about 9 s").json(None)
    assert row["skipped"] == "would take about 9 s"
    assert (row["gigabytes_per_second"], row["repetitions"], row["noisy"]) == (None, 0, False)
