"""Plans which records to read together: those that are due, with neighbours that will be due soon.

The order of records is known arbitrarily far ahead, so a block whose records are needed one after
another can be read once. Readings plan with it. Numbers only: no I/O, no payloads."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np

_NONE = np.zeros(0, np.int64)


class Lookahead(Iterator[np.ndarray]):
    """Yields groups of record ids (int64) as they come due, and looks ahead at groups with a total
    weight of `ahead`.

    groups: ids, and their weight. A record in sight is read once, however often it is used: `due`
    returns the records to read, `used` those that may be dropped."""

    def __init__(self, groups: Iterable[tuple[np.ndarray, int]], ahead: int) -> None:
        self._groups = iter(groups)
        self._ahead = ahead
        self._sight = deque[tuple[np.ndarray, int]]()
        self._sight_weight = 0
        self.due_weight = 0  # of the last group yielded
        self._seen = self._due = 0  # groups
        self._in_sight = set[int]()  # records that have yet to be used
        # number of uses beyond the first, for the few records that have any
        self._again = dict[int, int]()
        self._unread = self._needed_by = _NONE  # records, and the first group that needs each

    def __next__(self) -> np.ndarray:
        self._look()
        if not self._sight:
            raise StopIteration
        group, self.due_weight = self._sight.popleft()
        self._sight_weight -= self.due_weight
        self._due += 1
        return group

    def due(self, starts_of: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Records to read now, ascending, and the indices at which reads start; the records then
        count as read.

        Each read contains at least one record that is due. starts_of: ascending record ids ->
        indices at which reads of them start, the first 0. Both results are int64, and empty if
        everything due has been read before."""
        if not len(self._unread) or self._needed_by[0] > self._due:  # sorted by need
            return _NONE, _NONE
        order = np.argsort(self._unread, kind="stable")
        ids = self._unread[order]
        starts = starts_of(ids)
        lengths = np.diff(starts, append=len(ids))
        is_due = np.minimum.reduceat(self._needed_by[order], starts) <= self._due
        now = np.repeat(is_due, lengths)
        left = np.sort(order[~now])
        self._unread = self._unread[left]
        self._needed_by = self._needed_by[left]
        return ids[now], np.cumsum(lengths[is_due]) - lengths[is_due]

    def sees(self, record_id: int) -> bool:
        """Whether a group in sight has yet to use a record."""
        return record_id in self._in_sight

    def used(self, group: np.ndarray) -> list[int]:
        """Notes one use of each record of a group; returns the records for which it was the last
        use in sight."""
        last = group.tolist()
        if self._again:
            last = [record_id for record_id in last if not self._used_again(record_id)]
        self._in_sight.difference_update(last)
        return last

    def _used_again(self, record_id: int) -> bool:
        left = self._again.pop(record_id, 0)
        if left > 1:
            self._again[record_id] = left - 1
        return left > 0

    def _look(self) -> None:
        unread = [self._unread]
        needed_by = [self._needed_by]
        while (not self._sight or self._sight_weight <= self._ahead) and (
            weighed := next(self._groups, None)
        ):
            self._sight.append(weighed)
            self._sight_weight += weighed[1]
            self._seen += 1
            fresh = self._count(weighed[0])
            unread.append(fresh)
            needed_by.append(np.full(len(fresh), self._seen))
        self._unread = np.concatenate(unread)
        self._needed_by = np.concatenate(needed_by)

    def _count(self, group: np.ndarray) -> np.ndarray:
        ids = group.tolist()
        known = self._in_sight
        # the usual case: 5x faster than one by one
        if known.isdisjoint(ids) and len(set(ids)) == len(ids):
            known.update(ids)
            return group
        fresh = []
        for record_id in ids:
            if record_id in known:
                self._again[record_id] = self._again.get(record_id, 0) + 1
            else:
                known.add(record_id)
                fresh.append(record_id)
        return np.array(fresh, np.int64)
