"""Which steps go into which dispatch: arithmetic only."""

from collections.abc import Collection, Iterable, Iterator

__all__ = ["plan", "steps_that_fit"]


def plan(start: int, end: int, k: int, marks: Iterable[int] = (), stops: Collection[int] = ()) -> Iterator[int]:
    """Lengths of the dispatches from step `start` to `end`: each is k or 1, none crosses a stop or a mark's multiple.

    The k-step dispatches stand on a grid that begins anew after every mark and stop: they depend on the absolute step
    only, so a run that stops anywhere and goes on meets the same ones."""
    marks = tuple(marks)
    step = start
    while step < end:
        begin = max([0, *(step // mark * mark for mark in marks), *(stop for stop in stops if stop <= step)])
        limit = min([end, *(step // mark * mark + mark for mark in marks), *(stop for stop in stops if stop > step)])
        length = k if (step - begin) % k == 0 and step + k <= limit else 1
        yield length
        step += length


def steps_that_fit(k: int, marks: Iterable[int], step_bytes: int, cap_bytes: int) -> int:
    """The steps of one dispatch: k, less where a super-batch would exceed the cap or cross the nearest mark."""
    return max(1, min(k, cap_bytes // max(1, step_bytes), *marks))
