import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from usual_order import batch_ids, straight, usual_order

from pipeline.errors import BatchSizeError, EmptySplitError, OptionError
from pipeline.hosts import Hosts
from pipeline.orders.order import EvalOrder, Position, TrainOrder
from pipeline.orders.shuffle import GAMMA, hash_key, op_seeds, permutation, record_seeds, splitmix64

ONE = {"block_records": 1, "window_records": 1}


def epoch_ids(order, epoch: int) -> list[int]:
    batches = straight(order, order.steps_per_epoch, Position(epoch, 0))
    return list(itertools.chain(*batches))


def test_the_order_of_a_seed_never_changes():
    # Golden: over blocks, a short last one, streams, windows and two epochs. A saved position lives by it.
    order = TrainOrder(23, 4, seed=42, streams=2, block_records=3, window_records=5)
    assert straight(order, 7) == [
        [7, 8, 4, 3], [22, 21, 5, 9], [6, 1, 10, 16], [0, 13, 15, 11], [14, 12, 18, 17],
        [14, 13, 7, 21], [3, 12, 22, 2],
    ]  # fmt: skip


def test_blocks_stay_whole_and_come_in_another_order_each_epoch():
    order = TrainOrder(95, 1, streams=1, block_records=10, window_records=1)
    epochs = [epoch_ids(order, epoch) for epoch in range(2)]
    for ids in epochs:
        breaks = [a for a, b in itertools.pairwise(ids) if b != a + 1]
        assert all(i % 10 == 9 or i == 94 for i in breaks)
    assert epochs[0] != epochs[1] != list(range(95))


def test_each_window_of_a_stream_has_its_own_permutation():
    # one block: the places are the ids
    order = TrainOrder(1000, 1, streams=1, block_records=1000, window_records=100)
    windows = np.reshape(epoch_ids(order, 0), (10, 100)) % 100
    assert len(np.unique(windows, axis=0)) == 10
    assert all(sorted(window) == list(range(100)) for window in windows.tolist())


def test_epochs_and_seeds_differ_and_drop_different_tails():
    orders = [usual_order(1000, 64, seed=seed, block_records=1000) for seed in (0, 1)]
    runs = [epoch_ids(order, epoch) for order in orders for epoch in range(3)]
    for a, b in itertools.combinations(runs, 2):
        assert a != b
        assert set(a) != set(b)


@given(st.integers(1, 200), st.integers(1, 40), st.sampled_from([1, 2, 4]))
def test_evaluation_has_every_record_once_in_order_and_less_than_a_batch_of_padding(
    N, per_host, count
):
    order = EvalOrder(N, per_host * count)
    steps = [order.advance(order.start, t) for t in range(order.steps_per_epoch)]
    rows = [Hosts(h, count).host_rows(order.global_batch) for h in range(count)]
    ids = [i for p in steps for ranges in rows for i in order.rows(p, ranges).record_ids.tolist()]
    padding = -N % order.global_batch
    assert ids == [*range(N), *[-1] * padding]
    assert [order.remaining(p) for p in steps] == list(range(order.steps_per_epoch, 0, -1))
    assert order.remaining(order.advance(order.start, order.steps_per_epoch)) == 0


def test_consecutive_batches_reuse_the_permutations_of_their_epoch():
    # A count, not a clock: the blocks of an epoch are permuted once, and a window once for all its batches.
    order = usual_order(1_281_167, 1024, block_records=10)
    for t in range(16):  # 16 rows a stream and batch, windows of 320
        order.rows(order.advance(order.start, t), [range(1024)])
    assert order.shuffle._blocks.cache_info().misses == 1
    assert order.shuffle._window.cache_info().misses == 64


def test_a_batch_larger_than_the_split_names_the_way_out():
    with pytest.raises(
        BatchSizeError,
        match=r"global_batch=64 is larger than the split's 10 .* at most 10, .*'span'",
    ):
        usual_order(10, 64, block_records=1)
    order = usual_order(10, 64, block_records=1, epochs="span")
    assert sorted(set(batch_ids(order, order.start))) == list(range(10))
    assert order.steps_per_epoch == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"streams": 5}, r"streams=5 must divide global_batch=12 and be at most .* 30 .*: 4, 6\."),
        ({"streams": 0}, r"streams=0 must divide"),
        ({"block_records": 0}, "block_records=0 must be at least 1"),
        ({"window_records": -1}, "window_records=-1 must be at least 1"),
        ({"epochs": "once"}, "epochs='once' is not one of drop, span"),
    ],
)
def test_an_invalid_option_of_an_order_is_refused_with_valid_values(options, text):
    with pytest.raises(OptionError, match=text):
        TrainOrder(30, 12, **(ONE | {"streams": 2} | options))


@pytest.mark.parametrize(
    "order",
    [EvalOrder, lambda n, b: TrainOrder(n, b, streams=1, block_records=1, window_records=1)],
)
def test_sizes_that_cannot_be_numbered_are_refused(order):
    with pytest.raises(EmptySplitError, match="0 records"):
        order(0, 4)
    with pytest.raises(OptionError, match=r"`_index` is int32, so at most 2147483647"):
        order(2**31, 4)
    with pytest.raises(BatchSizeError, match="global_batch=0"):
        order(5, 0)


def test_hashes_equal_the_reference_values_of_splitmix64():
    # The published stream of seed 1234567 (Vigna's splitmix64.c).
    stream = splitmix64(np.uint64(1234567) + np.arange(1, 4, dtype=np.uint64) * GAMMA)
    assert stream.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_the_permutation_of_a_seed_never_changes():
    # Golden: a checkpoint's position means nothing once this changes.
    assert permutation(8, hash_key(42, 1)).tolist() == [7, 1, 6, 2, 3, 0, 5, 4]
    assert record_seeds(42, np.array([3]), np.array([7])).tolist() == [9131476307237716881]


@given(st.integers(1, 300), st.integers(0, 2**64), st.integers(0, 10))
def test_a_permutation_has_every_number_once(n, seed, epoch):
    assert sorted(permutation(n, hash_key(seed, epoch)).tolist()) == list(range(n))


def test_seeds_are_hashed_and_not_added():
    assert hash_key(42, 1) != hash_key(43, 0)
    assert hash_key(1, 2) != hash_key(2, 1)
    ids = np.arange(100)
    assert not np.any(
        record_seeds(42, np.ones_like(ids), ids) == record_seeds(43, np.zeros_like(ids), ids)
    )


def test_each_op_of_each_record_has_a_seed_of_its_own():
    seeds = op_seeds(record_seeds(0, np.zeros(500, int), np.arange(500)), 3)
    assert seeds.shape == (500, 3, 2)
    assert seeds.dtype == np.int32
    assert len(np.unique(seeds.reshape(-1, 2), axis=0)) == 1500
    assert abs(float((seeds < 0).mean()) - 0.5) < 0.03  # all bits vary, the sign too
