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
    returns the records to read, `used` those that may be dropped. Memory is only for records in
    sight.

    places_of: ids, ascending -> int64 [k, n], what is known of each record. The first of these k
    columns has the ids, by default the only one."""

    def __init__(
        self,
        groups: Iterable[tuple[np.ndarray, int]],
        ahead: int,
        places_of: Callable[[np.ndarray], np.ndarray] = lambda ids: ids[np.newaxis],
    ) -> None:
        self._groups = iter(groups)
        self._ahead = ahead
        self._sight = deque[tuple[np.ndarray, int]]()
        self._sight_weight = 0
        self.due_weight = 0  # of the last group yielded
        self._seen = self._due = 0  # groups
        self._uses = _NONE  # the records of the groups in sight, ascending, once per use
        self._places_of = places_of
        self._unread = places_of(_NONE)  # of records, ascending
        self._needed_by = _NONE  # the first group that needs each

    def __next__(self) -> np.ndarray:
        self._look()
        if not self._sight:
            raise StopIteration
        group, self.due_weight = self._sight.popleft()
        self._sight_weight -= self.due_weight
        self._due += 1
        return group

    def due(self, starts_of: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """The places of the records to read now, ascending, and the indices at which reads start;
        the records then count as read.

        Each read contains at least one record that is due. starts_of: places -> indices at which
        reads of them start, the first 0. Both results are int64, and empty if everything due has
        been read before."""
        if not (self._needed_by <= self._due).any():
            return self._unread[:, :0], _NONE
        starts = starts_of(self._unread)
        lengths = np.diff(starts, append=len(self._needed_by))
        is_due = np.minimum.reduceat(self._needed_by, starts) <= self._due
        now = np.repeat(is_due, lengths)
        places = self._unread[:, now]
        self._unread = self._unread[:, ~now]
        self._needed_by = self._needed_by[~now]
        return places, np.cumsum(lengths[is_due]) - lengths[is_due]

    def sees(self, record_id: int) -> bool:
        """Whether a group in sight has yet to use a record."""
        return bool(_among(self._uses, np.array([record_id]))[0])

    def used(self, group: np.ndarray) -> np.ndarray:
        """Notes one use of each record of a group; returns the records for which it was the last
        use in sight."""
        ids = np.sort(group)
        earlier = np.arange(len(ids)) - np.searchsorted(ids, ids)  # uses by the group itself
        kept = np.ones(len(self._uses), bool)
        kept[np.searchsorted(self._uses, ids) + earlier] = False
        self._uses = self._uses[kept]
        return ids[(earlier == 0) & ~_among(self._uses, ids)]

    def _look(self) -> None:
        unread = [self._unread]
        needed_by = [self._needed_by]
        while not self._sight or self._sight_weight <= self._ahead:
            following = next(self._groups, None)
            if following is None:
                break
            group, weight = following
            self._sight.append((group, weight))
            self._sight_weight += weight
            self._seen += 1
            fresh = self._count(group)
            unread.append(self._places_of(fresh))
            needed_by.append(np.full(len(fresh), self._seen))
        if len(unread) > 1:
            places = np.concatenate(unread, axis=1)
            order = np.argsort(places[0], kind="stable")  # merges what is sorted
            self._unread = places[:, order]
            self._needed_by = np.concatenate(needed_by)[order]

    def _count(self, group: np.ndarray) -> np.ndarray:
        """Notes the uses by a group; returns the records that no other one in sight needs."""
        ids = np.sort(group)
        fresh = ids[(np.diff(ids, prepend=-1) != 0) & ~_among(self._uses, ids)]
        self._uses = np.insert(self._uses, np.searchsorted(self._uses, ids), ids)
        return fresh


def _among(ascending: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """bool [n]: which of the ids are among others, which are ascending."""
    return np.searchsorted(ascending, ids, "right") > np.searchsorted(ascending, ids)
