"""Groups of items that are large enough to be worth one step."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")


def batches(
    items: Iterable[_Item],
    size: Callable[[_Item], int],
    enough: int,
) -> Iterator[Sequence[_Item]]:
    """The items in groups. A group ends with the item that makes it large enough."""
    batch = list[_Item]()
    total = 0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= enough:
            yield batch
            batch = []
            total = 0
    if batch:
        yield batch
