"""Training batches of 256 here and in tf.data, with the same work on both sides, all defaults: CPU time and throughput.

    python -m benchmarks.bench_same_work [--rounds 5] [--seconds 4] [KIND ...]

Both sides read shuffled records from a warm page cache, parse what a batch has, and decode images. tf.data's side is
written as its guides advise: interleaved files, `shuffle`, `parse_example` after `batch`, AUTOTUNE, `prefetch`. Each
measurement is a process of its own; the two take turns. CPU: of all threads and worker processes."""

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.conversion_data import photograph
from benchmarks.harness import load, module, run, spread, write_tfrecords
from pipeline.shards.schema import Feature

BATCH = 256
WARM_SECONDS = 3.0  # AUTOTUNE finds its numbers, workers start
RECORDS = 10_000_000  # for which the number of workers is chosen: the data stand in for large ones
SHUFFLED = 4096  # records in tf.data's buffer
SIZE = 224
IMAGE = "image/encoded"
LABEL = "image/class/label"
PICTURES = {IMAGE: Feature("bytes"), LABEL: Feature("int64")}
Record = Callable[[np.random.Generator], dict[str, Any]]


class Kind(NamedTuple):
    """records: how many are written, and copies, so that no side keeps all in memory. keys: the features of a batch. method: of the random crop of photographs; "whole" decodes
    small images; "" decodes nothing."""

    features: Mapping[str, Feature]
    record: Record
    records: int
    copies: int
    keys: tuple[str, ...]
    method: str = ""


def noise(low: int, high: int) -> Record:
    return lambda random: {
        IMAGE: random.bytes(int(random.integers(low, high))),
        LABEL: int(random.integers(10)),
    }


def pictures(height: int, width: int) -> Record:
    return lambda random: {
        IMAGE: photograph(random, height, width),
        LABEL: int(random.integers(10)),
    }


PHOTOGRAPHS = (PICTURES, pictures(375, 500), 800, 4, ("image", LABEL))
KINDS = {
    "106 KB, label parsed": Kind(PICTURES, noise(60_000, 150_000), 3000, 1, (LABEL,)),
    "900 bytes, label parsed": Kind(PICTURES, noise(800, 1000), 40_000, 10, (LABEL,)),
    "JPEG of 32 pixels, decoded": Kind(
        PICTURES, pictures(32, 32), 20_000, 16, ("image", LABEL), "whole"
    ),
    "256 tokens": Kind(
        {"tokens": Feature("int64", (256,))},
        lambda random: {"tokens": random.integers(0, 32_000, 256)},
        50_000,
        10,
        ("tokens",),
    ),
    "80 floats": Kind(
        {"x": Feature("float32", (80,)), "y": Feature("int64")},
        lambda random: {"x": random.normal(size=80), "y": int(random.integers(10))},
        50_000,
        20,
        ("x", "y"),
    ),
    "photographs, bilinear": Kind(*PHOTOGRAPHS, "bilinear"),
    "photographs, bicubic": Kind(*PHOTOGRAPHS, "bicubic"),
}


