"""`_seed`: what a record's augmentation on the device is drawn from. Seed, epoch and record decide it, nothing else."""

import numpy as np
import pytest
from host_batches import joined, rows_of, taken
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples

from pipeline.datasets import eval_dataset, mixture, train_dataset
from pipeline.hosts import Hosts
from pipeline.orders.hashing import device_seeds, record_seeds

NUMBERS = {"x": np.arange(30, dtype=np.int32)}


@settings(max_examples=examples(25))
@given(seed=st.integers(0, 2**31), epochs=st.sampled_from(["drop", "span"]), count=st.sampled_from([1, 2, 4]))
def test_the_seed_of_a_record_is_a_hash_of_seed_epoch_and_record_on_any_hosts(seed, epochs, count):
    hosts = [
        taken(train_dataset(NUMBERS, global_batch=12, hosts=Hosts(i, count), seed=seed, epochs=epochs), count=6)
        for i in range(count)
    ]
    batches = joined(hosts)
    allowed = {
        (record, *device_seeds(record_seeds(seed, np.array([epoch]), np.array([record])))[0].tolist())
        for epoch in range(4)
        for record in range(30)
    }
    drawn = list(zip(rows_of(batches, "_index"), *rows_of(batches, "_seed").T, strict=True))
    assert set(drawn) <= allowed
    assert len(set(drawn)) == 72  # no record twice with the same numbers, though batches span epochs
    assert rows_of(batches, "_seed").dtype == np.uint32


def test_records_of_a_mixture_have_seeds_of_their_own():
    parts = [NUMBERS, {"x": np.arange(100, 130, dtype=np.int32)}]
    batches = taken(train_dataset(mixture(parts, [1.0, 1.0]), global_batch=20), count=3)
    drawn = [tuple(seed) for seed in rows_of(batches, "_seed").tolist()]
    assert len(set(drawn)) == 60


@pytest.mark.parametrize("nested", [False, True])
def test_an_evaluation_has_no_seeds(nested):
    assert "_seed" not in eval_dataset(NUMBERS, global_batch=4, nested=nested).spec
    assert train_dataset(NUMBERS, global_batch=4, nested=nested).spec["_seed"].shape == (4, 2)
