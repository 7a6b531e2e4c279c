import itertools
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from usual_order import usual_order

from pipeline.datasets import train_dataset
from pipeline.formats import FixedLength
from pipeline.inputs.batches import Turns, read_ahead
from pipeline.orders.order import Rows, TrainOrder
from pipeline.shards.example_decoding import decode_example
from pipeline.sources.lookahead import Lookahead
from pipeline.sources.open_dataset import open_dataset
from pipeline.sources.records import RECORD_OBJECT_BYTES, weighed
from pipeline.storage.local import LocalStorage

SIZES = (100, 0, 60, 40)
N = sum(SIZES)


@pytest.fixture
def ranges(requested, monkeypatch):
    """All ranges that are requested, when nothing is read for the sake of its neighbours only."""
    # the records are small
    monkeypatch.setattr("pipeline.sources.indexed_records.MERGE_GAP_BYTES", 0)
    return requested


def batches_of(order, count):
    positions = (order.advance(order.start, step) for step in range(count))
    return [order.rows(position, (range(order.global_batch),)).record_ids for position in positions]


def numbers(records):
    return [decode_example(payload)["number"][0] for payload, _ in records]


def test_each_block_is_read_once_if_the_read_ahead_covers_the_window(numbers_of, ranges):
    order = TrainOrder(N, 8, block_records=5, streams=2, window_records=25)
    batches = batches_of(order, order.steps_per_epoch)
    reader = open_dataset(numbers_of(*SIZES), "train")
    counts = []
    for ahead in (0, reader.weigh(np.arange(2 * (25 + 5)))):
        ranges.clear()
        assert [numbers(records) for records in reader.read(weighed(reader, batches), ahead)] == [
            ids.tolist() for ids in batches
        ]
        counts.append(len(ranges))
    assert counts[0] > 0.8 * N
    assert counts[1] <= N // 5 + 2


def test_held_bytes_are_counted_and_bounded_by_the_read_ahead(numbers_of):
    order = TrainOrder(N, 8, block_records=5, streams=2, window_records=25)
    reader, batches = (
        open_dataset(numbers_of(*SIZES), "train"),
        batches_of(order, order.steps_per_epoch),
    )
    largest = max(map(reader.weigh, batches))
    for ahead in (0, 5000, 20_000):
        reading = reader.read(weighed(reader, batches), ahead)
        held = []
        for _ in reading:
            held.append(reading.held_bytes)
            assert held[-1] == sum(
                RECORD_OBJECT_BYTES + len(payload) for payload, _ in reading._kept.values()
            )
            assert held[-1] <= ahead + 2 * largest  # one that needs no read waits with the next
        assert held[-1] == 0
        assert (max(held) > 0) == (ahead > 0)


def test_small_data_is_read_once_for_many_epochs(numbers_of, ranges):
    order = usual_order(N, 50, block_records=5)

    def endless():
        for count, ids in enumerate(itertools.cycle(batches_of(order, 4))):
            assert count < 1000, "it looks ahead without end"
            yield ids

    reader = open_dataset(numbers_of(*SIZES), "train")
    reading = reader.read(weighed(reader, endless()), 10**5)
    assert [sorted(numbers(p)) for p in itertools.islice(reading, 20)] == [
        sorted(i) for i in batches_of(order, 4)
    ] * 5
    assert len(ranges) == 3  # files that are not empty


def test_remote_reads_and_small_records_hold_complete_shuffle_windows_by_default(
    numbers_of, ranges, monkeypatch, caplog
):
    caplog.set_level("INFO", "pipeline")
    monkeypatch.setattr("pipeline.orders.defaults.READ_AHEAD_BYTES", 1)

    def reads(remote, read_ahead_bytes=None):
        monkeypatch.setattr(LocalStorage, "remote", remote)
        settings = {
            "block_records": 5,
            "streams": 2,
            "window_records": 25,
            "read_ahead_bytes": read_ahead_bytes,
        }
        source = train_dataset(numbers_of(*SIZES), global_batch=8, keys=("number",), **settings)
        ranges.clear()
        batches = source.batches()
        for _ in range(source.steps_per_epoch):
            next(batches)
        batches.close()
        assert batches.join(5)
        return len(ranges)

    assert reads(remote=False) < 0.4 * N
    monkeypatch.setattr("pipeline.orders.defaults.PAGE_BYTES", 1)
    assert reads(remote=False) > 0.8 * N
    assert reads(remote=True) < 0.4 * N
    assert reads(remote=False, read_ahead_bytes=10**5) < 0.4 * N
    assert all("read ahead" in line for line in caplog.messages)
    monkeypatch.setattr("pipeline.orders.defaults.MAX_WINDOW_BYTES", 100)
    assert reads(remote=True) > 0.8 * N


