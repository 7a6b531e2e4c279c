"""Blocks of records, of which only those are kept that are short."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.orders.shuffle import Blocks

STARTS = st.one_of(
    st.builds(
        lambda count, step: (range(0, count, step), count), st.integers(1, 60), st.integers(1, 70)
    ),
    st.builds(
        lambda sizes: (np.cumsum([0, *sizes[:-1]]), sum(sizes)),
        st.lists(st.integers(1, 4), min_size=1, max_size=30),
    ),
)


@given(STARTS, st.randoms(use_true_random=False))
def test_where_blocks_begin_and_which_has_a_record_is_known_in_any_order(made, r):
    starts, num_records = made
    sizes = np.diff(np.asarray(starts), append=num_records)
    blocks = Blocks.that_begin(starts, num_records)
    order = np.array(r.sample(range(len(sizes)), len(sizes)))
    for some, of in ((blocks, sizes), (blocks.permuted(order), sizes[order])):
        begins = np.cumsum([0, *of])
        assert some.begin(np.arange(len(begins))).tolist() == begins.tolist()
        found = [some.holding(record) for record in range(num_records)]
        assert found == np.repeat(np.arange(len(of)), of).tolist()


def test_a_hundred_million_blocks_of_one_size_take_no_memory():
    blocks = Blocks.that_begin(range(0, 10**9 - 3, 10), 10**9 - 3)
    assert len(blocks.short) == 1
    assert blocks.begin(np.array([10**8 - 1, 10**8])).tolist() == [10**9 - 10, 10**9 - 3]
    assert blocks.holding(10**9 - 4) == 10**8 - 1
