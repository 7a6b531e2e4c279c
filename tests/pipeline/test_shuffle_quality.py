"""How well the default order mixes data that is sorted by class, at ImageNet's size."""

import numpy as np
import pytest
from usual_order import usual_order

from pipeline.orders.shuffle import default_block_records

N, CLASSES, ROWS = 1_281_167, 1000, 1024


def mean_classes(labels: np.ndarray) -> float:
    """Different classes among each 1,024 rows in a row, in the mean."""
    return float(np.mean([len(np.unique(rows)) for rows in np.split(labels, len(labels) // ROWS)]))


@pytest.mark.parametrize(("batch", "record_bytes"), [(256, 2_000_000), (1024, 110_000), (4096, 3_000)])
def test_the_defaults_mix_sorted_data_nearly_as_a_true_shuffle_does(batch, record_bytes):
    labels, rows = np.arange(N) * CLASSES // N, 48 * 4096
    order = usual_order(N, batch, seed=1, block_records=default_block_records(record_bytes, N))
    steps = (order.advance(order.start, step) for step in range(rows // batch))
    ids = np.concatenate([order.rows(position, [range(batch)]).record_ids for position in steps])
    true_shuffle = mean_classes(labels[np.random.default_rng(0).permutation(N)[:rows]])
    assert mean_classes(labels[ids]) >= 0.85 * true_shuffle
