"""Two processes train and evaluate on a program of tf.data that each of them runs; unlike programs are refused."""

import pytest

pytestmark = pytest.mark.slow

RECORDS = 75


@pytest.fixture(scope="module")
def ended(run_hosts):
    """The processes of two hosts with two devices each, and of one with four."""
    order = {"timeout_seconds": 150, "host_timeout_seconds": 20.0}
    return [*run_hosts("programs", 2, 2, **order), *run_hosts("programs", 1, 4, **order)]


def test_all_hosts_train_the_same_bits_stopped_or_not_and_count_every_record_once(ended):
    for process in ended:
        assert process.report["program"] == process.report["program, stopped"]
        assert process.report["program"][2:] == [RECORDS, RECORDS, False]
    hosts, alone = ended[0].report["program"], ended[2].report["program"]
    assert ended[1].report["program"][1:] == hosts[1:]
    assert hosts[1] == pytest.approx(alone[1], rel=1e-4)


def test_hosts_whose_programs_have_another_order_end_with_an_error_that_says_so(ended):
    for name in ("unlike", "training unlike"):
        errors = [process.report[name] for process in ended[:2]]
        assert all(error.startswith("DisagreementError") for error in errors), errors
        assert all(
            "different batches up to step 5, but each must deliver the same" in error
            for error in errors
        )


def test_datasets_that_are_no_hosts_part_are_refused_with_the_form_for_several_hosts(ended):
    for process in ended[:2]:
        assert (
            "has global_batch=8, the trainer 16 (eval). Leave out global_batch"
            in process.report["per host"]
        )
        assert (
            "this run has several hosts. Give a function that makes it" in process.report["itself"]
        )


def test_a_program_that_was_transformed_afterwards_cannot_be_compared_which_the_log_says(ended):
    for process in ended[:2]:
        assert process.report["mapped"]
        assert (
            "Transform it before training_batches or evaluation_batches, not after"
            in process.printed
        )
