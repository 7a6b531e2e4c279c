"""CPU and wall time per record of training batches, here and in an earlier checkout, by the kind of records.

    python -m benchmarks.bench_input --before CHECKOUT [--python PYTHON] [--pairs 7] [KIND ...]
    python -m benchmarks.bench_input --workers 2 [--pairs 7] [KIND ...]

Each measurement is a process of its own; the two sides take turns. PYTHON: the interpreter of an environment for the
earlier checkout. --workers: batches of one process against those of so many workers, here; of these, CPU time is that
of the process that takes the batches. The data are made here. bench_images compares with the recipes of others."""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.conversion_data import photograph
from benchmarks.harness import ROOT, load, spread, write_tfrecords
from pipeline.shards.schema import Feature

IMAGE = {
    "image/encoded": Feature("bytes"),
    "image/class/label": Feature("int64"),
    "image/filename": Feature("bytes"),
}
LENGTH = 1024
PROGRAM = """
import json, os, resource, sys, time
began = time.perf_counter()
import numpy as np
import pipeline.datasets
imported = time.process_time()
from pipeline import ops
data, batch, batches, options = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), eval(sys.argv[4], vars(ops))
made = pipeline.datasets.train_dataset(data, "train", global_batch=batch, epochs="span", **options).batches()
next(made)
first = time.perf_counter() - began
for _ in range(5):
    next(made)
cpu, wall = time.process_time(), time.perf_counter()
for _ in range(batches):
    next(made)
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([1e6 * cpu / batch / batches, 1e6 * wall / batch / batches, first, imported, peak]), flush=True)
os._exit(0)
"""


class Kind(NamedTuple):
    """records: how many to write. options: of train_dataset, as text. batches: how many to measure."""

    features: Mapping[str, Feature]
    record: Callable[[np.random.Generator], dict[str, Any]]
    records: int
    options: str = "{}"
    batches: int = 120
    batch: int = 64


def pictures(height: int, width: int) -> Callable[[np.random.Generator], dict[str, Any]]:
    return lambda random: {
        "image/encoded": photograph(random, height, width),
        "image/class/label": int(random.integers(1000)),
        "image/filename": b"n01440764.JPEG",
    }


def table(
    floats: int, integers: int
) -> tuple[dict[str, Feature], Callable[[np.random.Generator], dict[str, Any]]]:
    features = {f"number_{i}": Feature("float32") for i in range(floats)}
    features |= {f"class_{i}": Feature("int64") for i in range(integers)}

    def record(random: np.random.Generator) -> dict[str, Any]:
        return {
            key: random.normal() if key[0] == "n" else int(random.integers(1000))
            for key in features
        }

    return features, record


def raw(*shape: int) -> tuple[dict[str, Feature], Callable[[np.random.Generator], dict[str, Any]]]:
    features = {"image": Feature("float32", shape), "label": Feature("int64")}
    return features, lambda random: {
        "image": random.random(math.prod(shape)).astype(np.float32),
        "label": 3,
    }


def packed(
    vocabulary: int,
) -> tuple[dict[str, Feature], Callable[[np.random.Generator], dict[str, Any]]]:
    shape = (LENGTH,)
    features = {key: Feature("int64", shape) for key in ("tokens", "segment_ids", "positions")}
    within = np.arange(LENGTH)
    return features, lambda random: {
        "tokens": random.integers(0, vocabulary, shape),
        "segment_ids": within // 128 + 1,
        "positions": within % 128,
    }


def ragged(random: np.random.Generator) -> dict[str, Any]:
    ids, weights = random.integers(20, 200, 2)
    return {
        "ids": random.integers(0, 32_000, ids),
        "weights": random.normal(size=weights),
        "label": 3,
    }


