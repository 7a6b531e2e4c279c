"""SIGTERM or SIGINT on hosts: both save the same step and end with the same code, and the run goes on bit for bit.

On two processes of two devices each. One process alone is in tests/trainer/loop/test_preemption.py."""

import re
import signal

import pytest
from sweep import SWEEP

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NUMBER = {("train", 3): signal.SIGINT}  # of the others SIGTERM
CODE = {signal.SIGTERM: 75, signal.SIGINT: 130}
K = 7  # divides neither the steps nor the evaluations; 1 and 3 are those of other runs
ROWS = [("train", 3), ("evaluate", 3), ("begin", K)]
ROWS += [("train", 1)] if SWEEP else []
HOST = {"train": 1, "evaluate": 0, "begin": 1}  # which one is asked to end
# as in host_preemption.py: the step that the signal comes after; steps from save to save
AT, EVERY = (3, 20)
LATE = 4  # dispatches that may still be made


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("preempted")


@pytest.fixture(scope="module")
def preempted(start_hosts, work):
    """{row: [Ended of each process]}. Two rows at a time: half of their time they wait."""
    ended, under_way = {}, None
    for row in [*ROWS, None]:
        following = None
        if row:
            order = {"where": row[0], "k": row[1], "host": HOST[row[0]], "number": number_of(row)}
            order["workdir"] = workdir_of(work, row)
            if order["number"] == signal.SIGINT:  # as a terminal sends it
                order["host"] = "all"
            following = start_hosts("preempted", 2, 2, host_timeout_seconds=30, **order)
        if under_way:
            ended[under_way[0]] = under_way[1].end()
        under_way = (row, following)
    return ended


@pytest.fixture(scope="module")
def reports(run_hosts, preempted, work):
    """[{"straight" or row: report} of each process] of a run that nobody interrupts, and of those that went on."""
    runs = {"straight": (1, str(work / "straight"))}
    runs |= {f"{where} {k}": (k, workdir_of(work, (where, k))) for where, k in ROWS}
    ended = run_hosts("goes_on", 2, 2, runs=runs, host_timeout_seconds=60)
    assert [process.code for process in ended] == [0, 0], ended[0].printed
    return [process.report for process in ended]


def number_of(row):
    return NUMBER.get(row, signal.SIGTERM)


def workdir_of(work, row):
    return str(work / "-".join(map(str, row)))


def test_a_dense_model_has_the_same_bits_for_any_steps_per_dispatch_on_two_hosts(reports):
    for report in reports:
        one, seven = report["straight"], report[f"begin {K}"]
        assert one["start"] == 0
        assert seven["state"] == one["state"]
        assert seven["evaluations"] == one["evaluations"]
        assert seven["executables"] <= 2


@pytest.mark.parametrize(("where", "k"), ROWS)
def test_a_signal_ends_all_hosts_with_its_exit_code_and_is_reported(preempted, where, k):
    number = number_of((where, k))
    for process in preempted[where, k]:
        assert process.code == CODE[number], process.printed
        assert "trained" not in process.report
        assert "FATAL" not in process.printed
        if number == signal.SIGINT:
            step = re.search(r"step (\d+) is saved|$", process.report["error"])[1] or f"{EVERY}"
            assert re.match(r"Interrupted: SIGINT on host [01] of 2; ", process.report["error"])
            assert process.report["evaluated"] == int(step)
        else:
            assert f"Preempted: SIGTERM on host {HOST[where]} of 2" in process.report["error"]


@pytest.mark.parametrize(("where", "k"), ROWS)
def test_a_preempted_run_resumes_and_ends_with_the_bits_of_the_straight_run(reports, where, k):
    starts = {
        "train": range(AT, AT + 1 + (LATE + 1) * k),
        "evaluate": [EVERY],
        "begin": range(1 + (LATE + 1) * k),
    }[where]
    for report in reports:
        mine, expected = report[f"{where} {k}"], report["straight"]
        assert mine["start"] in starts
        assert mine["state"] == expected["state"]
        assert mine["last"] == expected["last"]
        assert mine["evaluations"] == expected["evaluations"]  # the one that was cut off is made up
