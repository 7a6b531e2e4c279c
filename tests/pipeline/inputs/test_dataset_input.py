"""What a dataset tells of itself, and how it is iterated."""

import re

from host_batches import assert_same, taken

from pipeline.datasets import eval_dataset, train_dataset


def test_a_dataset_tells_how_long_an_epoch_is_and_is_iterated_from_its_start(numbers_of, caplog):
    caplog.set_level("INFO", "pipeline")
    training, evaluation = (recipe(numbers_of(5, 0, 3), global_batch=3) for recipe in (train_dataset, eval_dataset))
    told = [line for line in caplog.messages if "per epoch" in line]  # threads of an earlier test may still report
    assert [line.partition(": ")[2].partition(", up")[0] for line in told] == [
        "8 records, 2 batches of 3 per epoch",
        "8 records, 3 batches of 3 per epoch",
    ]
    assert re.fullmatch(r"<DatasetInput of 8 records in batches of 3: \S+, split 'train'>", repr(training))
    for _ in range(2):
        assert_same([*evaluation], taken(evaluation))
