"""Two processes train and evaluate on tf.data: on a program that each of them runs, and on infeed's datasets."""

import pytest

pytestmark = pytest.mark.slow

RECORDS = 75
PROGRAMS = ["program", "program, stopped"]
DATASETS = ["datasets", "tf_data"]


@pytest.fixture(scope="module")
def ended(run_hosts):
    """The processes of two hosts with two devices each, and of one with four."""
    order = {"timeout_seconds": 150, "host_timeout_seconds": 20.0}
    return [*run_hosts("programs", 2, 2, **order), *run_hosts("programs", 1, 4, **order)]


@pytest.mark.parametrize("names", [PROGRAMS, DATASETS])
def test_all_hosts_train_the_same_bits_stopped_or_not_and_on_either_kind_of_dataset(ended, names):
    for process in ended:
        first, second = (process.report[name] for name in names)
        assert first == second
    hosts, alone = ended[0].report[names[0]], ended[2].report[names[0]]
    assert ended[1].report[names[0]][1:] == hosts[1:]
    assert hosts[1] == pytest.approx(alone[1], rel=1e-4)


def test_evaluations_in_turn_with_the_training_are_compared_apart(ended):
    for process in ended:
        assert process.report["in turn"] == [process.report["program"][0], [RECORDS, RECORDS]]


@pytest.mark.parametrize("name", PROGRAMS + DATASETS)
def test_an_evaluation_counts_every_record_once_and_proves_it_if_checksums_are_known(ended, name):
    for process in ended:
        assert process.report[name][2:] == [RECORDS, RECORDS, name in DATASETS]


def test_hosts_whose_programs_have_another_order_end_with_an_error_that_says_so(ended):
    for name, step in (("unlike", 5), ("predictions unlike", 5), ("training unlike", 5)):
        errors = [process.report[name] for process in ended[:2]]
        assert any(error.startswith("InputError") for error in errors), errors
        assert all(f"different batches up to step {step}, but each must deliver the same" in error for error in errors)


def test_hosts_that_would_each_count_every_record_end_with_the_form_for_several_hosts(ended):
    for process in ended[:2]:
        assert "has global_batch=8, the trainer 16 (eval). Give both in an input_fn" in process.report["per host"]


def test_a_program_that_was_transformed_afterwards_cannot_be_compared_which_the_log_says(ended):
    for process in ended[:2]:
        assert "Transform it before training_batches or evaluation_batches, not after" in process.printed


def test_a_dataset_in_place_of_the_function_is_refused_with_the_form_for_several_hosts(ended):
    for process in ended[:2]:
        assert (
            "PrefetchDataset, and this run has several hosts. Give a function that makes it" in process.report["itself"]
        )
