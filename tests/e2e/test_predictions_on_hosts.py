"""Two processes predict: each its own rows, or all on each; iterators that are dropped leave nobody waiting."""

import pytest

pytestmark = pytest.mark.slow

BOUND = 8.0  # host_timeout_seconds
SLACK = 6.0  # a process that ends on a busy machine
RECORDS = 75


@pytest.fixture(scope="module")
def ended(run_hosts):
    return run_hosts("predictions", 2, 2, host=1, timeout_seconds=150, host_timeout_seconds=BOUND)


@pytest.mark.parametrize("layout", ["data", "model across the hosts"])
def test_every_host_has_its_own_rows_in_order_and_gathered_all_have_all(ended, layout):
    everything = [[index, float(index)] for index in range(RECORDS)]
    for process in ended:
        assert process.report[f"{layout}, True"] == everything
    own = [process.report[f"{layout}, False"] for process in ended]
    for rows in own:
        assert rows == sorted(rows)
    if layout == "data":
        assert sorted(own[0] + own[1]) == everything
        assert [index for index, _ in own[1]] == [i for i in range(RECORDS) if i % 16 >= 8]
    else:
        assert own[0] == own[1] == everything  # both hold a copy of each row


def test_hosts_that_close_predictions_one_dispatch_apart_continue(ended):
    for process in ended:
        assert process.report["after"] == RECORDS


def test_on_records_receives_the_records_of_all_hosts_on_each(ended):
    for process in ended:
        assert process.report["evaluated"] == [[index, float(index)] for index in range(RECORDS)]


def test_a_host_that_alone_closes_its_predictions_ends_the_others_with_the_reason(ended):
    dropped = float((ended[0].out / "died").read_text())
    assert "all" not in ended[0].report
    for process in ended:
        assert process.code in (1, 3), process.printed
        assert process.at - dropped < BOUND + SLACK
    stopped = "host 1 of 2 failed: it stopped iterating over its predictions after 2 dispatches"
    assert f"{stopped}, but other hosts continued for 4 s" in ended[0].printed