def write(kind: Kind, data: str) -> None:
    """The records of this kind, and their index."""
    random = np.random.default_rng(0)
    records = (kind.record(random) for _ in range(kind.records))
    per_file = max(kind.records // 8, 100)
    write_tfrecords(Path(data), kind.features, records, per_file=per_file, copies=kind.copies)


def ops_of(kind: Kind) -> list[Any]:
    """The ops of the toolkit that decode this kind. "central" is bench_grain's."""
    from pipeline import ops

    return {
        "": [],
        "whole": [ops.DecodeJpeg(IMAGE, shape=(32, 32, 3))],
        "bilinear": [ops.DecodeRandomResizedCrop(IMAGE, size=(SIZE, SIZE))],
        "central": [ops.DecodeCentralCrop(IMAGE, size=(SIZE, SIZE))],
        "bicubic": [ops.DecodeRandomResizedCrop(IMAGE, size=(SIZE, SIZE), method="bicubic")],
    }[kind.method]


def infeed(kind: Kind, data: str) -> Iterator[Any]:
    from pipeline.datasets import train_dataset

    return train_dataset(
        data, "train", global_batch=BATCH, ops=ops_of(kind), keys=kind.keys, epochs="span"
    ).batches()


def tf_data(kind: Kind, data: str) -> Iterator[Any]:
    import tensorflow as tf

    dtypes = {"bytes": tf.string, "int64": tf.int64, "float32": tf.float32}
    parsed = [IMAGE, LABEL] if kind.method else kind.keys
    spec = {
        key: tf.io.FixedLenFeature(kind.features[key].shape, dtypes[kind.features[key].dtype])
        for key in parsed
    }

    def decoded(payload: Any) -> Any:
        features = tf.io.parse_single_example(payload, spec)
        image = (
            tf.ensure_shape(tf.io.decode_jpeg(features[IMAGE], channels=3), (32, 32, 3))
            if kind.method == "whole"
            else random_crop(tf, features[IMAGE], kind.method)
        )
        return {"image": image, LABEL: features[LABEL]}

    files = tf.data.Dataset.list_files(f"{data}/train-*").repeat()
    records = files.interleave(
        lambda file: tf.data.TFRecordDataset(file, buffer_size=8 << 20),
        cycle_length=16,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=False,
    ).shuffle(SHUFFLED)
    if kind.method:
        batches = records.map(decoded, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH)
    else:
        batches = records.batch(BATCH).map(
            lambda payloads: tf.io.parse_example(payloads, spec),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
    return batches.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


def random_crop(tf: Any, encoded: Any, method: str) -> Any:
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(encoded),
        tf.constant([0.0, 0.0, 1.0, 1.0], shape=[1, 1, 4]),
        min_object_covered=0.0,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([begin[:2], size[:2]], 0)
    pixels = tf.io.decode_and_crop_jpeg(encoded, window, channels=3, dct_method="INTEGER_ACCURATE")
    values = tf.image.resize(pixels, (SIZE, SIZE), method=method)
    if method == "bicubic":
        values = tf.clip_by_value(values, 0.0, 255.0)
    return tf.image.random_flip_left_right(tf.cast(tf.round(values), tf.uint8))


SIDES = {"infeed": infeed, "tf.data": tf_data}


def cpu_seconds() -> float:
    """Of this process, and of those that it started: the children of /proc, because workers still run."""
    own = os.getpid()
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == own:
            ticks += int(fields[11]) + int(fields[12])
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def measure(side: str, name: str, data: str, seconds: float) -> None:
    """Prints JSON: CPU microseconds per record, and records per second."""
    from pipeline.inputs import dataset_input

    choose = dataset_input.choose_workers
    dataset_input.choose_workers = lambda cores, rows, _, cost: choose(cores, rows, RECORDS, cost)
    batches = SIDES[side](KINDS[name], data)
    began = time.perf_counter()
    while time.perf_counter() - began < WARM_SECONDS:
        next(batches)
    began = time.perf_counter()
    cpu = cpu_seconds()
    records = 0
    while time.perf_counter() - began < seconds:
        next(batches)
        records += BATCH
    wall = time.perf_counter() - began
    print(json.dumps([1e6 * (cpu_seconds() - cpu) / records, records / wall]), flush=True)
    os._exit(0)


def main() -> None:
    """Prints a row per kind: medians, and quartiles of the ratios within rounds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--measure", nargs=2, metavar=("SIDE", "DIR"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.measure[0], args.kinds[0], args.measure[1], args.seconds)
    print(f"{load()}, {os.cpu_count()} cores\n")
    print(
        "| records | infeed: CPU us, records/s | tf.data | CPU, infeed's over tf.data's | records/s |"
    )
    print("|" + " --- |" * 5)
    for name in args.kinds or KINDS:
        with tempfile.TemporaryDirectory() as data:
            write(KINDS[name], data)
            rounds = [
                [one(side, name, data, args.seconds) for side in SIDES] for _ in range(args.rounds)
            ]
        ours, theirs = (np.median(side, 0) for side in zip(*rounds, strict=True))
        ratios = [spread([a[at] / b[at] for a, b in rounds]) for at in (0, 1)]
        cells = [f"{cpu:.1f}, {rate:,.0f}" for cpu, rate in (ours, theirs)]
        print(f"| {name} | {' | '.join(cells + ratios)} |", flush=True)


def one(side: str, name: str, data: str, seconds: float) -> list[float]:
    command = [sys.executable, *module("bench_same_work"), name]
    printed, _ = run([*command, f"--seconds={seconds}", "--measure", side, data])
    return json.loads(printed.splitlines()[-1])


if __name__ == "__main__":
    main()
