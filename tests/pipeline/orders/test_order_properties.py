"""What the training order promises for every size: no record lost or doubled, no word of hosts, any way back in."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples
from usual_order import batch_ids, straight, usual_order

from pipeline.hosts import Hosts
from pipeline.orders.order import EvalOrder, Position, TrainOrder, divisors

MODES = st.sampled_from(["drop", "span"])


@st.composite
def train_orders(draw: st.DrawFn, modes: st.SearchStrategy[str] = MODES) -> TrainOrder:
    """Given streams or the default ones; half of them with little data: with "span", N < B and N < C."""
    epochs, streams = draw(modes), draw(st.integers(1, 6))
    batch = streams * draw(st.integers(1, 6))
    given_streams = draw(st.sampled_from([streams, None]))
    least = batch if epochs == "drop" else 1 if given_streams is None else streams
    return usual_order(
        draw(st.integers(least, least + 12) | st.integers(least, 150)),
        batch,
        seed=draw(st.integers(0, 2**70)),
        streams=given_streams,
        block_records=draw(st.integers(1, 40)),
        window_records=draw(st.integers(1, 40) | st.none()),
        epochs=epochs,  # pyright: ignore[reportArgumentType]
    )


@st.composite
def with_position(draw: st.DrawFn) -> tuple[TrainOrder, Position]:
    """An order and a place in it, also one that a run with another batch size may have left."""
    order = draw(train_orders())
    return order, Position(
        draw(st.integers(0, 3)), draw(st.integers(0, order.num_records // order.streams - 1))
    )


@st.composite
def shardings(draw: st.DrawFn, global_batch: int) -> list[Hosts]:
    """Slices of the batch, handed to hosts in any way that gives each a slice: interleaved, twice, in any order."""
    slices = draw(st.sampled_from(divisors(global_batch)))
    size, count = global_batch // slices, draw(st.integers(1, slices))
    holders = [[] for _ in range(count)]
    for i, part in enumerate(draw(st.permutations(range(slices)))):
        for host in {i % count, *draw(st.sets(st.integers(0, count - 1), max_size=2))}:
            holders[host].append(range(part * size, (part + 1) * size))
    return [Hosts(h, count, slices, tuple(rows)) for h, rows in enumerate(holders)]


def by_stream(order: TrainOrder, batches: list[list[int]]) -> list[list[int]]:
    rows = np.array(batches, np.int64).reshape(
        len(batches), order.streams, order.global_batch // order.streams
    )
    return rows.transpose(1, 0, 2).reshape(order.streams, -1).tolist()


@given(train_orders(st.just("drop")), st.integers(0, 3))
@settings(max_examples=examples(100))
def test_an_epoch_has_each_record_at_most_once_and_drops_less_than_a_batch(order, epoch):
    ids = [i for batch in straight(order, order.steps_per_epoch, Position(epoch, 0)) for i in batch]
    assert len(set(ids)) == len(ids) == order.num_records // order.global_batch * order.global_batch
    assert set(ids) <= set(range(order.num_records))


@given(train_orders(st.just("span")), st.integers(1, 3))
@settings(max_examples=examples(100))
def test_span_is_one_permutation_after_another(order, epochs):
    # By stream: each rolls over on its own. In every epoch they share out all records between them.
    N, C = order.num_records, order.streams
    streams = by_stream(order, straight(order, -(-epochs * (N // C + 1) * C // order.global_batch)))
    for epoch in range(epochs):
        lengths = [(c + 1) * N // C - c * N // C for c in range(C)]
        parts = [ids[epoch * n : (epoch + 1) * n] for ids, n in zip(streams, lengths, strict=True)]
        assert sorted(i for ids in parts for i in ids) == list(range(N))


@given(with_position())
@settings(max_examples=examples(100))
def test_the_global_batch_does_not_depend_on_the_number_of_hosts(order_and_position):
    order, position = order_and_position
    whole = order.rows(position, [range(order.global_batch)])
    # those that divide the streams, and more hosts than streams
    for count in divisors(order.global_batch):
        hosts = [
            order.rows(position, Hosts(h, count).host_rows(order.global_batch))
            for h in range(count)
        ]
        np.testing.assert_array_equal(
            np.concatenate([rows.record_ids for rows in hosts]), whole.record_ids
        )
        np.testing.assert_array_equal(np.concatenate([rows.seeds for rows in hosts]), whole.seeds)


@given(with_position(), st.data())
@settings(max_examples=examples(100))
def test_any_sharding_gives_its_hosts_the_rows_it_names(order_and_position, data):
    order, position = order_and_position
    whole = order.rows(position, [range(order.global_batch)])
    seen = set()
    for host in data.draw(shardings(order.global_batch)):
        numbers = [row for ranges in host.host_rows(order.global_batch) for row in ranges]
        rows = order.rows(position, host.host_rows(order.global_batch))
        np.testing.assert_array_equal(rows.record_ids, whole.record_ids[numbers])
        np.testing.assert_array_equal(rows.seeds, whole.seeds[numbers])
        seen |= set(numbers)
    assert seen == set(range(order.global_batch))


@given(with_position(), st.data(), st.integers(1, 9))
@settings(max_examples=examples(100))
def test_rows_of_several_batches_are_those_of_one_after_the_other(
    order_and_position, data, batches
):
    order, position = order_and_position
    host = data.draw(shardings(order.global_batch))[0].host_rows(order.global_batch)
    for each in (order, EvalOrder(order.num_records, order.global_batch)):
        at = position if each is order else each.start
        together = each.rows(at, host, batches)
        single = [each.rows(each.advance(at, step), host) for step in range(batches)]
        for name in ("record_ids", "epochs", "seeds"):
            expected = np.concatenate([getattr(rows, name) for rows in single])
            np.testing.assert_array_equal(getattr(together, name), expected)


@given(with_position(), st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=150)  # they cost nothing, and few begin just before the end of an epoch
def test_advancing_equals_stepping_from_any_position(order_and_position, first, then):
    order, begin = order_and_position
    position = order.advance(begin, 0)  # what another batch size left of an epoch may be no batch
    for _ in range(first + then):
        position = order.advance(position, 1)
    assert (
        order.advance(begin, first + then)
        == position
        == order.advance(order.advance(begin, first), then)
    )


@given(with_position(), st.integers(0, 40))
@settings(max_examples=examples(50))
def test_a_fresh_order_gives_any_batch_without_the_ones_before(order_and_position, before):
    order, position = order_and_position
    fresh = TrainOrder(order.num_records, order.global_batch, **order.settings)
    straight(order, before)  # fills the caches of one of the two
    assert batch_ids(fresh, position) == batch_ids(order, position)


@given(train_orders(st.just("span")), st.integers(0, 20), st.integers(1, 8))
@settings(max_examples=examples(40))
def test_span_resumes_with_another_batch_size_at_the_very_next_record(order, stop, times):
    assert_goes_on(order, stop, times, steps=10)


@given(train_orders(st.just("drop")), st.data())
@settings(max_examples=examples(100))
def test_an_epoch_resumes_with_another_batch_size_at_the_very_next_record(order, data):
    shortest = order.num_records // order.streams
    stop, times = (
        data.draw(st.integers(0, order.steps_per_epoch - 1)),
        data.draw(st.integers(1, shortest)),
    )
    at = order.advance(order.start, stop).records
    other = assert_goes_on(order, stop, times, steps=(shortest - at) // times)
    # What is left is less than one of the new batches: it is dropped.
    rest = Position(0, shortest - (shortest - at) % times)
    assert (
        batch_ids(other, rest)
        == batch_ids(other, Position(1, 0))
        == batch_ids(other, other.advance(rest, 0))
    )


def assert_goes_on(order: TrainOrder, stop: int, times: int, steps: int) -> TrainOrder:
    """`stop` batches of the one size, then `steps` of the other, are what batches of a row a stream give."""
    other, by_row = (
        TrainOrder(order.num_records, order.streams * n, **order.settings) for n in (times, 1)
    )
    before = straight(order, stop)
    after = straight(other, steps, order.advance(order.start, stop))
    rows = stop * order.global_batch // order.streams + steps * times
    joined = [a + b for a, b in zip(by_stream(order, before), by_stream(other, after), strict=True)]
    assert joined == by_stream(by_row, straight(by_row, rows))
    return other
