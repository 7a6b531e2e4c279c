"""Which steps go into which dispatch: arithmetic only."""

from collections.abc import Iterable, Iterator

__all__ = ["plan", "steps_that_fit"]


def plan(start: int, end: int, k: int, marks: Iterable[int] = ()) -> Iterator[int]:
    """Lengths of the dispatches from step `start` to `end`: each is k or 1, none crosses a multiple of a mark.

    The k-step dispatches stand on a grid that begins anew after every mark: they depend on the absolute step only,
    so a run that stops anywhere and goes on meets the same ones."""
    marks = tuple(marks)
    step = start
    while step < end:
        begin = max((step // mark * mark for mark in marks), default=0)
        stop = min((step // mark * mark + mark for mark in marks), default=end)
        length = k if (step - begin) % k == 0 and step + k <= min(stop, end) else 1
        yield length
        step += length


def steps_that_fit(k: int, marks: Iterable[int], step_bytes: int, cap_bytes: int) -> int:
    """The steps of one dispatch: k, less where a super-batch would exceed the cap or cross the nearest mark."""
    return max(1, min(k, cap_bytes // max(1, step_bytes), *marks))
