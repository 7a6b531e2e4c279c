"""An order of training as JSON, and back: the same batches later, without the data that it was made for.

Pure NumPy. A run writes it once per start, so it stays small: block starts are a few arithmetic progressions."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.orders.mixing import MixOrder
from pipeline.orders.order import TrainOrder
from pipeline.orders.shuffle import Shuffle

__all__ = ["recorded_order", "restored_order"]


def recorded_order(order: TrainOrder | MixOrder) -> dict[str, Any]:
    """All that the batches of an order depend on, as JSON."""
    if isinstance(order, MixOrder):
        shuffles = [_recorded_shuffle(shuffle) for shuffle in order.shuffles]
        shares = [float(share) for share in order.shares]
        return {"mixture": order.settings, "batch": order.global_batch, "shuffles": shuffles, "shares": shares}
    starts = list(_progressions(order.shuffle.block_starts))
    size = {"num_records": order.num_records, "batch": order.global_batch}
    return order.settings | size | {"block_starts": starts}


def restored_order(recorded: Mapping[str, Any]) -> TrainOrder | MixOrder:
    """The order that was recorded. Raises KeyError or TypeError for JSON that is not one."""
    if "mixture" in recorded:
        settings, shuffles = recorded["mixture"], [_restored_shuffle(each) for each in recorded["shuffles"]]
        first_ids = np.cumsum([0, *(shuffle.num_records for shuffle in shuffles)])[:-1].tolist()
        shares = np.array(recorded["shares"])
        named = {"seed": settings["seed"], "digest": settings["mixture"]}
        return MixOrder(shuffles, first_ids, shares, recorded["batch"], **named)
    return TrainOrder(
        recorded["num_records"],
        recorded["batch"],
        seed=recorded["seed"],
        block_records=recorded["block_records"],
        block_starts=_expanded(recorded["block_starts"]),
        streams=recorded["streams"],
        window_records=recorded["window_records"],
        epochs=recorded["epochs"],
    )


def _recorded_shuffle(shuffle: Shuffle) -> dict[str, Any]:
    return {
        "num_records": shuffle.num_records,
        "seed": shuffle.seed,
        "streams": shuffle.streams,
        "window_records": shuffle.window_records,
        "block_starts": list(_progressions(shuffle.block_starts)),
    }


def _restored_shuffle(recorded: Mapping[str, Any]) -> Shuffle:
    sizes = {name: recorded[name] for name in ("seed", "streams", "window_records")}
    return Shuffle(recorded["num_records"], _expanded(recorded["block_starts"]), **sizes)


def _progressions(numbers: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """(first, step, count) of the arithmetic progressions that the numbers consist of."""
    steps = np.diff(numbers)
    # Where the step changes. Between two changes all steps are equal; the one across a change is left out.
    changes = np.append(np.flatnonzero(np.diff(steps)) + 1, len(steps)).tolist()
    first = 0
    for last in changes:
        yield int(numbers[first]), int(steps[first]) if last > first else 1, last - first + 1
        first = last + 1


def _expanded(progressions: Any) -> np.ndarray:
    return np.concatenate([first + step * np.arange(count, dtype=np.int64) for first, step, count in progressions])
