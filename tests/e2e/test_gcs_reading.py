"""Shards in a bucket: read by ours with few requests, none when cached, and through failures; by TensorFlow's gs://."""

import itertools
import json
import pickle
import threading
import time

import numpy as np
import pytest
from fake_gcs.server import Reset, Short, Stall, Status

from pipeline.commands import describe
from pipeline.datasets import eval_dataset, train_dataset
from pipeline.errors import CorruptRecordError, ShardError, StallError
from pipeline.shards.manifest import read_manifest
from pipeline.shards.naming import index_file
from pipeline.sources.indexed_records import IndexedRecords
from pipeline.sources.open_dataset import open_dataset
from pipeline.storage import gcs_calls
from pipeline.storage.schemes import open_storage
from pipeline.tf_cpu import tf
from pipeline.tf_data import dataset_of

KEYS = ("image/class/label",)
IN_TENSORFLOW = """
import json, sys, zlib
import tensorflow as tf
files = sorted(tf.io.gfile.glob(sys.argv[1] + "/train-*"))
print(json.dumps([len(files), [zlib.crc32(r.numpy()) for r in tf.data.TFRecordDataset(files)]]))
"""


def numbers(batches):
    return [(batch["_index"].tolist(), batch["_crc"].tolist()) for batch in batches]


def read_epochs(source, count=1):
    """Takes the batches of as many epochs of a training."""
    batches = source.batches()
    for _ in range(count * source.steps_per_epoch):
        next(batches)
    close(batches)


def close(batches):
    """Closes batches and waits for the requests under way: the log would show them after a reset."""
    batches.close()
    for thread in threading.enumerate():
        if thread.name == "infeed-bucket":
            thread.join(30)
            assert not thread.is_alive()


def test_a_bucket_gives_the_batches_of_a_disk(shards, digits):
    for directory in (shards, str(digits[1])):
        evaluation = eval_dataset(directory, global_batch=100, keys=KEYS)
        train = train_dataset(directory, global_batch=64, keys=KEYS, seed=3)
        batches = train.batches(train.advance(train.start, 17))
        found = [numbers(evaluation.batches()), numbers(next(batches) for _ in range(30))]
        close(batches)
        if directory == shards:
            expected = found
    assert found == expected
    total = sum(np.sum(np.array(crcs, np.uint64)) for _, crcs in found[0])
    assert total % 2**32 == evaluation.info.expected_crc


def test_opening_takes_a_handful_of_requests_and_an_epoch_one_for_many_records(shards, gcs_server):
    gcs_server.reset()
    evaluation = eval_dataset(shards, global_batch=100, keys=KEYS)
    opening = gcs_server.requests()
    assert len(opening) <= 7
    assert len([request for request in opening if index_file("validation") in request.line]) == 1
    assert len(list(evaluation.batches())) == 4
    reading = gcs_server.requests("-of-.*alt=media")
    assert len(reading) <= 12  # of 368 records in 4 shards
    assert sum(request.response_bytes for request in reading) < 1.1 * 385_000


def test_processes_of_a_host_share_a_copy_of_the_index(shards, gcs_server, tmp_path):
    without = open_dataset(shards, "validation")
    records = [without[number] for number in (0, 200, 367)]
    for opening in range(2):
        gcs_server.reset()
        dataset = open_dataset(shards, "validation", index_dir=tmp_path / "copies")
        assert dataset.take([0, 200, 367]) == records
        asked = [each for each in gcs_server.requests("alt=media") if ".npy" in each.line]
        assert bool(asked) == (opening == 0)
        assert pickle.loads(pickle.dumps(dataset))[200] == records[1]
    (copy,) = (tmp_path / "copies").iterdir()
    copy.write_bytes(copy.read_bytes()[:-1] + b"?")
    with pytest.raises(ShardError, match=f"{copy} has crc32c .*; delete it, and"):
        open_dataset(shards, "validation", index_dir=tmp_path / "copies")


def test_training_requests_each_block_once_and_nothing_it_already_holds(shards, gcs_server):
    order = {"global_batch": 64, "streams": 8, "block_records": 8, "window_records": 32}
    source = train_dataset(shards, keys=KEYS, read_ahead_bytes=600_000, **order)
    gcs_server.reset()
    read_epochs(source)
    reading = gcs_server.requests("-of-.*alt=media")
    # the files end inside blocks, and it reads ahead of what is taken
    assert len(reading) < 1429 / 8 * 1.5
    gcs_server.reset()
    read_epochs(train_dataset(shards, keys=KEYS, global_batch=64), 3)  # all of it fits
    assert len(gcs_server.requests("-of-.*alt=media")) == 15


@pytest.mark.parametrize("cache", ["ram", "disk"])
def test_a_cached_evaluation_makes_requests_in_its_first_pass_only(
    shards, gcs_server, tmp_path, cache
):
    cache = tmp_path if cache == "disk" else cache
    source = eval_dataset(shards, global_batch=100, keys=KEYS, cache=cache)
    first = numbers(source.batches())
    gcs_server.reset()
    assert numbers(source.batches()) == first
    assert gcs_server.requests() == []
    if cache == tmp_path:  # a later run, which only opens the dataset
        again = eval_dataset(shards, global_batch=100, keys=KEYS, cache=cache)
        gcs_server.reset()
        assert numbers(again.batches()) == first
        assert gcs_server.requests() == []


