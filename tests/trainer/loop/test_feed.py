"""The feeder: what it puts together, what it refuses, and that it always lets go."""

import gc
import itertools
import threading
import time
from contextlib import closing

import numpy as np
import pytest

from pipeline.errors import InputError, StallError, StorageError
from trainer.loop.feed import Chunks, Feeder
from trainer.mesh.batch_spec import batch_struct


def batch(value, rows=2):
    return {"x": np.full((rows, 3), value, np.float32), "_mask": np.ones(rows, np.float32)}


STRUCT = batch_struct(batch(0))


class HostPlaces:
    """Stands for a Compiled: batches stay where they are."""

    def __init__(self, scans):
        self.scans = scans

    def place(self, host, stacked):
        return host


def feed(batches, lengths, start=0, scans=True, stall_seconds=60.0):
    batches = iter(batches)
    end = None if lengths is None else start + sum(lengths)
    source = Chunks(
        batches,
        start,
        end,
        itertools.repeat(1) if lengths is None else lengths,
        STRUCT,
        HostPlaces(scans),
    )
    return Feeder(source, stall_seconds)


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name == "trainer-feeder"]


def wait_until(condition, seconds=20.0):
    stop = time.monotonic() + seconds
    while not condition() and time.monotonic() < stop:
        time.sleep(0.01)
    return condition()


def test_k_batches_are_stacked_for_a_scan_and_stay_single_for_steps():
    with closing(feed(map(batch, range(5)), [3, 1], start=10)) as feeder:
        first, second = feeder
    assert (first.start, first.length, first.stacked) == (10, 3, True)
    assert first.batches[0]["x"][:, 0, 0].tolist() == [0, 1, 2]
    assert (second.start, second.length, second.stacked) == (13, 1, False)
    with closing(feed(map(batch, range(3)), [3], scans=False)) as feeder:
        (only,) = feeder
    assert [each["x"][0, 0] for each in only.batches] == [0, 1, 2]


def test_exactly_the_planned_batches_are_read():
    source = map(batch, range(10))
    with closing(feed(source, [3, 1])) as feeder:
        assert len(list(feeder)) == 2
    assert next(source)["x"][0, 0] == 4


def test_an_input_that_ended_is_not_asked_again():
    class Restarting:
        """Begins again when it is asked after its end, as the iterators of some libraries do."""

        def __init__(self):
            self._left = 6

        def __iter__(self):
            return self

        def __next__(self):
            if not self._left:
                self._left = 6
                raise StopIteration
            self._left -= 1
            return batch(self._left)

    source = Chunks(Restarting(), 0, None, itertools.repeat(4), STRUCT, HostPlaces(True))
    with closing(Feeder(source, 60.0)) as feeder:
        assert [(chunk.start, chunk.length) for chunk in feeder] == [(0, 4), (4, 1), (5, 1)]


def test_a_feeder_that_is_dropped_leaves_no_thread():
    feeder = Feeder(
        Chunks(
            map(batch, itertools.count()), 0, None, itertools.repeat(4), STRUCT, HostPlaces(True)
        ),
        60.0,
    )
    assert wait_until(threads)
    time.sleep(0.1)  # a chunk is placed, the next one waits for room
    del feeder
    gc.collect()
    assert wait_until(lambda: not threads())


def test_an_input_that_ends_early_is_named_with_its_step_and_counts():
    with closing(feed(map(batch, range(4)), [3, 3], start=20)) as feeder:
        next(feeder)
        with pytest.raises(
            InputError,
            match="ended before step 25: it returned 4 batches from step 21 on, expected 6",
        ):
            next(feeder)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (
            batch(0, rows=1),
            r"a batch's _?\w+ is float32 \[1.*\]; expected float32 \[2.*\]\. Shapes are static",
        ),
        (
            batch(0) | {"x": np.zeros((2, 3), np.int32)},
            r"x is int32 \[2, 3\]; expected float32 \[2, 3\]",
        ),
        (batch(0) | {"y": np.zeros(2)}, "has the keys _mask, x, y; expected _mask, x"),
        ([1, 2], "a batch is a list. It must be a dict"),
    ],
)
def test_a_batch_unlike_the_others_is_refused_with_its_key_and_step(bad, text):
    with closing(feed([batch(0), batch(1), bad], [1, 1, 1], start=6)) as feeder:
        next(feeder), next(feeder)
        with pytest.raises(InputError, match=text) as caught:
            next(feeder)
    assert caught.value.__notes__ == ["while reading the batch of step 9"]


def test_an_exception_of_the_input_arrives_as_it_was_with_the_step():
    def failing():
        yield batch(0)
        raise StorageError("disk on fire")

    with closing(feed(failing(), [1, 1])) as feeder:
        next(feeder)
        with pytest.raises(StorageError, match="disk on fire") as caught:
            next(feeder)
    assert caught.value.__notes__ == ["while reading the batch of step 2"]


def test_the_feeder_works_no_more_than_its_depth_ahead():
    made = []

    def counting():
        for i in range(100):
            made.append(i)
            yield batch(i)

    with closing(feed(counting(), [1] * 100)) as feeder:
        next(feeder)
        assert wait_until(lambda: len(made) == 4)  # one taken, two ready, one on its way
        time.sleep(0.05)
        assert len(made) == 4


def test_closing_leaves_no_thread_and_closes_the_input():
    closed = []

    def endless():
        try:
            while True:
                yield batch(0)
        finally:
            closed.append(True)

    feeder = feed(endless(), [1] * 1000)
    next(feeder)
    feeder.close()
    assert threads() == []
    assert list(feeder) == []
    assert closed == [True]


class Stalled:
    """An input whose disk hangs until it is closed, as pipeline's batches do."""

    def __init__(self):
        self.released = threading.Event()

    def __iter__(self):
        return self

    def __next__(self):
        self.released.wait(10)
        raise StopIteration

    def close(self):
        self.released.set()


def test_closing_does_not_wait_for_a_stalled_input():
    feeder = feed(Stalled(), [1])
    started = time.monotonic()
    feeder.close()
    assert time.monotonic() - started < 1
    assert threads() == []


def test_the_time_that_the_host_waits_for_the_input_is_counted():
    asked = threading.Event()

    def slow():
        asked.wait(20)
        time.sleep(0.3)
        yield batch(0)

    with closing(feed(slow(), [1])) as feeder:
        asked.set()
        next(feeder)
    assert 0.1 < feeder.wait_seconds < 2


def test_an_input_that_stalls_ends_in_an_error_with_the_last_step_and_all_stacks(caplog):
    stalled = Stalled()
    batches = itertools.chain(map(batch, range(3)), stalled)
    feeder = feed(batches, [2, 2], start=6, stall_seconds=0.2)
    assert next(feeder).length == 2
    with pytest.raises(StallError, match="waited 0.2 s for") as caught:
        next(feeder)
    assert caught.value.__notes__ == ["waiting for the input: the last batch read was of step 9"]
    assert "Thread trainer-feeder:" in caplog.text
    assert "test_feed.py" in caplog.text
    feeder.close()
    stalled.close()
    assert wait_until(lambda: threads() == [])


def test_the_stall_timer_restarts_with_each_batch_of_a_dispatch():
    def slow():
        for i in range(4):
            time.sleep(0.3)
            yield batch(i)

    with closing(feed(slow(), [4], stall_seconds=1.0)) as feeder:
        assert next(feeder).length == 4
