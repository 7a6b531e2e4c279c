"""A mixture: every weight kept, every source exact, any host and any resume the same."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples
from usual_order import batch_ids, straight

from pipeline.datasets import eval_dataset, mixture, open_dataset, train_dataset
from pipeline.errors import FingerprintError, OptionError
from pipeline.orders.mixing import ROUNDS, SLOTS, MixOrder, Shares, check_weights
from pipeline.orders.order import Position
from pipeline.orders.shuffle import Shuffle, record_seeds

WEIGHTS = st.lists(st.floats(0.001, 1), min_size=1, max_size=5)


@st.composite
def orders(draw) -> MixOrder:
    streams = draw(st.integers(1, 4))
    weights = draw(WEIGHTS)
    sizes = [draw(st.integers(streams, 60)) for _ in weights]
    seed = draw(st.integers(0, 2**40))
    shuffles = [
        Shuffle(
            n,
            np.arange(0, n, 3),
            seed=seed + i,
            streams=streams,
            window_records=draw(st.integers(1, 20)),
        )
        for i, n in enumerate(sizes)
    ]
    firsts = np.cumsum([0, *sizes[:-1]]).tolist()
    batch = streams * draw(st.integers(1, 5))
    return MixOrder(shuffles, firsts, check_weights(weights), batch, seed=seed, digest="")


@given(weights=WEIGHTS, number=st.integers(0, 10**6))
def test_every_round_is_full_and_every_source_is_within_a_row_of_its_weight(weights, number):
    weights = check_weights(weights)
    shares = Shares(weights)
    assert shares.of_round(number).sum() == SLOTS
    assert np.all(np.abs(shares.of_round(number) - SLOTS * weights) <= 1 + 1e-6)
    assert np.array_equal(
        shares.before(number + 1) - shares.before(number), shares.of_round(number)
    )
    assert np.all(np.abs(shares.before(ROUNDS) - SLOTS * ROUNDS * weights) <= 1 + 1e-3)


@given(orders(), st.integers(0, 3000) | st.just(10**9), st.sampled_from([1, 2, 4]))
@settings(max_examples=examples(60))
def test_any_hosts_together_read_the_global_batch(order, records, count):
    position, whole = Position(0, records), range(order.global_batch)
    cuts = [len(whole) * i // count for i in range(count + 1)]
    parts = [order.rows(position, [range(a, b)]) for a, b in itertools.pairwise(cuts) if b > a]
    both = order.rows(position, [whole])
    assert np.array_equal(np.concatenate([rows.record_ids for rows in parts]), both.record_ids)
    assert np.array_equal(np.concatenate([rows.seeds for rows in parts]), both.seeds)


@given(orders(), st.integers(0, 3000), st.integers(1, 9))
@settings(max_examples=examples(60))
def test_rows_of_several_batches_are_those_of_one_after_the_other(order, records, batches):
    position, ranges = Position(0, records), [range(order.global_batch // 2, order.global_batch)]
    together = order.rows(position, ranges, batches)
    single = [order.rows(order.advance(position, step), ranges) for step in range(batches)]
    assert np.array_equal(together.record_ids, np.concatenate([rows.record_ids for rows in single]))
    assert np.array_equal(together.seeds, np.concatenate([rows.seeds for rows in single]))


@given(orders(), st.integers(0, 50), st.integers(0, 50))
@settings(max_examples=examples(60))
def test_advancing_equals_stepping_and_another_batch_size_resumes_at_the_next_record(
    order, first, then
):
    position = order.advance(order.advance(order.start, first), then)
    assert position == order.advance(order.start, first + then)
    twice = MixOrder(
        order.shuffles, order._first_ids, check_weights([1] * len(order.shuffles)), 2 * order.global_batch,
        seed=order._seed, digest="",
    )  # fmt: skip
    twice._rounds = order._rounds
    rows = order.global_batch // order.streams
    wide = np.reshape(batch_ids(twice, position), (order.streams, 2, rows))
    narrow = [
        np.reshape(batch_ids(order, order.advance(position, t)), (order.streams, rows))
        for t in range(2)
    ]
    assert np.array_equal(wide, np.stack(narrow, axis=1))


@given(orders())
@settings(max_examples=examples(25), deadline=None)
def test_each_source_is_in_each_stream_one_permutation_of_its_records_after_another(order):
    steps = 400 // (order.global_batch // order.streams)
    rows = np.array(straight(order, steps)).reshape(steps, order.streams, -1)
    for stream in range(order.streams):
        ids = rows[:, stream].ravel()
        for shuffle, first in zip(order.shuffles, order._first_ids, strict=True):
            mine = ids[(ids >= first) & (ids < first + shuffle.num_records)] - first
            low, high = shuffle._bounds(stream)
            for at in range(0, len(mine) - (high - low) + 1, high - low):
                assert len(set(mine[at : at + high - low].tolist())) == high - low


def test_the_order_of_a_mixture_never_changes():
    # Golden: a saved position lives by it.
    shuffles = [
        Shuffle(n, np.arange(0, n, 2), seed=i, streams=2, window_records=3)
        for i, n in enumerate((5, 8))
    ]
    order = MixOrder(shuffles, [0, 5], check_weights([1, 3]), 4, seed=42, digest="")
    assert straight(order, 6) == [
        [8, 11, 5, 2], [7, 12, 9, 6], [7, 9, 3, 10], [8, 10, 11, 6], [6, 5, 5, 12], [7, 8, 4, 12],
    ]  # fmt: skip


def test_a_record_has_another_seed_in_every_pass_over_its_source():
    shuffles = [Shuffle(n, np.arange(n), seed=0, streams=2, window_records=3) for n in (5, 8)]
    order = MixOrder(shuffles, [0, 5], check_weights([1, 3]), 60, seed=42, digest="")
    rows = order.rows(order.start, [range(60)])
    assert len(set(rows.seeds.tolist())) == 60
    passes = [record_seeds(42, np.full(60, number), rows.record_ids) for number in range(8)]
    assert np.all(np.any(rows.seeds == passes, axis=0))


@pytest.fixture
def mixed(numbers_of):
    def make(weights=(0.7, 0.3), sizes=((5, 0, 7), (20, 3))):
        return mixture([open_dataset(numbers_of(*of_one)) for of_one in sizes], weights)

    return make


def test_sources_are_drawn_in_proportion_to_their_weights(mixed):
    source = train_dataset(mixed((3, 1)), global_batch=64, keys=("number",))
    batches = source.batches()
    rows = [next(batches) for _ in range(32)]
    batches.close()
    ids, numbers = (np.concatenate([batch[key] for batch in rows]) for key in ("_index", "number"))
    assert np.array_equal(np.where(ids < 12, ids, ids - 12), numbers)
    assert abs(float((ids < 12).mean()) - 0.75) < 0.03


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (
            {"weights": (0.6, 0.4)},
            "from a mixture with other weights, block_records or window_records",
        ),
        ({"sizes": ((20, 3), (5, 0, 7))}, "belongs to data"),
    ],
)
def test_a_position_of_another_mixture_is_refused(mixed, other, text):
    saved = train_dataset(mixed(), global_batch=4)
    with pytest.raises(FingerprintError, match=text):
        train_dataset(mixed(**other), global_batch=4).restore(saved.state(saved.start))


def test_a_default_window_size_that_changed_with_the_batch_size_is_explained(mixed):
    saved = train_dataset(mixed(), global_batch=1024, streams=4)
    with pytest.raises(
        FingerprintError, match=r"The default of window_records depends on global_batch"
    ):
        train_dataset(mixed(), global_batch=2048, streams=4).restore(saved.state(saved.start))
    given = [
        train_dataset(mixed(), global_batch=b, streams=4, window_records=5) for b in (1024, 2048)
    ]
    assert given[1].restore(given[0].state(given[0].start)) == given[0].start


@pytest.mark.parametrize(
    "weights", [(1, 0), (1, -1), (1, float("nan")), (1, float("inf")), (1, 1e-9)]
)
def test_weights_that_are_not_positive_numbers_are_refused(mixed, weights):
    with pytest.raises(
        OptionError,
        match=r"each source needs a number above 0|smallest share, .*, is below 9\.5e-07",
    ):
        mixed(weights)


def test_unsupported_uses_of_a_mixture_are_refused_with_the_alternative(mixed, numbers_of):
    with pytest.raises(OptionError, match="2 sources have 1 weights: give one for each"):
        mixed((1,))
    with pytest.raises(
        OptionError, match=r"a mixture is endless, so no epoch is exact\. Evaluate each source"
    ):
        eval_dataset(mixed(), global_batch=4)
    with pytest.raises(OptionError, match="split and limit apply to one source"):
        train_dataset(mixed(), "train[:5]", global_batch=4)