@pytest.mark.slow
def test_a_cached_training_makes_requests_in_its_first_epoch_only(shards, gcs_server):
    # Less is read ahead than the records take, so a record comes again long after it was dropped.
    options = {"global_batch": 64, "keys": KEYS, "epochs": "span", "read_ahead_bytes": 100_000}
    plain, batches = (
        train_dataset(shards, cache=cache, **options).batches() for cache in (None, "ram")
    )
    expected = numbers(itertools.islice(plain, 70))  # three epochs in all
    plain.close()
    gcs_server.reset()
    found = numbers(itertools.islice(batches, 35))
    assert gcs_server.requests("-of-.*alt=media")
    gcs_server.reset()
    assert found + numbers(itertools.islice(batches, 35)) == expected
    close(batches)
    assert gcs_server.requests() == []


def test_describe_states_the_requests_and_bytes_that_training_takes(
    shards, gcs_server, monkeypatch
):
    monkeypatch.setattr(describe, "BATCH", 64)
    records = IndexedRecords(read_manifest(shards), "train", open_storage(shards))
    planned = describe.planned_requests(records)
    source = train_dataset(shards, keys=KEYS, global_batch=64)
    gcs_server.reset()
    read_epochs(source)
    made = gcs_server.requests("-of-.*alt=media")
    assert round(planned.requests * source.steps_per_epoch) == len(made) == 15
    read = sum(request.response_bytes for request in made)
    # frames between records
    assert planned.num_bytes * source.steps_per_epoch == pytest.approx(read, rel=0.05)


def test_every_record_is_read_once_while_requests_fail(shards, gcs_server, monkeypatch):
    monkeypatch.setattr(gcs_calls, "WAIT_SECONDS", (0.02, 0.1))
    options = {"global_batch": 16, "keys": KEYS, "read_ahead_bytes": 1}
    expected = numbers(eval_dataset(shards, **options).batches())
    for seed, fault in enumerate([Status(503), Status(429), Reset(), Short()]):
        gcs_server.fail_share("GET.*alt=media", fault, 0.03, seed=seed)
    gcs_server.fail("GET.*-of-.*alt=media", Short())
    assert numbers(eval_dataset(shards, **options).batches()) == expected
    assert [request for request in gcs_server.requests() if request.fault]


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "way"), [(train_dataset, "batches"), (eval_dataset, "tf_data")])
def test_a_stalled_get_ends_in_an_error_with_all_stacks_within_the_bound(
    shards, gcs_server, caplog, recipe, way
):
    source = recipe(shards, global_batch=16, keys=KEYS, stall_seconds=1.0)
    gcs_server.fail("GET.*-of-.*alt=media", Stall(), times=None)
    kind, text = (StallError, "") if way == "batches" else (tf.errors.OpError, "StallError: ")
    begun = time.monotonic()
    with pytest.raises(kind, match=f"{text}waited 1 s for input"):
        list(source.batches() if way == "batches" else dataset_of(source))
    assert time.monotonic() - begun < 20  # less than the 30 s of one silent request
    [dump] = [record.getMessage() for record in caplog.records if record.name == "pipeline"]
    assert dump.startswith("waited 1 s for input")
    assert "\nThread infeed-read:\n" in dump


STALLED = """
import sys
from pipeline.datasets import eval_dataset
batches = eval_dataset(sys.argv[1], global_batch=16, keys=("image/class/label",), stall_seconds=2.0).batches()
print("opened", flush=True)
next(batches)
"""


@pytest.mark.slow
def test_a_process_whose_get_stalls_exits_by_itself(shards, gcs_server, run_forked):
    gcs_server.fail("GET.*-of-.*alt=media", Stall(), times=None)
    begun = time.monotonic()
    code, printed = run_forked(["-c", STALLED, shards], timeout=100)
    assert time.monotonic() - begun < 25  # less than the 30 s of one silent request
    assert code == 1
    assert printed.startswith("opened\n")
    assert "StallError: waited 2 s for input" in printed


def test_a_record_that_changes_after_the_opening_is_named(shards, bucket, gcs_server):
    evaluation = eval_dataset(shards, global_batch=16, keys=KEYS)
    name = bucket.removeprefix("gs://")
    shard = bytearray(gcs_server.read(name, "data/validation-00002-of-00004"))
    shard[len(shard) // 2] ^= 1
    gcs_server.write(name, "data/validation-00002-of-00004", bytes(shard))
    place = r"gs://\S+/validation-00002-of-00004, record \d+ at byte \d+"
    with pytest.raises(CorruptRecordError, match=place):
        list(evaluation.batches())


@pytest.mark.slow
def test_tensorflows_own_gs_reads_the_same_records(shards, digits, run_forked):
    def read(directory):
        code, printed = run_forked(["-c", IN_TENSORFLOW, str(directory)], timeout=120)
        assert code == 0, printed
        return json.loads(printed.splitlines()[-1])

    found = read(shards)
    assert found == read(digits[1])
    assert (found[0], len(found[1])) == (15, 1429)
