"""SIGTERM on one host of two: both save the same step and end with the same code, and the run goes on bit for bit.

On two processes of two devices each. One process alone is in tests/trainer/calls/test_preemption.py."""

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ROWS = [(where, k) for where in ("train", "evaluate", "compile") for k in (1, 10)]
STRAIGHT = (1, 2, 7, 10, 50)
HOST = {"train": 1, "evaluate": 0, "compile": 1}  # which one is asked to end
LATE = 4  # dispatches that may still be made


@pytest.fixture(scope="module")
def runs(start_hosts, run_hosts, tmp_path_factory):
    """({row: [Ended of each process]}, {name: [report of each process]}): the preempted ones, and those that went on
    in their work directories, or began and were not interrupted."""
    work = tmp_path_factory.mktemp("preempted")

    def workdir(row):
        return str(work / "-".join(map(str, row)))

    def started(where, k):
        order = {"where": where, "k": k, "host": HOST[where], "workdir": workdir((where, k))}
        return start_hosts("preempted", 2, 2, host_timeout_seconds=30, **order)

    straight = {f"straight {k}": (k, workdir(["straight", k])) for k in STRAIGHT}
    first = run_hosts("goes_on", 2, 2, runs=straight, host_timeout_seconds=60)  # compiles for all that come
    ended, under_way = {}, None
    for row in [*ROWS, None]:  # two at a time: half of their time they wait
        following = started(*row) if row else None
        if under_way:
            ended[under_way[0]] = under_way[1].end()
        under_way = (row, following)
    again = {f"{where} {k}": (k, workdir((where, k))) for where, k in ROWS}
    second = run_hosts("goes_on", 2, 2, runs=again, host_timeout_seconds=60)
    for process in [*first, *second]:
        assert process.code == 0, process.printed
    return ended, {
        **{name: [process.report[name] for process in first] for name in straight},
        **{name: [process.report[name] for process in second] for name in again},
    }


@pytest.mark.parametrize("k", STRAIGHT)
def test_a_dense_model_has_the_same_bits_for_any_steps_a_dispatch_on_two_hosts(runs, k):
    single, many = runs[1]["straight 1"], runs[1][f"straight {k}"]
    for host in range(2):
        assert many[host]["state"] == single[host]["state"]
        assert many[host]["evaluations"] == single[host]["evaluations"]
        assert many[host]["executables"] <= 2


@pytest.mark.parametrize(("where", "k"), ROWS)
def test_sigterm_on_one_host_ends_all_with_exit_code_75_and_is_told(runs, where, k):
    for index, process in enumerate(runs[0][where, k]):
        assert process.code == 75, process.printed
        assert "trained" not in process.report
        if where != "compile":
            assert f"Preempted: SIGTERM on host {HOST[where]} of 2" in process.report["error"]
        elif index == HOST[where]:
            assert "Preempted: SIGTERM; all that was done is saved" in process.report["error"]
        else:
            assert f"host {HOST[where]} of 2" in process.report.get("error", process.printed)


@pytest.mark.parametrize(("where", "k"), ROWS)
def test_what_was_preempted_goes_on_from_there_and_ends_with_the_bits_of_the_straight_run(runs, where, k):
    starts = {"train": range(13, 14 + (LATE + 1) * k), "evaluate": [60], "compile": [0]}[where]
    for resumed, straight in zip(runs[1][f"{where} {k}"], runs[1][f"straight {k}"], strict=True):
        assert resumed["start"] in starts
        assert resumed["state"] == straight["state"]
        assert resumed["last"] == straight["last"]
        missing = straight["evaluations"].keys() - resumed["evaluations"].keys()
        assert not missing  # the one that was cut off is made up
        for step, metrics in resumed["evaluations"].items():
            assert metrics == straight["evaluations"][step]
