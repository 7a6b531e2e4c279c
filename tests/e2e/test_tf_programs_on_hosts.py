"""Processes train and evaluate on programs of tf.data and Grain that each runs completely, or of which each has its part;
unlike programs are refused. SWEEP=1 has more kinds, and one and four processes, too."""

import itertools

import numpy as np
import pytest
from sweep import SWEEP

from pipeline.commands.index import main as index
from pipeline.shards.example import encode_example
from pipeline.shards.frames import frame
from pipeline.shards.schema import Feature, Schema

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

RECORDS, BATCH, STEPS = 75, 16, 120  # as in host_programs
OWN, WITH_STATES = "programs of each host", "a program with states"
# Beside seven other suites, the processes have taken 260 s.
ORDER = {"timeout_seconds": 600, "host_timeout_seconds": 60.0}
COUNTS = (1, 2, 4) if SWEEP else (2,)
AGAIN = "runs from its beginning"


@pytest.fixture(scope="module")
def ended_by_count(run_hosts, shards):
    """By number of processes, how each of them ended; four devices in all."""
    kinds = ["tf.data", "IterDataset"]
    kinds += ["tf.data, sharded by its user", "MapDataset"] if SWEEP else []
    order = ORDER | {"kinds": kinds, "data_dir": shards}
    return {count: run_hosts("programs", count, 4 // count, **order) for count in COUNTS}


@pytest.fixture(scope="module")
def ended(ended_by_count):
    """The processes of two hosts with two devices each."""
    return ended_by_count[2]


def test_all_hosts_train_the_same_bits_stopped_or_not_and_count_every_record_once(ended):
    for process in ended:
        assert process.report["straight"] == process.report["stopped"]
        assert process.report["evaluated"][1:] == [RECORDS, RECORDS, False]
        assert "resuming from the checkpoint of step 40" in process.printed
        assert AGAIN not in process.printed.partition(OWN)[0]
    assert ended[0].report["evaluated"] == ended[1].report["evaluated"]


@pytest.mark.skipif(not SWEEP, reason="SWEEP=1 has more numbers")
def test_an_evaluation_has_the_same_metrics_on_any_number_of_hosts(ended_by_count):
    alone, *several = (ended[0].report["evaluated"][0] for ended in ended_by_count.values())
    for metrics in several:
        assert metrics == pytest.approx(alone, rel=1e-4)


def test_hosts_whose_programs_have_another_order_end_with_an_error_that_says_so(ended):
    for name in ("unlike", "training unlike"):
        errors = [process.report[name] for process in ended]
        assert all(error.startswith("DisagreementError") for error in errors), errors
        assert all(
            "different batches up to step 5, but each must deliver the same" in error
            for error in errors
        )


def test_datasets_that_are_no_hosts_part_are_refused_with_the_form_for_several_hosts(ended):
    for process in ended:
        assert (
            "has global_batch=8, the trainer 16 (eval). Leave out global_batch"
            in process.report["per host"]
        )
        assert (
            "this run has several hosts. Give a function that makes it" in process.report["itself"]
        )


def test_a_program_that_was_transformed_afterwards_cannot_be_compared_which_the_log_says(ended):
    for process in ended:
        assert process.report["mapped"]
        assert (
            "Transform it before training_batches or evaluation_batches, not after"
            in process.printed
        )


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """75 records in eight TFRecord files of unlike sizes, with an index."""
    directory = tmp_path_factory.mktemp("shards")
    schema = Schema("own", {"raw": Feature("bytes"), "image/class/label": Feature("int64")})
    rng = np.random.default_rng(0)
    records = [
        {"raw": rng.bytes(64), "image/class/label": int(rng.integers(1, 11))}
        for _ in range(RECORDS)
    ]
    ends = [0, 4, 16, 24, 40, 41, 55, 66, RECORDS]
    for number, (begin, end) in enumerate(itertools.pairwise(ends)):
        data = b"".join(frame(encode_example(schema, record)) for record in records[begin:end])
        (directory / f"train-{number:05d}.tfrecord").write_bytes(data)
    assert index([f"{directory}/train-*", "--split=train"]) == 0
    return str(directory)


@pytest.fixture(scope="module")
def own(ended_by_count):
    """By number of processes, their reports."""
    return {
        count: [
            {kind: page for kind, page in process.report.items() if isinstance(page, dict)}
            for process in ended
        ]
        for count, ended in ended_by_count.items()
    }


def test_hosts_that_are_asked_to_end_save_the_positions_of_all_first(ended_by_count):
    for count, ended in ended_by_count.items():
        for process in ended:
            assert process.code == (75 if count > 1 else 0), process.printed
            error = process.report.get("error", "")
            assert ("is saved, and the same command resumes" in error) == (count > 1), error


def test_hosts_with_records_of_their_own_train_the_same_bits_stopped_or_not(own):
    for count, reports in own.items():
        for kind in reports[0]:
            for report in reports:
                assert report[kind]["state"] == report[kind]["stopped"], (count, kind)
            metrics = [report[kind]["metrics"] for report in reports]
            assert all(each == metrics[0] for each in metrics)
    if SWEEP:  # the same batches on any number of hosts
        losses = [reports[0]["MapDataset"]["metrics"]["loss"] for reports in own.values()]
        assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-4)


def test_hosts_with_records_of_their_own_count_each_once_and_compute_no_others(own):
    for count, reports in own.items():
        for kind in reports[0]:
            for report in reports:
                assert report[kind]["counted"] == [RECORDS, RECORDS, True], (count, kind)
            computed = [number for report in reports for number in report[kind]["computed"]]
            complete = count if kind == "tf.data, sharded by its user" else 1
            # the first of each host is looked at before
            assert len(computed) <= 1.1 * RECORDS * complete, (count, kind)
            assert set(computed) == set(range(RECORDS))


def test_hosts_that_train_on_their_share_of_the_shards_compute_no_others(own):
    for reports in own.values():
        shares = [report["tf.data"]["computed in training"] for report in reports]
        assert sum(map(len, shares)) <= 1.1 * STEPS * BATCH
        assert sorted(itertools.chain.from_iterable(map(set, shares))) == [*range(RECORDS)]


def test_hosts_resume_shuffled_programs_with_states_each_of_its_own(ended_by_count):
    for ended in ended_by_count.values():
        for process in ended:
            straight, stopped = process.report[WITH_STATES]
            assert stopped == straight
            _, _, printed = process.printed.partition(WITH_STATES)
            assert "resuming from the checkpoint of step 40" in printed
            assert AGAIN not in printed
