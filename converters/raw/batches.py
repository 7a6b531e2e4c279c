"""Groups of items that are large enough to be worth one step."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")


def batches(
    items: Iterable[_Item],
    size: Callable[[_Item], int],
    enough: int,
    error: Callable[[_Item], str] = lambda _: "",
    most_bad: int = 0,
) -> Iterator[Sequence[_Item]]:
    """The items in groups. A group ends with the item that makes it large enough, or that has an
    error after most_bad others."""
    batch = list[_Item]()
    total = bad = 0
    for item in items:
        batch.append(item)
        total += size(item)
        bad += bool(error(item))
        if total >= enough or bad > most_bad:
            yield batch
            batch = []
            total = bad = 0
    if batch:
        yield batch
