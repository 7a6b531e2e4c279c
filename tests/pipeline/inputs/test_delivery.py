"""What the reading thread holds: the records of its source and the batches that are ready share one limit."""

import contextlib
import json
import time
from dataclasses import asdict

import numpy as np
import pytest
from host_batches import joined, rows_of, taken
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples
from usual_order import usual_order

from pipeline.datasets import cached, eval_dataset, mixture, open_dataset, train_dataset
from pipeline.errors import ShardError
from pipeline.hosts import Hosts
from pipeline.inputs.batches import Turns, read_ahead
from pipeline.inputs.provenance import (
    Origin,
    origins_of,
    recorded_order,
    reopened,
    restored_order,
    stand_ins,
)
from pipeline.orders.mixing import MixOrder, check_weights
from pipeline.orders.order import EvalOrder, Position, TrainOrder
from pipeline.orders.shuffle import Shuffle, device_seeds, record_seeds
from pipeline.sources.records import RECORD_OBJECT_BYTES, fetch

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
            yield [(payload, 0) for _ in group.record_ids]


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
        assert [delivery.rows.record_ids.tolist() for delivery in reading] == [
            [number] for number in range(100)
        ]


def test_a_thread_that_waits_in_its_turn_does_not_keep_the_other_from_working():
    turns = Turns()
    with turns(), turns():  # the second is refused, and goes on without one
        pass
    with pytest.raises(KeyError), turns():
        raise KeyError
    assert not turns._lock.locked()


NUMBERS = {"x": np.arange(30, dtype=np.int32)}


@settings(max_examples=examples(25))
@given(
    seed=st.integers(0, 2**31),
    epochs=st.sampled_from(["drop", "span"]),
    count=st.sampled_from([1, 2, 4]),
)
def test_the_seed_of_a_record_is_a_hash_of_seed_epoch_and_record_on_any_hosts(seed, epochs, count):
    hosts = [
        taken(
            train_dataset(
                NUMBERS, global_batch=12, hosts=Hosts(i, count), seed=seed, epochs=epochs
            ),
            count=6,
        )
        for i in range(count)
    ]
    batches = joined(hosts)
    allowed = {
        (
            record,
            *device_seeds(record_seeds(seed, np.array([epoch]), np.array([record])))[0].tolist(),
        )
        for epoch in range(4)
        for record in range(30)
    }
    drawn = list(zip(rows_of(batches, "_index"), *rows_of(batches, "_seed").T, strict=True))
    assert set(drawn) <= allowed
    # no record twice with the same numbers, though batches span epochs
    assert len(set(drawn)) == 72
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


def payloads(records, ids):
    return [record[0] for record in fetch(records, np.asarray(ids))]


def again(records):
    """Every payload, by way of the origins as JSON."""
    origins = [Origin(**json.loads(json.dumps(asdict(origin)))) for origin in origins_of(records)]
    return [
        payload
        for origin in origins
        for payload in payloads(reopened(origin), range(origin.first, origin.stop))
    ]


@pytest.mark.parametrize(
    "opened",
    [
        lambda data: open_dataset(data, "train"),
        lambda data: open_dataset(data, "train[3:]+validation[:5]+train[:2]"),
        lambda data: open_dataset(data, "train[3:]")[2:9],
        lambda data: cached(open_dataset(data, "validation"), "ram"),
        lambda data: (mixture([open_dataset(data, "train[4:]"), open_dataset(data, "validation")], [1, 2]).records),
    ],
    ids=["a split", "parts", "a slice of a part", "a cache", "a mixture"],
)  # fmt: skip
def test_origins_lead_to_the_same_records_in_the_same_order(digits, opened):
    records = opened(str(digits[1]))
    assert again(records) == payloads(records, range(records.info.num_records))


def test_arrays_have_an_origin_that_cannot_be_opened():
    (origin,) = origins_of(open_dataset({"x": np.arange(7)}))
    assert (origin.first, origin.stop, origin.directory) == (0, 7, None)
    with pytest.raises(
        ShardError,
        match=r"arrays \(x\) has no manifest, so it cannot be opened again to name its rec",
    ):
        reopened(origin)


def test_other_data_in_the_same_place_are_an_error(digits):
    (origin,) = origins_of(open_dataset(str(digits[1]), "train"))
    other = Origin(**(asdict(origin) | {"fingerprint": "of other data"}))
    with pytest.raises(
        ShardError, match="the run read of other data\\. The data have been .* --data-dir"
    ):
        reopened(other)


@st.composite
def block_starts(draw, num_records):
    """Regular blocks, or starts anywhere."""
    if draw(st.booleans()):
        return np.arange(0, num_records, draw(st.integers(1, num_records)))
    others = draw(st.sets(st.integers(1, num_records), max_size=num_records)) - {num_records}
    return np.array(sorted({0} | others))


@st.composite
def orders(draw):
    streams = draw(st.sampled_from([1, 2, 4]))
    seed, batch = draw(st.integers(0, 2**32 - 1)), streams * draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(16, 60), min_size=1, max_size=3))
    window = draw(st.integers(1, 9))
    if len(sizes) == 1:
        sized = {"block_records": 1, "streams": streams, "window_records": window}
        starts = draw(block_starts(sizes[0]))
        epochs = draw(st.sampled_from(["drop", "span"]))
        return TrainOrder(sizes[0], batch, seed=seed, block_starts=starts, epochs=epochs, **sized)
    shuffles = [
        Shuffle(
            size,
            draw(block_starts(size)),
            seed=seed + number,
            streams=streams,
            window_records=window,
        )
        for number, size in enumerate(sizes)
    ]
    shares = check_weights(
        draw(st.lists(st.floats(0.1, 9), min_size=len(sizes), max_size=len(sizes)))
    )
    return MixOrder(
        shuffles,
        np.cumsum([0, *sizes[:-1]]).tolist(),
        shares,
        batch,
        seed=seed,
        digest="of the mixture",
    )


@given(orders(), st.integers(0, 300))
@settings(max_examples=25, deadline=None)
def test_an_order_from_json_has_the_same_settings_positions_and_batches(order, batches):
    again = restored_order(json.loads(json.dumps(recorded_order(order))))
    assert (again.settings, again.global_batch) == (order.settings, order.global_batch)
    position = again.advance(Position(0, 0), batches)
    assert position == order.advance(Position(0, 0), batches)
    for of in zip(
        again.rows(position, [range(order.global_batch)]),
        order.rows(position, [range(order.global_batch)]),
        strict=True,
    ):
        np.testing.assert_array_equal(*of)


def test_a_recorded_order_is_shorter_than_300_characters():
    order = usual_order(1_281_167, 1024, seed=0, block_records=79)
    assert len(json.dumps(recorded_order(order))) < 300


def test_stand_ins_are_the_other_records_of_the_same_source_from_the_next_one_on():
    assert list(stand_ins([0, 4, 10], 8)) == [9, 4, 5, 6, 7]
    assert list(stand_ins([0, 4, 10], 0)) == [1, 2, 3]
    assert list(stand_ins([0, 1], 0)) == []
