import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.orders.hashing import GAMMA, hash_key, op_seeds, permutation, record_seeds, splitmix64


def test_hashes_equal_the_reference_values_of_splitmix64():
    # The published stream of seed 1234567 (Vigna's splitmix64.c).
    stream = splitmix64(np.uint64(1234567) + np.arange(1, 4, dtype=np.uint64) * GAMMA)
    assert stream.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_the_order_of_a_seed_never_changes():
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
    assert not np.any(record_seeds(42, np.ones_like(ids), ids) == record_seeds(43, np.zeros_like(ids), ids))


def test_each_op_of_each_record_has_a_seed_of_its_own():
    seeds = op_seeds(record_seeds(0, np.zeros(500, int), np.arange(500)), 3)
    assert seeds.shape == (500, 3, 2)
    assert seeds.dtype == np.int32
    assert len(np.unique(seeds.reshape(-1, 2), axis=0)) == 1500
    assert abs(float((seeds < 0).mean()) - 0.5) < 0.03  # all bits vary, the sign too
