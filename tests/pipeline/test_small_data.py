"""Small data are one stream: in "span" every record comes once before any comes again, in "drop" none repeats."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples

from pipeline.datasets import open_dataset
from pipeline.hosts import Hosts
from pipeline.orders.defaults import Sizes, plan_records


def data(N):
    return open_dataset({"x": np.zeros(N, np.uint8)})


def planned(N, B, epochs, seed=0, streams=None):
    return plan_records(data(N), B, Sizes(streams, None, None), seed=seed, epochs=epochs)[0]


def assert_even(batches, N):
    """After every batch, the counts of the records differ by at most one."""
    counts = np.zeros(N, int)
    for ids in batches:
        counts += np.bincount(ids, minlength=N)
        assert counts.max() - counts.min() <= 1


def assert_no_repeats(batches, N):
    """In epochs of N // B batches, no record comes twice."""
    size = N // batches.shape[1]
    for first in range(0, len(batches), size):
        assert np.bincount(batches[first : first + size].ravel()).max() == 1


@settings(max_examples=examples(100))
@given(st.data())
def test_counts_are_even_and_hosts_agree_for_any_sizes(drawn):
    hosts, epochs = drawn.draw(st.integers(1, 4)), drawn.draw(st.sampled_from(["span", "drop"]))
    B = hosts * drawn.draw(st.integers(1, 100))
    N = drawn.draw(st.integers(B if epochs == "drop" else 1, 5000))
    order, steps = planned(N, B, epochs, drawn.draw(st.integers(0, 2**64))), min(40, 3 * N // B + 5)
    start = order.advance(order.start, drawn.draw(st.integers(0, 10**6)) if epochs == "span" else 0)
    batches = order.rows(start, [range(B)], steps).record_ids.reshape(steps, B)
    if epochs == "drop":
        assert_no_repeats(batches, N)
    else:  # from an epoch's first record on; before it, what is left of one
        skipped = -(start.epoch * N + start.records) % N
        assert len(set(batches.ravel()[:skipped])) == min(skipped, batches.size)
        assert_even(batches.ravel()[skipped:, None], N)
    parts = [
        order.rows(start, Hosts(host, hosts).host_rows(B), steps).record_ids
        for host in range(hosts)
    ]
    assert (
        np.concatenate([part.reshape(steps, -1) for part in parts], axis=1).tolist()
        == batches.tolist()
    )


def test_only_batches_that_cross_an_epoch_hold_a_record_twice():
    order = planned(234, 64, "span")
    batches = order.rows(order.start, [range(64)], 50).record_ids.reshape(50, 64)
    repeat = [step for step, ids in enumerate(batches) if len(set(ids)) < 64]
    assert repeat  # by chance: most of those that cross
    assert all(step * 64 // 234 < (step * 64 + 63) // 234 for step in repeat)


def test_the_order_of_small_data_never_changes():
    # Golden: a saved position lives by it.
    order = planned(7, 4, "span", seed=42)
    assert order.settings == {
        "seed": 42, "streams": 1, "block_records": 1, "window_records": 2048, "epochs": "span",
    }  # fmt: skip
    assert order.rows(order.start, [range(4)], 4).record_ids.tolist() == [
        1, 3, 4, 6, 5, 2, 0, 6, 1, 5, 3, 0, 4, 2, 1, 5,
    ]  # fmt: skip


def test_large_data_and_given_streams_keep_their_streams():
    assert planned(16_384, 128, "drop").streams == 1
    assert planned(16_385, 128, "drop").streams == 64
    assert planned(234, 64, "span", streams=16).streams == 16
