"""The first and the second epoch with each cache, of shards on a disk and in a bucket with 50 ms to the first byte.

    python tests/benchmarks/bench_cache.py [--records 1500] [--rounds 3]

Records are 110 KB of noise, as photos are; nothing is decoded but a label. 32 MB are read ahead, so that the data are
not held whole without a cache. Prints the median of the rounds: microseconds a record, of the clock and of this
process. A first epoch builds the graph, too: half a second."""

# ruff: noqa: E402 (a script: it finds its packages itself)

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "servers"), str(Path(__file__).parents[2]), str(Path(__file__).parent)]

from bench_gcs_reading import BYTES_PER_SECOND, FIRST_BYTE_SECONDS, write_shards
from fake_gcs.server import start

from pipeline.datasets import DatasetInput, eval_dataset, train_dataset

BATCH, READ_AHEAD_BYTES = 50, 32_000_000
CACHES = {"training": ("none", "ram", "disk"), "evaluation": ("none", "ram", "disk")}


def epochs(source: DatasetInput) -> Iterator[tuple[float, float]]:
    """Microseconds a record, of the clock and of the process: the first epoch, the second."""
    for _ in range(2):
        begun, used = time.perf_counter(), time.process_time()
        batches = source.batches()
        for _ in range(source.steps_per_epoch):
            next(batches)
        batches.close()
        batches.join(10)
        seconds, of_process = time.perf_counter() - begun, time.process_time() - used
        yield 1e6 * seconds / source.num_records, 1e6 * of_process / source.num_records


def measured(kind: str, directory: str, cache: str, scratch: str) -> list[tuple[float, float]]:
    """Both epochs of one contender."""
    recipe = train_dataset if kind == "training" else eval_dataset
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        where = {"none": None, "disk": folder}.get(cache, cache)
        options = {"global_batch": BATCH, "keys": ("label",), "read_ahead_bytes": READ_AHEAD_BYTES}
        return list(epochs(recipe(directory, "train", cache=where, **options)))


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, start(Path(scratch)) as server:
        server.make_bucket("bench")
        os.environ.update(server.env)
        places = {"a disk": f"{scratch}/noise", "a bucket": "gs://bench/noise"}
        for directory in places.values():
            write_shards(directory, options.records)
        server.slow_down(first_byte_seconds=FIRST_BYTE_SECONDS, bytes_per_second=BYTES_PER_SECOND)
        print(f"| from | recipe | cache | first epoch | second epoch | CPU, second |\n|{' --- |' * 6}")
        for place, directory in places.items():
            for kind, caches in CACHES.items():
                for cache in caches:
                    rounds = [measured(kind, directory, cache, scratch) for _ in range(options.rounds)]
                    first = statistics.median(found[0][0] for found in rounds)
                    second, of_process = (statistics.median(found[1][i] for found in rounds) for i in (0, 1))
                    print(f"| {place} | {kind} | {cache} | {first:.0f} | {second:.1f} | {of_process:.1f} |", flush=True)


if __name__ == "__main__":
    main()
