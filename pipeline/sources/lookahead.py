"""Which records to read together: those that are due, with neighbours of theirs that will be due soon.

The order of records is known as far ahead as one likes, so a block whose records are wanted one after the other can
be read once. The reader plans with it. Numbers only: no I/O, no payload."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np

__all__ = ["Lookahead"]

_NONE = np.zeros(0, np.int64)


class Lookahead(Iterator[np.ndarray]):
    """Yields groups of record ids (int64) as they come due, and sees as many groups beyond as weigh `ahead`.

    groups: ids, and what they weigh. A record in sight is to be read once, however often it is used: `due` tells which
    to read, `used` when it may go."""

    def __init__(self, groups: Iterable[tuple[np.ndarray, int]], ahead: int) -> None:
        self._groups, self._ahead = iter(groups), ahead
        self._sight: deque[tuple[np.ndarray, int]] = deque()
        self._sight_weight = 0
        self.due_weight = 0  # of the group that came last
        self._seen = self._due = 0  # groups
        self._in_sight: set[int] = set()  # records whose use is still to come
        self._again: dict[int, int] = {}  # how many uses more than one, of the few that have them
        self._unread = self._needed_by = _NONE  # records, and the group that first needs each

    def __next__(self) -> np.ndarray:
        self._look()
        if not self._sight:
            raise StopIteration
        group, self.due_weight = self._sight.popleft()
        self._sight_weight -= self.due_weight
        self._due += 1
        return group

    def due(self, starts_of: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Records to read now, ascending, and the places in them at which reads begin; they count as read from now on.

        Each read has one record at least that is due. starts_of: ascending record ids -> where reads of them begin,
        the first at 0. Both results are int64, empty if all that is due was read before."""
        if not len(self._unread) or self._needed_by[0] > self._due:  # the records are in the order of need
            return _NONE, _NONE
        order = np.argsort(self._unread, kind="stable")
        ids = self._unread[order]
        starts = starts_of(ids)
        lengths = np.diff(starts, append=len(ids))
        wanted = np.minimum.reduceat(self._needed_by[order], starts) <= self._due
        now = np.repeat(wanted, lengths)
        left = np.sort(order[~now])
        self._unread, self._needed_by = self._unread[left], self._needed_by[left]
        return ids[now], np.cumsum(lengths[wanted]) - lengths[wanted]

    def sees(self, record_id: int) -> bool:
        """Whether a use of a record is still to come, as far as is seen."""
        return record_id in self._in_sight

    def used(self, group: np.ndarray) -> list[int]:
        """Notes one use of each record of a group; those for which it was the last in sight."""
        ids = group.tolist()
        last = ids if not self._again else [record_id for record_id in ids if not self._used_again(record_id)]
        self._in_sight.difference_update(last)
        return last

    def _used_again(self, record_id: int) -> bool:
        left = self._again.pop(record_id, 0)
        if left > 1:
            self._again[record_id] = left - 1
        return left > 0

    def _look(self) -> None:
        unread, needed_by = [self._unread], [self._needed_by]
        while not self._sight or self._sight_weight <= self._ahead:
            found = next(self._groups, None)
            if found is None:
                break
            group, weight = found
            self._sight.append((group, weight))
            self._sight_weight += weight
            self._seen += 1
            fresh = self._count(group)
            unread.append(fresh)
            needed_by.append(np.full(len(fresh), self._seen))
        self._unread, self._needed_by = np.concatenate(unread), np.concatenate(needed_by)

    def _count(self, group: np.ndarray) -> np.ndarray:
        ids, known = group.tolist(), self._in_sight
        if known.isdisjoint(ids) and len(set(ids)) == len(ids):  # as nearly always: 5x faster than one by one
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
