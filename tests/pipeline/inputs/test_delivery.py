"""What the reading thread holds: the records of its source and the batches that are ready share one limit."""

import contextlib
import time

import numpy as np
import pytest
from host_batches import joined, rows_of, taken
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples

from pipeline.datasets import eval_dataset, mixture, train_dataset
from pipeline.hosts import Hosts
from pipeline.inputs.batches import Turns, read_ahead
from pipeline.orders.hashing import device_seeds, record_seeds
from pipeline.orders.order import EvalOrder
from pipeline.sources.records import RECORD_OBJECT_BYTES, Proven

RECORD_BYTES = 1000


class Source:
    """Records of a thousand bytes, from a reading that holds seven of them all the time."""

    def weigh(self, record_ids):
        return RECORD_BYTES * len(record_ids)

    def read(self, groups, ahead_bytes):
        return Reading(groups)


class Reading:
    held_bytes = 7 * RECORD_BYTES

    def __init__(self, groups):
        self.groups = groups

    def __iter__(self):
        payload = bytes(RECORD_BYTES - RECORD_OBJECT_BYTES)
        for group in self.groups:
            yield [Proven(payload, 0) for _ in group.record_ids]


def test_ready_batches_are_limited_to_the_remaining_read_ahead():
    order = EvalOrder(100, 1)
    batches = (order.rows(order.advance(order.start, step), (range(1),)) for step in range(100))
    with contextlib.closing(read_ahead(Source(), batches, 10 * RECORD_BYTES, Turns())) as reading:
        stop = time.monotonic() + 60
        while len(reading._shelf.items) < 3:
            assert time.monotonic() < stop
            time.sleep(0.01)
        assert not reading.join(0.2)  # it waits for room, though most batches are to come
        assert reading._shelf.held == 3 * RECORD_BYTES
        assert [delivery.rows.record_ids.tolist() for delivery in reading] == [[number] for number in range(100)]


def test_a_thread_that_waits_in_its_turn_does_not_keep_the_other_from_working():
    turns = Turns()
    with turns(), turns():  # the second is refused, and goes on without one
        pass
    with pytest.raises(KeyError), turns():
        raise KeyError
    assert not turns._lock.locked()


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
