"""Which records may replace a bad one, in which order: readers take the first good one, and histories find it again.

Pure arithmetic. It depends only on the data, not on earlier batches, so every host and every resumed run agrees."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

__all__ = ["stand_ins"]


def stand_ins(source_starts: Sequence[int], record_id: int) -> Iterator[int]:
    """The other records of the same source, from the next one on, wrapping around. source_starts: see RecordsInfo."""
    source = bisect_right(source_starts, record_id)
    first, end = source_starts[source - 1 : source + 1]
    return (first + (record_id - first + step) % (end - first) for step in range(1, end - first))