CROP = "'ops': [DecodeRandomResizedCrop()], 'keys': ['image', 'image/class/label']"
LISTS = {
    "ids": Feature("int64", (None,)),
    "weights": Feature("float32", (None,)),
    "label": Feature("int64"),
}
KINDS = {
    "photographs": Kind(IMAGE, pictures(375, 500), 800, f"{{{CROP}}}", 15),
    "photographs, TrivialAugmentWide": Kind(
        IMAGE, pictures(375, 500), 800, f"{{{CROP.replace(')]', '), TrivialAugmentWide()]')}}}", 15
    ),
    "JPEGs of 32 x 32": Kind(
        IMAGE,
        pictures(32, 32),
        8000,
        "{'ops': [DecodeJpeg('image/encoded', shape=(32, 32, 3))], 'keys': ['image', 'image/class/label']}",
    ),
    "raw float32 [32, 32, 3]": Kind(*raw(32, 32, 3), 4000),
    "raw float32 of 110 KB": Kind(*raw(96, 96, 3), 1000, batches=30),
    "raw float32 of 1 KB": Kind(*raw(16, 16), 6000, batches=400),
    "packed text, bytes": Kind(*packed(259), 4000),
    "packed text, 32k tokens": Kind(*packed(32_000), 4000),
    "packed text, 151k tokens": Kind(*packed(151_000), 4000),
    "ragged lists": Kind(LISTS, ragged, 6000, "{'pad_to': {'ids': 200, 'weights': 200}}"),
    "table, 13 floats and 26 integers": Kind(*table(13, 26), 6000),
    "table, 40 and 40": Kind(*table(40, 40), 6000),
    "table, 40 and 40, batches of 256": Kind(*table(40, 40), 6000, batches=40, batch=256),
}


def main() -> None:
    """Prints medians and quartiles of the pairs' ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "kinds",
        nargs="*",
        metavar="KIND",
        help=f"one of {', '.join(map(repr, KINDS))}; default: all",
    )
    sides = parser.add_mutually_exclusive_group(required=True)
    sides.add_argument("--before", type=Path)
    sides.add_argument("--workers", type=int, default=0)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--pairs", type=int, default=7)
    args = parser.parse_args()
    print(f"{load()}\n")
    print(
        "| records | CPU us before, now | ratio | wall us before, now | ratio | first batch, s | peak MiB | load |"
    )
    print("|" + " --- |" * 8)
    for name in args.kinds or KINDS:
        with tempfile.TemporaryDirectory() as data:
            kind, random = KINDS[name], np.random.default_rng(0)
            write_tfrecords(
                Path(data), kind.features, (kind.record(random) for _ in range(kind.records))
            )
            sides = ((args.before or ROOT, args.python, 0), (ROOT, sys.executable, args.workers))
            rounds = [[measured(data, kind, *side) for side in sides] for _ in range(args.pairs)]
        before, now = (
            [statistics.median(each) for each in zip(*side, strict=True)]
            for side in zip(*rounds, strict=True)
        )
        cpu, wall = (spread([new[at] / old[at] for old, new in rounds]) for at in (0, 1))
        print(
            f"| {name} | {before[0]:.0f}, {now[0]:.0f} | {cpu} | {before[1]:.0f}, {now[1]:.0f} | {wall} | "
            f"{before[2]:.1f}, {now[2]:.2f} | {before[4]:.0f}, {now[4]:.0f} | {os.getloadavg()[0]:.1f} |",
            flush=True,
        )


def measured(data: str, kind: Kind, checkout: Path, python: str, workers: int) -> list[float]:
    """See the last line of PROGRAM."""
    options = kind.options if not workers else f"{kind.options} | {{'workers': {workers}}}"
    command = [python, "-c", PROGRAM, data, str(kind.batch), str(kind.batches), options]
    env = os.environ | {"PYTHONPATH": str(checkout), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return json.loads(
        subprocess.run(command, env=env, cwd="/", check=True, capture_output=True, text=True).stdout
    )


if __name__ == "__main__":
    main()
