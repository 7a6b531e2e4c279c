import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sources.lookahead import Lookahead


def neighbours(ids):
    """A read goes over records that follow each other."""
    return np.flatnonzero(np.diff(ids, prepend=-2) != 1)


def reads_of(groups, ahead):
    """Drives a Lookahead as a reader does, and checks what a reader relies on. The reads, group by group."""
    lookahead, kept, reads = Lookahead(((np.array(group), len(group)) for group in groups), ahead), set(), []
    for group in lookahead:
        ids, starts = lookahead.due(neighbours)
        found = [run.tolist() for run in np.split(ids, starts[1:])] if len(ids) else []
        assert not kept & set(ids.tolist())  # what is there is not read again
        assert all(set(run) & set(group.tolist()) for run in found)  # and nothing that is not due by itself
        kept |= set(ids.tolist())
        assert kept >= set(group.tolist())
        kept -= set(lookahead.used(group))
        reads.append(found)
    assert not kept
    return reads


@given(
    groups=st.lists(st.lists(st.integers(0, 30), max_size=8).map(lambda ids: np.array(ids, np.int64)), max_size=12),
    ahead=st.integers(0, 40),
)
def test_records_are_read_before_use_and_released_after_their_last_visible_use(groups, ahead):
    assert len(reads_of(groups, ahead)) == len(groups)


def test_a_read_includes_the_neighbouring_records_within_the_look_ahead():
    groups = [[1, 7], [6, 2], [0, 20], [3, 8]]
    assert reads_of(groups, 6) == [[[0, 1, 2, 3], [6, 7, 8]], [], [[20]], []]
    assert reads_of(groups, 2) == [[[1, 2], [6, 7]], [], [[0], [20]], [[3], [8]]]
    assert reads_of(groups, 0) == [[[1], [7]], [[2], [6]], [[0], [20]], [[3], [8]]]


def test_a_record_repeated_within_the_look_ahead_is_read_once():
    assert reads_of([[5], [5], [5]], 1) == [[[5]], [], []]
    assert reads_of([[5], [9], [9], [5]], 1) == [[[5]], [[9]], [], [[5]]]


def test_the_look_ahead_requests_no_more_groups_than_it_covers():
    asked = []

    def groups():
        for i in itertools.count():
            assert i < 100, "it looks without end"
            asked.append(i)
            yield np.array([i]), 1

    lookahead = Lookahead(groups(), 3)
    next(lookahead)
    assert asked == [0, 1, 2, 3]
    next(lookahead)
    assert asked == [0, 1, 2, 3, 4]
