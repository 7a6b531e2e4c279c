import pytest

from pipeline.errors import BatchSizeError, OptionError
from pipeline.hosts import ONE_HOST, Hosts


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_the_hosts_rows_are_the_batch_without_gap_or_overlap(count):
    rows = [row for h in range(count) for ranges in Hosts(h, count).host_rows(24) for row in ranges]
    assert rows == list(range(24))


def test_rows_of_a_sharding_are_taken_as_given():
    rows = (range(12, 16), range(0, 4))
    assert Hosts(1, 4, devices=8, rows=rows).host_rows(16) == rows


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: Hosts(0, 4, devices=32).check_batch(1000), BatchSizeError, r"1000 is not divisible by 32 devices \(4 hosts x 8\).* 992, 1024"),
        (lambda: Hosts(0, 8).check_batch(5), BatchSizeError, r"5 is not divisible by 8 .* are: 8\."),
        (lambda: ONE_HOST.host_rows(0), BatchSizeError, "global_batch=0"),
        # Rows would be lost in silence: 3 hosts of 8 // 3 rows each are not 8.
        (lambda: Hosts(0, 3, devices=4).host_rows(8), BatchSizeError, "8 is not divisible by 12"),
        (lambda: Hosts(0, 2, rows=(range(8, 16),)).host_rows(8), BatchSizeError, r"rows range\(8, 16\) of host 0 are not inside a global_batch of 8"),
        (lambda: Hosts(2, 2), OptionError, r"host index 2 is not in 0\.\.1 \(2 hosts\)"),
        (lambda: Hosts(0, 1, devices=0), OptionError, "devices=0"),
    ],
)  # fmt: skip
def test_batches_and_hosts_that_do_not_fit_are_refused_with_the_nearest_that_do(call, error, text):
    with pytest.raises(error, match=text):
        call()
