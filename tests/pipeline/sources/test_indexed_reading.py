import itertools
import time
import tracemalloc

import numpy as np
import pytest
from usual_order import usual_order

from pipeline.datasets import train_dataset
from pipeline.formats import FixedLength
from pipeline.inputs.batches import Turns, read_ahead
from pipeline.orders.order import Rows, TrainOrder
from pipeline.shards.example_decoding import decode_example
from pipeline.sources.open_dataset import open_dataset
from pipeline.sources.records import RECORD_OBJECT_BYTES, weighed
from pipeline.storage.local import LocalStorage

SIZES = (100, 0, 60, 40)
N = sum(SIZES)


@pytest.fixture
def ranges(monkeypatch):
    """All ranges that are read, as they are asked for, when nothing is read for the sake of its neighbours only."""
    asked, read_ranges = [], LocalStorage.read_ranges

    def counting(self, ranges):
        return read_ranges(self, (asked.append(place) or place for place in ranges))

    monkeypatch.setattr(LocalStorage, "read_ranges", counting)
    monkeypatch.setattr("pipeline.sources.indexed_records.MERGE_GAP_BYTES", 0)  # the records are small
    return asked


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
    reader, batches = open_dataset(numbers_of(*SIZES), "train"), batches_of(order, order.steps_per_epoch)
    largest = max(map(reader.weigh, batches))
    for ahead in (0, 5000, 20_000):
        reading = reader.read(weighed(reader, batches), ahead)
        held = []
        for _ in reading:
            held.append(reading.held_bytes)
            assert held[-1] == sum(RECORD_OBJECT_BYTES + len(payload) for payload, _ in reading._kept.values())
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
    assert [sorted(numbers(p)) for p in itertools.islice(reading, 20)] == [sorted(i) for i in batches_of(order, 4)] * 5
    assert len(ranges) == 3  # files that are not empty


def test_remote_reads_hold_complete_shuffle_windows_by_default(numbers_of, ranges, monkeypatch, caplog):
    caplog.set_level("INFO", "pipeline")
    monkeypatch.setattr("pipeline.order_defaults.READ_AHEAD_BYTES", 1)

    def reads(remote, read_ahead_bytes=None):
        monkeypatch.setattr(LocalStorage, "remote", remote)
        settings = {"block_records": 5, "streams": 2, "window_records": 25, "read_ahead_bytes": read_ahead_bytes}
        source = train_dataset(numbers_of(*SIZES), global_batch=8, keys=("number",), **settings)
        ranges.clear()
        batches = source.batches()
        for _ in range(source.steps_per_epoch):
            next(batches)
        batches.close()
        assert batches.join(5)
        return len(ranges)

    assert reads(remote=False) > 0.8 * N
    assert reads(remote=True) < 0.4 * N
    assert reads(remote=False, read_ahead_bytes=10**5) < 0.4 * N
    assert all("read ahead" in line for line in caplog.messages)
    monkeypatch.setattr("pipeline.order_defaults.MAX_WINDOW_BYTES", 100)
    assert reads(remote=True) > 0.8 * N


@pytest.mark.parametrize("kind", ["file", "arrays"])
def test_short_records_take_no_more_memory_than_long_ones(tmp_path, kind):
    rows = np.arange(800_000, dtype=np.uint32).reshape(-1, 4)
    rows.tofile(tmp_path / "short.bin")
    given = (tmp_path / "short.bin", {"format": FixedLength(16)}) if kind == "file" else ({"x": rows}, {})
    records, budget = open_dataset(given[0], **given[1]), 2_000_000
    batches = (Rows(np.arange(at, at + 100), np.zeros(100, np.int64), 0) for at in range(0, 200_000, 100))
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
