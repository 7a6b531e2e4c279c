"""How well orders mix data that is sorted by class, and what memory their windows take: numbers, nothing is read.

    python tests/benchmarks/shuffle_quality.py [--record_bytes 110000] [--rows 400000]

1,281,167 records of 1,000 classes, all of one class side by side. Printed is how many classes there are among each
1,024 rows in a row, in the mean, as a share of what a true permutation has. Then: the time of a plan from nothing."""

# ruff: noqa: E402 (a script: it finds its packages itself)

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[2])]

from pipeline.orders.order import TrainOrder
from pipeline.orders.shuffle import default_block_records
from tests.making.usual_order import usual_order

N, CLASSES, ROWS, BATCHES = 1_281_167, 1000, 1024, (256, 1024, 4096)
LABELS = np.arange(N) * CLASSES // N
GRID = [(1, 2_048), (1, 16_384), (2, 4_096), (4, 8_192), (4, 16_384), (10, 16_384), (10, 40_960), (32, 16_384)]


def mean_classes(labels: np.ndarray) -> float:
    """Different classes among each 1,024 rows in a row, in the mean."""
    return float(np.mean([len(np.unique(rows)) for rows in np.split(labels, len(labels) // ROWS)]))


def share(order: TrainOrder, rows: int, true_shuffle: float) -> float:
    """Of the classes that a true permutation shows."""
    steps = (order.advance(order.start, step) for step in range(rows // order.global_batch))
    ids = np.concatenate([order.rows(position, [range(order.global_batch)]).record_ids for position in steps])
    return mean_classes(LABELS[ids]) / true_shuffle


def plan_milliseconds(block_records: int, batch: int) -> float:
    """CPU time (on an idle machine: all time) of the order of an epoch's first batch, from nothing: median of 15."""
    took = []
    for seed in range(15):
        begun = time.thread_time()
        order = usual_order(N, batch, seed=seed, block_records=block_records)
        order.rows(order.start, [range(batch)])
        took.append(time.thread_time() - begun)
    return statistics.median(took) * 1e3


def main() -> None:
    """Prints two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record_bytes", type=int, default=110_000)
    parser.add_argument("--rows", type=int, default=400_000, help="how far an epoch is looked at")
    options = parser.parse_args()
    rows = options.rows // max(BATCHES) * max(BATCHES)
    true_shuffle = mean_classes(LABELS[np.random.default_rng(0).permutation(N)[:rows]])
    print(f"A true permutation has {true_shuffle:.1f} classes among 1,024 rows.\n")
    print(f"| K | C x W | GB in windows | {' | '.join(f'B = {batch}' for batch in BATCHES)} |\n|{' --- |' * 6}")
    default = default_block_records(options.record_bytes, N)
    for block, windows in (*GRID, (default, 0)):
        orders = [
            usual_order(N, batch, streams=64, block_records=block, window_records=windows // 64) for batch in BATCHES
        ]
        held = sorted({order.streams * order.window_records for order in orders})
        cells = " | ".join(f"{share(order, rows, true_shuffle):.3f}" for order in orders)
        sizes = " or ".join(f"{records * options.record_bytes / 1e9:.1f}" for records in held)
        records = " or ".join(f"{records:,}" for records in held) + ("" if windows else " (the default)")
        print(f"| {block} | {records} | {sizes} | {cells} |")
    print(f"\n| CPU ms to plan an epoch's first batch | K = {default} | K = 1 |\n| --- | --- | --- |")
    for batch in BATCHES:
        print(f"| B = {batch} | {plan_milliseconds(default, batch):.1f} | {plan_milliseconds(1, batch):.0f} |")


if __name__ == "__main__":
    main()
