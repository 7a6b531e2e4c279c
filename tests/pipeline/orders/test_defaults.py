"""Streams, blocks and windows that follow from the data and the batch."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from usual_order import usual_order

from pipeline.orders.defaults import Sizes, default_streams, plan_records, training_bytes
from pipeline.orders.order import divisors
from pipeline.orders.shuffle import default_block_records
from pipeline.sources.records import READ_AHEAD_BYTES


def source(num_records, record_bytes=1000):
    """What plans need of records that can be read by number."""
    sizes = {"num_records": num_records, "num_bytes": num_records * record_bytes}
    info = SimpleNamespace(name="numbers", whole_files=None, **sizes)
    return SimpleNamespace(info=info, block_starts=lambda block: np.arange(0, num_records, block))


NOT_GIVEN = Sizes(None, None, None)


@settings(max_examples=20)
@given(st.integers(1, 2**20), st.integers(1, 5000))
def test_the_default_streams_divide_the_batch_and_have_a_record_each(N, batch):
    both = [source(N).info, source(2**20).info]  # a mixture
    streams = default_streams(both, batch)
    assert batch % streams == 0
    assert streams <= min(64, N)
    assert all(d <= streams or d > min(64, N) for d in divisors(batch))
    assert default_streams(both[:1], batch) == (1 if N <= 16_384 else streams)


def test_default_streams_blocks_and_windows_never_change():
    order, _ = plan_records(source(1_281_167, 110_000), 1024, NOT_GIVEN, seed=0, epochs="drop")
    assert order.settings == {
        "seed": 0, "streams": 64, "block_records": 10, "window_records": 320, "epochs": "drop",
    }  # fmt: skip
    assert order.steps_per_epoch == 1251
    assert (default_block_records(2_500_000, 10**9), default_block_records(0.5, 2 * 10**10)) == (
        1,
        1_000_000,
    )
    assert (default_block_records(1_000, 1_797), default_block_records(1_000, 60_000)) == (1, 4)


def test_windows_of_small_records_fit_in_what_a_disk_reads_ahead():
    for record_bytes in (0, 116, 1000, 4095):
        records = source(200_000_000, record_bytes)
        records.info.remote = False
        order, window_bytes = plan_records(records, 1024, NOT_GIVEN, seed=0, epochs="drop")
        ahead = training_bytes(records.info, window_bytes)
        assert window_bytes <= ahead < 1.1 * READ_AHEAD_BYTES
        assert order.window_records * order.streams >= 2048 * order.block_records
    assert order.block_records == 29
    assert training_bytes(records.info, window_bytes, mixed=True) == READ_AHEAD_BYTES


N, CLASSES, ROWS = 1_281_167, 1000, 1024


def mean_classes(labels: np.ndarray) -> float:
    """Different classes among each 1,024 rows in a row, in the mean."""
    return float(np.mean([len(np.unique(rows)) for rows in np.split(labels, len(labels) // ROWS)]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "record_bytes"), [(256, 2_000_000), (1024, 110_000), (4096, 3_000)]
)
def test_the_defaults_mix_sorted_data_nearly_as_a_true_shuffle_does(batch, record_bytes):
    labels, rows = np.arange(N) * CLASSES // N, 48 * 4096
    order = usual_order(N, batch, seed=1, block_records=default_block_records(record_bytes, N))
    steps = (order.advance(order.start, step) for step in range(rows // batch))
    ids = np.concatenate([order.rows(position, [range(batch)]).record_ids for position in steps])
    true_shuffle = mean_classes(labels[np.random.default_rng(0).permutation(N)[:rows]])
    assert mean_classes(labels[ids]) >= 0.85 * true_shuffle
