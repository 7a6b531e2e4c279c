"""What the reading thread holds: the records of its source and the batches that are ready share one limit."""

import contextlib
import time

import pytest

from pipeline.inputs.batches import Turns, read_ahead
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
