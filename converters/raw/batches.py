"""Groups items by size, so that each group fits into memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")


def batches(items: Iterable[_Item], size: Callable[[_Item], int], enough: int) -> Iterator[Sequence[_Item]]:
    """The items in groups, each of which ends with the item that makes it large enough."""
    batch, total = list[_Item](), 0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= enough:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch
