"""How soon the first batch comes, from the start and in the middle of an epoch, alternating within one process.

    python tests/benchmarks/reading_starts.py DIR [ROUNDS]

Each time everything is opened anew: manifest, index, shards, the order. The last line is JSON: milliseconds of each
round, cold and resumed (with the saved state read from JSON), of the reading alone and of train_dataset with labels
parsed."""

# ruff: noqa: E402 (a script: it finds its packages itself)

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2])]

from pipeline.datasets import open_dataset, train_dataset
from pipeline.order_defaults import READ_AHEAD_BYTES
from pipeline.orders.order import Position
from pipeline.orders.shuffle import default_block_records
from pipeline.sources.records import weighed
from tests.making.usual_order import usual_order

BATCH = 256


def first_read(directory: str, state: str | None) -> None:
    """The records of one batch, with the reading ahead of later ones that comes with it."""
    records = open_dataset(directory, "train")
    block = default_block_records(records.info.num_bytes / records.num_records, records.num_records)
    order = usual_order(records.num_records, BATCH, block_records=block)
    at = order.start if state is None else Position(*(json.loads(state)[name] for name in Position._fields))
    positions = (order.advance(at, step) for step in range(order.steps_per_epoch))
    groups = (order.rows(position, [range(BATCH)]).record_ids for position in positions)
    next(iter(records.read(weighed(records, groups), READ_AHEAD_BYTES)))


def first_batch(directory: str, state: str | None) -> None:
    """As a training run starts."""
    source = train_dataset(directory, global_batch=BATCH, keys=("label",))
    batches = source.batches(None if state is None else source.restore(json.loads(state)))
    next(batches)
    batches.close()
    batches.join(30)


def milliseconds(start: Callable[[str, str | None], None], directory: str, state: str | None) -> float:
    """Of one start."""
    begun = time.perf_counter()
    start(directory, state)
    return (time.perf_counter() - begun) * 1e3


def main() -> None:
    """Prints the numbers."""
    directory, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 15
    source = train_dataset(directory, global_batch=BATCH, keys=("label",))
    state = json.dumps(source.state(source.advance(source.start, source.steps_per_epoch // 2)))
    found: dict[str, list[float]] = {}
    for start in (first_read, first_batch):
        start(directory, state)  # what is paid once a process
        for _ in range(rounds):
            for name, at in (("cold", None), ("resumed", state)):
                found.setdefault(f"{start.__name__} {name}", []).append(milliseconds(start, directory, at))
    print(json.dumps(found | {"state_bytes": len(state)}))


if __name__ == "__main__":
    main()