@pytest.mark.parametrize("kind", ["file", "arrays"])
def test_short_records_take_no_more_memory_than_long_ones(tmp_path, kind):
    rows = np.arange(800_000, dtype=np.uint32).reshape(-1, 4)
    rows.tofile(tmp_path / "short.bin")
    given = (
        (tmp_path / "short.bin", {"format": FixedLength(16)})
        if kind == "file"
        else ({"x": rows}, {})
    )
    records, budget = open_dataset(given[0], **given[1]), 2_000_000
    batches = (
        Rows(np.arange(at, at + 100), np.zeros(100, np.int64), 0) for at in range(0, 200_000, 100)
    )
    tracemalloc.start()
    ahead, before, peak = read_ahead(records, batches, budget, Turns()), -1, 0
    try:
        next(ahead)
        while peak > before:  # until it waits
            time.sleep(0.2)
            before, (_, peak) = peak, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        ahead.close()
    assert peak < 2.5 * budget


def neighbours(places):
    """A read goes over records that follow each other."""
    (ids,) = places
    return np.flatnonzero(np.diff(ids, prepend=-2) != 1)


def reads_of(groups, ahead):
    """Drives a Lookahead as a reader does, and checks what a reader relies on. The reads, group by group."""
    lookahead, kept, reads = (
        Lookahead(((np.array(group), len(group)) for group in groups), ahead),
        set(),
        [],
    )
    for group in lookahead:
        (ids,), starts = lookahead.due(neighbours)
        found = [run.tolist() for run in np.split(ids, starts[1:])] if len(ids) else []
        assert not kept & set(ids.tolist())  # what is there is not read again
        # and nothing that is not due by itself
        assert all(set(run) & set(group.tolist()) for run in found)
        kept |= set(ids.tolist())
        assert kept >= set(group.tolist())
        kept -= set(lookahead.used(group))
        reads.append(found)
    assert not kept
    return reads


@given(
    groups=st.lists(
        st.lists(st.integers(0, 30), max_size=8).map(lambda ids: np.array(ids, np.int64)),
        max_size=12,
    ),
    ahead=st.integers(0, 40),
)
def test_records_are_read_before_use_and_released_after_their_last_visible_use(groups, ahead):
    assert len(reads_of(groups, ahead)) == len(groups)


def test_a_read_includes_the_neighbouring_records_within_the_look_ahead():
    groups = [[1, 7], [6, 2], [0, 20], [3, 8]]
    assert reads_of(groups, 6) == [[[0, 1, 2, 3], [6, 7, 8]], [], [[20]], []]
    assert reads_of(groups, 2) == [[[1, 2], [6, 7]], [], [[0], [20]], [[3], [8]]]
    assert reads_of(groups, 0) == [[[1], [7]], [[2], [6]], [[0], [20]], [[3], [8]]]


def test_a_record_repeated_within_the_look_ahead_is_read_once():
    assert reads_of([[5], [5], [5]], 1) == [[[5]], [], []]
    assert reads_of([[5], [9], [9], [5]], 1) == [[[5]], [[9]], [], [[5]]]


def test_the_look_ahead_requests_no_more_groups_than_it_covers():
    asked = []

    def groups():
        for i in itertools.count():
            assert i < 100, "it looks without end"
            asked.append(i)
            yield np.array([i]), 1

    lookahead = Lookahead(groups(), 3)
    next(lookahead)
    assert asked == [0, 1, 2, 3]
    next(lookahead)
    assert asked == [0, 1, 2, 3, 4]
