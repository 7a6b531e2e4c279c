"""Photographs per second that one process and worker processes make on more cores than this machine has.

    python -m tests.benchmarks.bench_cores [--cores 1 2 4 8 16 32] [--batch 256] [--seconds 5]

Calls into C sleep for their length (see emulated), so a core is taken only by Python and NumPy; with all that many
cores need of these, the machine's own cores are the limit. Each measurement is a process of its own."""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.decoding import rows as row_decoding
from pipeline.inputs import dataset_input
from pipeline.shards.schema import Feature
from tests.benchmarks.conversion_data import photograph
from tests.benchmarks.harness import load, module, run, write_tfrecords

IMAGE = "image/encoded"
LABEL = "image/class/label"
RECORDS = 400
WARM_SECONDS = 4.0
METHODS = ("bilinear", "bicubic")


def ways(cores: int) -> dict[str, Any]:
    """What is given as `workers`."""
    return {"threads": 0, "a worker per 8 cores": -(-cores // 8), "auto": "auto"}


def measure(cores: int, workers: Any, method: str, data: str, batch: int, seconds: float) -> None:
    """Prints JSON: images per second, CPU microseconds per image of this process, workers."""
    from pipeline.datasets import train_dataset
    from tests.benchmarks.emulated import EmulatedCrop

    for each in (row_decoding, dataset_input):
        each.num_cores = lambda: cores
    source = train_dataset(
        data,
        "train",
        global_batch=batch,
        ops=[EmulatedCrop(IMAGE, method=method)],
        keys=["image", LABEL],
        epochs="span",
        workers=workers,
    )
    if workers == "auto":  # as if these few photographs were ImageNet
        dataset_input.choose_workers = as_of_imagenet(dataset_input.choose_workers)
    batches = source.batches()
    began = time.perf_counter()
    while time.perf_counter() - began < WARM_SECONDS:
        next(batches)
    began = time.perf_counter()
    cpu = time.process_time()
    images = 0
    while time.perf_counter() - began < seconds:
        next(batches)
        images += batch
    wall = time.perf_counter() - began
    taken = 1e6 * (time.process_time() - cpu) / images
    print(json.dumps([images / wall, taken, source._workers]), flush=True)
    batches.close()
    os._exit(0)


def as_of_imagenet(choose: Any) -> Any:
    """The choice for 1.28 million records."""
    return lambda cores, rows, _, cost: choose(cores, rows, 1_281_167, cost)


def main() -> None:
    """Prints a row per number of cores."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        data, workers, method = args.measure
        number = workers if workers == "auto" else int(workers)
        measure(args.cores[0], number, method, data, args.batch, args.seconds)
    print(f"{load()}, {os.cpu_count()} real cores; images/s (CPU us per image of the process)\n")
    print(f"| cores | method | {' | '.join(ways(1))} |")
    print("|" + " --- |" * 5)
    with tempfile.TemporaryDirectory() as data:
        random = np.random.default_rng(0)
        records = ({IMAGE: photograph(random, 375, 500), LABEL: i % 10} for i in range(RECORDS))
        features = {IMAGE: Feature("bytes"), LABEL: Feature("int64")}
        write_tfrecords(Path(data), features, records, per_file=100)
        for cores in args.cores:
            for method in args.methods:
                cells = [cell(cores, each, method, data, args) for each in ways(cores).values()]
                print(f"| {cores} | {method} | {' | '.join(cells)} |", flush=True)


def cell(cores: int, workers: Any, method: str, data: str, args: argparse.Namespace) -> str:
    command = [sys.executable, *module("bench_cores"), f"--cores={cores}", f"--batch={args.batch}"]
    command += [f"--seconds={args.seconds}", "--measure", data, str(workers), method]
    printed, _ = run(command)
    rate, cpu, chosen = json.loads(printed.splitlines()[-1])
    made_by = f"; {chosen} workers" if workers == "auto" else ""
    return f"{rate:,.0f} ({cpu:.0f}{made_by})"


if __name__ == "__main__":
    main()
