"""Damaged records that one host meets and the other does not: the run is the same, and all hosts count them alike."""

import json
import shutil

import pytest
from damage import flip_payload_bits

from trainer.reports.seen_records import seen_steps
from trainer.reports.segments import read_history

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BAD = 30  # in an evaluation by 48 it is the second host's
TRAINED_BAD, STAND_IN = (7, 8), 9


@pytest.fixture(scope="module")
def runs(run_hosts, digits, tmp_path_factory):
    """(report of the one host, [of each of two], what is in the quarantine file of the two, the work directories)."""
    directory = tmp_path_factory.mktemp("bad")
    data_dir = str(shutil.copytree(digits[1], directory / "data"))
    flip_payload_bits(data_dir, "validation", BAD)
    flip_payload_bits(data_dir, "train", *TRAINED_BAD)

    def ran(count, devices):
        files = {"data_dir": data_dir, "quarantine_file": str(directory / f"bad of {count}.jsonl")}
        ended = run_hosts("bad_records", count, devices, host_timeout_seconds=60, **files)
        assert [process.code for process in ended] == [0] * count, "\n".join(
            process.printed for process in ended
        )
        workdirs.append(str(ended[0].out / "workdir"))
        return [process.report for process in ended]

    workdirs = []
    one, two = ran(1, 2), ran(2, 1)
    lines = (directory / "bad of 2.jsonl").read_text().splitlines()
    return one[0], two, [json.loads(line) for line in lines], workdirs


def joined(hosts, what):
    """[steps] of record ids in the order of the global batch's rows."""
    steps = []
    for parts in zip(*(host[what] for host in hosts), strict=True):
        rows = [row for rows, ids, _ in parts for row in zip(rows, ids, strict=True)]
        steps.append([number for _, number in sorted(rows)])
    return steps


def test_all_hosts_count_the_bad_record_that_one_has_met_and_have_the_same_metrics(runs):
    one, two, *_ = runs
    assert [host["counted"] for host in (one, *two)] == [[367, 1, False]] * 3
    assert [host["met"] for host in two] == [[], [BAD]]
    assert two[0]["metrics"] == two[1]["metrics"]
    assert two[0]["metrics"]["loss"] == pytest.approx(one["metrics"]["loss"], rel=1e-4)
    assert two[0]["metrics"]["accuracy"] == one["metrics"]["accuracy"]
    assert joined(two, "evaluated") == joined([one], "evaluated")


def test_two_hosts_train_past_damage_on_the_records_that_one_trains_on(runs):
    one, two, *_ = runs
    steps = joined(two, "trained")
    assert steps == joined([one], "trained")
    numbers = [number for batch in steps for number in batch]
    assert not set(TRAINED_BAD) & set(numbers)
    assert numbers.count(STAND_IN) >= 2
    assert two[0]["last step"]["place"] == one["last step"]["place"]


def test_the_records_are_named_that_one_host_or_two_trained_on(runs):
    one, _, _, workdirs = runs
    for workdir in workdirs:
        steps = seen_steps(read_history(workdir), workdir, range(1, 45))
        found = [[record.index for record in seen.records] for seen in steps]
        assert found == joined([one], "trained")[:44]


def test_one_file_names_what_both_hosts_have_met(runs):
    assert sorted(line["record_id"] for line in runs[2]) == sorted([*TRAINED_BAD, BAD])
