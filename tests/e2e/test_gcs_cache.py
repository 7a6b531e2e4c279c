"""Caches of shards in a bucket: the second epoch makes no request."""

import itertools

import pytest

from pipeline.datasets import eval_dataset, train_dataset

KEYS = ("image/class/label",)


def numbers_of(batch):
    return batch["_index"].tolist(), batch["_crc"].tolist()


def numbers(batches, count):
    found = [numbers_of(batch) for batch in itertools.islice(batches, count)]
    batches.close()
    assert batches.join(10)
    return found


@pytest.mark.parametrize("cache", ["ram", "disk"])
def test_an_evaluation_makes_requests_in_its_first_pass_only(shards, gcs_server, tmp_path, cache):
    cache = tmp_path if cache == "disk" else cache
    plain = numbers(eval_dataset(shards, global_batch=100, keys=KEYS).batches(), 5)
    source = eval_dataset(shards, global_batch=100, keys=KEYS, cache=cache)
    assert numbers(source.batches(), 5) == plain
    gcs_server.reset()
    assert numbers(source.batches(), 5) == plain
    assert gcs_server.requests() == []
    if cache == tmp_path:  # a later run, which only opens the dataset
        again = eval_dataset(shards, global_batch=100, keys=KEYS, cache=cache)
        gcs_server.reset()
        assert numbers(again.batches(), 5) == plain
        assert gcs_server.requests() == []


@pytest.mark.parametrize("cache", ["ram", "disk"])
def test_training_makes_requests_in_its_first_epoch_only(shards, gcs_server, tmp_path, cache):
    # Less is read ahead than the records take, so a record comes again long after it was dropped.
    options = {"global_batch": 64, "keys": KEYS, "epochs": "span", "read_ahead_bytes": 100_000}
    plain = numbers(train_dataset(shards, **options).batches(), 70)
    source = train_dataset(shards, cache=tmp_path if cache == "disk" else cache, **options)
    batches = source.batches()
    gcs_server.reset()
    found = [numbers_of(next(batches)) for _ in range(35)]
    first = len(gcs_server.requests("-of-.*alt=media"))
    gcs_server.reset()
    assert found + numbers(batches, 35) == plain  # three epochs in all
    assert first > 0
    assert gcs_server.requests() == []
