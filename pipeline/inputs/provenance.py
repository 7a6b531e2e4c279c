"""Where the batches of training come from, as JSON, and what can be computed from it: their order,
and their records.

A run writes it once per start, so it stays small: numbers and names only, and block starts are a
few arithmetic progressions. Tools that look back restore the order without the data, and open the
records again to name them."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InfeedError, ShardError
from pipeline.orders.mixing import MixOrder
from pipeline.orders.order import TrainOrder
from pipeline.orders.shuffle import Shuffle
from pipeline.shards.manifest import read_manifest
from pipeline.sources.concatenated import Concatenated
from pipeline.sources.indexed_records import IndexedRecords
from pipeline.sources.records import Records, as_array
from pipeline.storage.schemes import is_remote, open_storage


def provenance_of(
    records: Records, order: TrainOrder | MixOrder, on_error: str
) -> Mapping[str, Any]:
    """The provenance of training on these records in this order. on_error: how bad records are
    treated."""
    return {
        "fingerprint": records.info.fingerprint,
        "order": recorded_order(order),
        "sources": [asdict(origin) for origin in origins_of(records)],
        "source_starts": records.info.source_starts.tolist(),
        "on_error": on_error,
    }


def recorded_order(order: TrainOrder | MixOrder) -> dict[str, Any]:
    """All that the batches of an order depend on, as JSON."""
    if isinstance(order, MixOrder):
        return {
            "mixture": order.settings,
            "batch": order.global_batch,
            "shuffles": list(map(_recorded_shuffle, order.shuffles)),
            "shares": order.shares.tolist(),
        }
    return {
        **order.settings,
        "num_records": order.num_records,
        "batch": order.global_batch,
        "block_starts": list(_progressions(order.shuffle.block_starts)),
    }


def restored_order(recorded: Mapping[str, Any]) -> TrainOrder | MixOrder:
    """The order that was recorded. Raises KeyError or TypeError for JSON that is not one."""
    if "mixture" in recorded:
        settings = recorded["mixture"]
        shuffles = list(map(_restored_shuffle, recorded["shuffles"]))
        first_ids = np.cumsum([0, *(shuffle.num_records for shuffle in shuffles)])[:-1].tolist()
        return MixOrder(
            shuffles,
            first_ids,
            np.array(recorded["shares"]),
            recorded["batch"],
            seed=settings["seed"],
            digest=settings["mixture"],
        )
    names = ("num_records", "seed", "block_records", "streams", "window_records", "epochs")
    return TrainOrder(
        **{name: recorded[name] for name in names},
        global_batch=recorded["batch"],
        block_starts=_expanded(recorded["block_starts"]),
    )


_OF_SHUFFLES = ("num_records", "seed", "streams", "window_records")


def _recorded_shuffle(shuffle: Shuffle) -> dict[str, Any]:
    sizes = {name: getattr(shuffle, name) for name in _OF_SHUFFLES}
    return {**sizes, "block_starts": list(_progressions(shuffle.block_starts))}


def _restored_shuffle(recorded: Mapping[str, Any]) -> Shuffle:
    sizes = {name: recorded[name] for name in _OF_SHUFFLES}
    return Shuffle(block_starts=_expanded(recorded["block_starts"]), **sizes)


def _progressions(starts: range | np.ndarray) -> Iterator[tuple[int, int, int]]:
    """(first, step, count) of the arithmetic progressions that the numbers consist of."""
    numbers = as_array(starts)
    steps = np.diff(numbers)
    # Where the step changes. Between two changes all steps are equal; the one across a change is
    # left out.
    changes = np.append(np.flatnonzero(np.diff(steps)) + 1, len(steps)).tolist()
    first = 0
    for last in changes:
        yield int(numbers[first]), int(steps[first]) if last > first else 1, last - first + 1
        first = last + 1


def _expanded(progressions: Any) -> np.ndarray:
    return np.concatenate(
        [first + step * np.arange(count, dtype=np.int64) for first, step, count in progressions]
    )


def stand_ins(source_starts: Sequence[int], record_id: int) -> Iterator[int]:
    """The records that may replace a bad one, in order: the others of its source, from the next one
    on, wrapping around.

    Readers take the first good one, and histories find it again: it depends only on the data, so
    every host and every resumed run agrees. source_starts: see RecordsInfo."""
    source = bisect_right(source_starts, record_id)
    first, end = source_starts[source - 1 : source + 1]
    return (first + (record_id - first + step) % (end - first) for step in range(1, end - first))


@dataclass(frozen=True)
class Origin:
    """Consecutive records of one source: numbers first..stop-1 of it.

    directory, split: of the manifest that lists the source; None for data without one. name: of the
    source, for messages. fingerprint: identifies its data, wherever they are."""

    name: str
    fingerprint: str
    first: int
    stop: int
    directory: str | None = None
    split: str | None = None


def origins_of(records: Records) -> list[Origin]:
    """The origins of these records, in order: one for each part of a concatenation or mixture."""
    return list(_origins(records, range(records.info.num_records)))


def _origins(records: Records, which: range) -> Iterator[Origin]:
    """`which`: the numbers of the records to cover."""
    while (source := getattr(records, "source", None)) is not None:  # a Dataset, or a cache
        records = source
    if isinstance(records, Concatenated):
        for part, first in zip(records.parts, records.info.source_starts.tolist(), strict=False):
            low, high = (
                min(max(at - first, 0), len(part.which)) for at in (which.start, which.stop)
            )
            if low < high:
                yield from _origins(part.records, part.which[low:high])
        return
    place = split = None
    if isinstance(records, IndexedRecords):
        directory = records.manifest.directory
        split = records.split
        place = directory if is_remote(directory) else str(Path(directory).absolute())
    info = records.info
    yield Origin(info.name, info.fingerprint, which.start, which.stop, directory=place, split=split)


def reopened(origin: Origin, directory: str | None = None) -> IndexedRecords:
    """The source of an origin, opened again: in `directory`, to which some data have been moved, or
    where it was.

    Raises ShardError if it cannot be opened without the program that made it, or has other data
    now; and whatever opening raises."""
    if origin.directory is None or origin.split is None:
        raise ShardError(
            f"{origin.name} has no manifest, so it cannot be opened again to name its records."
        )
    if directory is None:
        return _opened(origin, origin.directory, origin.split)
    try:
        return _opened(origin, directory, origin.split)
    except InfeedError as moved:
        try:  # of a mixture, only some sources were moved
            return _opened(origin, origin.directory, origin.split)
        except InfeedError:
            raise moved from None


def _opened(origin: Origin, place: str, split: str) -> IndexedRecords:
    storage = open_storage(place)
    records = IndexedRecords(read_manifest(place, storage), split, storage)
    info = records.info
    if info.fingerprint != origin.fingerprint:
        raise ShardError(
            f"{info.name} has the fingerprint {info.fingerprint}; the run read "
            f"{origin.fingerprint}. The data have been converted again, or are other data. Give "
            "--data-dir with those that the run read."
        )
    return records
