import jax.numpy as jnp
import numpy as np
import pytest


@pytest.fixture(scope="session")
def make_batch():
    """Batches of noise as the trainer has them: rows that do not count are all zero, `_seed` too."""

    def make(rows=16, height=12, width=10, channels=3, masked=(), classes=5, salt=0):
        rng = np.random.default_rng((rows, height, width, salt))
        counts = np.isin(np.arange(rows), masked, invert=True)
        batch = {
            "image": rng.integers(0, 256, (rows, height, width, channels), np.uint8),
            "label": rng.integers(1, classes + 1, rows).astype(np.int32),
            "labels": np.eye(classes, dtype=np.float32)[rng.integers(0, classes, rows)],
            "_seed": rng.integers(0, 2**32, (rows, 2), np.uint32),
        }
        for value in batch.values():
            value[~counts] = 0
        return {key: jnp.asarray(value) for key, value in batch.items()} | {
            "_mask": jnp.asarray(counts, jnp.float32)
        }

    return make
