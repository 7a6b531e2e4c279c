"""The two recipes on real shards: what is promised of every batch of every epoch."""

import itertools
import re
import shutil

import numpy as np
import pytest
from host_batches import assert_same, crc_sum, taken

from pipeline.datasets import Position, eval_dataset, train_dataset
from pipeline.errors import BatchSizeError, FingerprintError, OptionError
from pipeline.hosts import Hosts
from pipeline.ops import DecodeJpeg, RandomShift
from pipeline.sources.indexed_records import IndexedRecords

OPS = (DecodeJpeg("image/encoded", shape=(8, 8, 1)), RandomShift(pixels=2))
KEYS = ("image", "image/class/label", "image/weight")


def test_shards_do_not_change_an_evaluation(numbers_of):
    whole, many = (
        taken(eval_dataset(numbers_of(*sizes), global_batch=4)) for sizes in [(8,), (5, 0, 3)]
    )
    assert_same(whole, many)


def test_an_evaluation_is_repeated_from_its_start(numbers_of):
    source = eval_dataset(numbers_of(5, 0, 3), global_batch=4)
    assert_same(taken(source), taken(source))


def test_a_reader_that_repeats_one_record_and_skips_another_is_caught(numbers_of, monkeypatch):
    # Each record is whole and known to the index; only the sum over what was delivered shows it.
    read = IndexedRecords.read
    monkeypatch.setattr(
        IndexedRecords,
        "read",
        lambda self, groups, n: read(
            self, ((np.where(ids == 6, 2, ids), w) for ids, w in groups), n
        ),
    )
    for limit in (None, 7):
        source = eval_dataset(numbers_of(5, 0, 3), global_batch=4, limit=limit)
        batches = taken(source)
        assert sum(b["_mask"].sum() for b in batches) == source.num_records
        assert crc_sum(batches) != source.info.expected_crc


def test_augmentation_differs_between_epochs_and_seeds(images):
    seen = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        source = train_dataset(images, global_batch=8, ops=OPS, keys=KEYS, seed=seed)
        batches = taken(source, Position(epoch, 0), 5)
        pictures = {
            int(i): image.tobytes()
            for b in batches
            for i, image in zip(b["_index"], b["image"], strict=True)
        }
        seen.append([pictures[i] for i in range(40)])
    for a, b in itertools.combinations(seen, 2):
        assert sum(x != y for x, y in zip(a, b, strict=True)) > 30  # 1 shift in 25 is the same


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"seed": 2}, r"seed=1, this input seed=2: the order of records differs\. Pass seed=1 to train_dataset"),
        ({"streams": 4}, r"streams=8, this input streams=4"),
        ({"block_records": 1}, r"block_records=7, this input block_records=1"),
        ({"window_records": 1}, r"window_records=1792, this input window_records=1"),
        ({"epochs": "span"}, r"epochs='drop', this input epochs='span'"),
        ({"split": "validation"}, r"belongs to data \w+; .*, split 'validation' is \w+\. Give the data"),
    ],
)  # fmt: skip
def test_a_saved_position_of_another_order_is_refused(images, other, text):
    options = {"split": "train", "global_batch": 8, "seed": 1, "streams": 8, "block_records": 7}
    source = train_dataset(images, **options)
    with pytest.raises(FingerprintError, match=text):
        train_dataset(images, **(options | other)).restore(source.state(source.start))


def test_a_run_keeps_its_blocks_and_windows_where_their_defaults_change(images):
    options = {"global_batch": 8, "seed": 1, "streams": 8}
    begun = train_dataset(images, block_records=7, window_records=21, **options)
    position = begun.advance(begun.start, 3)
    resumed = train_dataset(images, **options)
    assert resumed.restore(begun.state(position)) == position
    assert resumed.state(position) == begun.state(position)
    assert resumed.info.provenance == begun.info.provenance
    batches = [next(source.batches(position))["_index"] for source in (begun, resumed)]
    np.testing.assert_array_equal(*batches)


def test_a_copied_dataset_restores_a_state_but_an_incomplete_state_is_refused(images, tmp_path):
    source = train_dataset(images, global_batch=8)
    copied = train_dataset(str(shutil.copytree(images, tmp_path / "copy")), global_batch=8)
    state = source.state(Position(2, 1))
    assert copied.restore(state) == Position(2, 1)
    for odd in (0, -1, "7", 2.5, [1]):
        with pytest.raises(FingerprintError, match="block_records=.* to train_dataset to resume"):
            source.restore(state | {"block_records": odd})
    with pytest.raises(FingerprintError, match="The saved position has no streams"):
        source.restore({key: value for key, value in state.items() if key != "streams"})
    assert source.state(Position(2, 1)) == state


def test_a_position_of_training_is_refused_by_an_evaluation_and_vice_versa(images):
    train, evaluation = (
        train_dataset(images, global_batch=8),
        eval_dataset(images, "train", global_batch=8),
    )
    with pytest.raises(
        FingerprintError, match="no seed: it is not from training on one source, as this input is"
    ):
        train.restore(evaluation.state(evaluation.start))
    with pytest.raises(
        FingerprintError, match="no num_records: it is not from an evaluation, as this input is"
    ):
        evaluation.restore(train.state(train.start))


@pytest.mark.parametrize("recipe", [train_dataset, eval_dataset])
def test_a_negative_read_ahead_is_refused(images, recipe):
    with pytest.raises(OptionError, match="read_ahead_bytes=-1 must be at least 0"):
        recipe(images, global_batch=8, read_ahead_bytes=-1)


def test_a_batch_larger_than_the_split_trains_with_span(images):
    with pytest.raises(BatchSizeError, match="epochs='span'"):
        train_dataset(images, global_batch=64)
    source = train_dataset(images, global_batch=64, epochs="span")
    assert set(taken(source, source.start, 1)[0]["_index"]) == set(range(40))


@pytest.mark.parametrize("recipe", [train_dataset, eval_dataset])
def test_wrong_batch_sizes_keys_and_splits_are_refused_with_a_suggestion(images, recipe):
    with pytest.raises(BatchSizeError, match=r"global_batch=6 is not divisible by 4 .* 4, 8"):
        recipe(images, global_batch=6, hosts=Hosts(0, 4))
    with pytest.raises(OptionError, match=r"keys has 'imgae', .* Did you mean 'image'\?"):
        recipe(images, global_batch=4, ops=OPS, keys=("imgae",))
    with pytest.raises(OptionError, match=r"has no split 'tets'\."):
        recipe(images, "tets", global_batch=4)


def test_a_limit_below_one_is_refused(images):
    with pytest.raises(OptionError, match=r"limit=0 must be at least 1; None takes all 21 records"):
        eval_dataset(images, global_batch=4, limit=0)


def test_a_dataset_tells_how_long_an_epoch_is_and_is_iterated_from_its_start(numbers_of, caplog):
    caplog.set_level("INFO", "pipeline")
    training, evaluation = (
        recipe(numbers_of(5, 0, 3), global_batch=3) for recipe in (train_dataset, eval_dataset)
    )
    # threads of an earlier test may still report
    told = [line for line in caplog.messages if "per epoch" in line]
    assert [line.partition(": ")[2].partition(", up")[0] for line in told] == [
        "8 records, 2 batches of 3 per epoch",
        "8 records, 3 batches of 3 per epoch",
    ]
    assert re.fullmatch(
        r"<DatasetInput of 8 records in batches of 3: \S+, split 'train'>", repr(training)
    )
    for _ in range(2):
        assert_same([*evaluation], taken(evaluation))
