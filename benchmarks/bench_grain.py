"""Shuffled training batches with the same work on all sides: infeed's train_dataset, programs of tf.data, and grain over
infeed's records and over ArrayRecord.

    python -m benchmarks.bench_grain [--rounds 3] [--seconds 4] [KIND ...]

All sides read from a warm page cache and decode images: those of 32 pixels completely, photographs to a central crop of
224 pixels, bilinear. grain has its default ReadOptions, 16 threads. `source` is MapDataset.source(pipeline.grain.source),
and `take` lets grain shuffle and batch numbers, which Source.take decodes. ArrayRecord's records are as cheap to parse as
can be, a label of four bytes and the JPEG, and are decoded as infeed's ops do, with simplejpeg and OpenCV; nothing checks
them, and infeed's are verified. `x 2`: mp_prefetch with two workers of one thread each: with 16, all would be slower on
few cores. Each measurement is a process of its own; all sides take turns. CPU: of all threads and worker processes."""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import bench_same_work as same_work
from benchmarks.bench_same_work import IMAGE, KINDS, LABEL, SIZE, Kind, cpu_seconds, write
from benchmarks.harness import load, module, run, spread

# grain makes 16 batches at a time in each process, which come in bursts: smaller ones of photographs, and many
PHOTOGRAPHS = KINDS["photographs, bilinear"]._replace(method="central")
GRAIN_KINDS = {
    "JPEG of 32 pixels, decoded": (KINDS["JPEG of 32 pixels, decoded"], 256),
    "photographs, central crop": (PHOTOGRAPHS, 64),
}
WARM_BATCHES, LEAST_BATCHES = 32, 96
ARRAY_RECORDS = "array_record"  # the folder


def write_array_records(data: str) -> None:
    """The same images and labels in the same order, a record a chunk, as grain asks for."""
    from array_record.python.array_record_module import ArrayRecordWriter

    from pipeline.datasets import open_dataset

    folder = Path(data, ARRAY_RECORDS)
    folder.mkdir()
    examples = open_dataset(data, "train").examples([IMAGE, LABEL])
    for begin in range(0, len(examples), 2500):
        name = f"train-{begin // 2500:05d}.array_record"
        writer = ArrayRecordWriter(str(folder / name), "group_size:1,uncompressed")
        for example in examples[begin : begin + 2500]:
            writer.write(int(example[LABEL]).to_bytes(4, "little") + example[IMAGE])
        writer.close()


def decoded(record: bytes) -> dict[str, Any]:
    import simplejpeg

    pixels = simplejpeg.decode_jpeg(record[4:], "RGB")
    return {"image": pixels, LABEL: np.int32(int.from_bytes(record[:4], "little"))}


def cropped(record: bytes) -> dict[str, Any]:
    """The central crop of DecodeCentralCrop."""
    from pipeline.decoding.resizing import cv2

    features = decoded(record)
    height, width = features["image"].shape[:2]
    side = SIZE * min(height, width) // (SIZE + 32)
    y, x = (height - side) // 2, (width - side) // 2
    crop = features["image"][y : y + side, x : x + side].astype(np.uint16)
    resized = cv2.resize(crop, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
    return features | {"image": resized.astype(np.uint8)}


def opened(kind: Kind, data: str) -> Any:
    from pipeline.grain import source

    return source(data, "train", ops=same_work.ops_of(kind), keys=kind.keys)


def of_records(kind: Kind, data: str, batch: int) -> Any:
    import grain

    return grain.MapDataset.source(opened(kind, data)).shuffle(seed=0).repeat().batch(batch)


def of_numbers(kind: Kind, data: str, batch: int) -> Any:
    import grain

    records = opened(kind, data)
    numbers = grain.MapDataset.range(len(records)).shuffle(seed=0).repeat()
    return numbers.batch(batch).map(records.take)


def of_array_records(kind: Kind, data: str, batch: int) -> Any:
    import grain

    files = sorted(map(str, Path(data, ARRAY_RECORDS).iterdir()))
    source: Any = grain.sources.ArrayRecordDataSource(files)
    records = grain.MapDataset.source(source)
    decode = decoded if kind.method == "whole" else cropped
    return records.shuffle(seed=0).repeat().map(decode).batch(batch)


def of_examples(kind: Kind, data: str, batch: int) -> Iterator[Any]:
    """tf_data.examples, and TensorFlow's decoding."""
    import tensorflow as tf

    from pipeline import tf_data

    decode = in_tensorflow(tf, kind)
    examples = tf_data.examples(data, shuffle=True, keys=[IMAGE, LABEL])
    examples = examples.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    return tf_data.training_batches(examples, batch, per_host=True).as_numpy_iterator()


def as_big_vision(kind: Kind, data: str, batch: int) -> Iterator[Any]:
    """The same decoding with the order of calls and the settings of big_vision's input_pipeline.py, from TFRecord files."""
    import tensorflow as tf

    spec = {IMAGE: tf.io.FixedLenFeature([], tf.string), LABEL: tf.io.FixedLenFeature([], tf.int64)}
    decode = in_tensorflow(tf, kind)
    options = tf.data.Options()
    options.deterministic = False
    options.threading.max_intra_op_parallelism = 1
    options.threading.private_threadpool_size = 48
    files = tf.data.Dataset.list_files(f"{data}/train-*").repeat()
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=16, block_length=16)
    examples = records.with_options(options).shuffle(same_work.SHUFFLED)
    examples = examples.map(
        lambda record: decode(tf.io.parse_single_example(record, spec)), num_parallel_calls=100
    )
    return examples.batch(batch, drop_remainder=True).prefetch(2).as_numpy_iterator()


def in_tensorflow(tf: Any, kind: Kind) -> Any:
    """What `decoded` and `cropped` do."""

    def pixels(encoded: Any) -> Any:
        if kind.method == "whole":
            return tf.ensure_shape(tf.io.decode_jpeg(encoded, channels=3), (32, 32, 3))
        shape = tf.io.extract_jpeg_shape(encoded)[:2]
        side = SIZE * tf.reduce_min(shape) // (SIZE + 32)
        window = tf.concat([(shape - side) // 2, [side, side]], 0)
        crop = tf.io.decode_and_crop_jpeg(encoded, window, 3, dct_method="INTEGER_ACCURATE")
        return tf.cast(tf.round(tf.image.resize(crop, (SIZE, SIZE))), tf.uint8)

    return lambda example: {"image": pixels(example[IMAGE]), LABEL: example[LABEL]}


TF_DATA = {"tf.data, examples": of_examples, "tf.data, as big_vision": as_big_vision}
GRAIN = {"source": of_records, "take": of_numbers, "ArrayRecord": of_array_records}
SIDES = ("train_dataset", *TF_DATA, *GRAIN, *(f"{side} x 2" for side in GRAIN))


def batches_of(side: str, kind: Kind, data: str, batch: int) -> Iterator[Any]:
    if side in TF_DATA:
        return TF_DATA[side](kind, data, batch)
    if side == "train_dataset":
        same_work.BATCH = batch
        return same_work.infeed(kind, data)
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # mp_prefetch reads some
    dataset = GRAIN[side.removesuffix(" x 2")](kind, data, batch)
    if not side.endswith(" x 2"):
        return iter(dataset.to_iter_dataset())
    one_thread = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    workers = grain.MultiprocessingOptions(num_workers=2)
    return iter(dataset.to_iter_dataset(one_thread).mp_prefetch(workers))


def measure(side: str, name: str, data: str, seconds: float) -> None:
    """Prints JSON: CPU microseconds per record, and records per second."""
    from pipeline.inputs import dataset_input

    choose = dataset_input.choose_workers
    records = same_work.RECORDS
    dataset_input.choose_workers = lambda cores, rows, _, cost: choose(cores, rows, records, cost)
    kind, batch = GRAIN_KINDS[name]
    batches = batches_of(side, kind, data, batch)
    took(batches, same_work.WARM_SECONDS, WARM_BATCHES)
    cpu = cpu_seconds()
    count, wall = took(batches, seconds, LEAST_BATCHES)
    print(json.dumps([1e6 * (cpu_seconds() - cpu) / count / batch, count * batch / wall]))
    sys.stdout.flush()
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(0)


def took(batches: Iterator[Any], seconds: float, least: int) -> tuple[int, float]:
    """Takes batches for these seconds, but at least `least`. Returns their number, and the seconds taken."""
    began = time.perf_counter()
    count = 0
    while count < least or time.perf_counter() - began < seconds:
        next(batches)
        count += 1
    return count, time.perf_counter() - began


def main() -> None:
    """Prints a row per kind and side: medians, and quartiles of the ratios within rounds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--measure", nargs=2, metavar=("SIDE", "DIR"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.measure[0], args.kinds[0], args.measure[1], args.seconds)
    print(f"{load()}, {os.cpu_count()} cores\n")
    print("| records | side | CPU us | records/s | over train_dataset's | over ArrayRecord's |")
    print("|" + " --- |" * 6)
    for name in args.kinds or GRAIN_KINDS:
        with tempfile.TemporaryDirectory() as data:
            write(GRAIN_KINDS[name][0], data)
            write_array_records(data)
            rounds = [
                {side: one(side, name, data, args.seconds) for side in SIDES}
                for _ in range(args.rounds)
            ]
        for side in SIDES:
            cpu, rate = np.median([each[side] for each in rounds], 0)
            peer = "ArrayRecord" + " x 2" * side.endswith(" x 2")
            ratios = [
                spread([each[side][1] / each[other][1] for each in rounds])
                for other in ("train_dataset", peer)
            ]
            cells = [name, side, f"{cpu:.1f}", f"{rate:,.0f}", *ratios]
            print(f"| {' | '.join(cells)} |", flush=True)


def one(side: str, name: str, data: str, seconds: float) -> list[float]:
    command = [sys.executable, *module("bench_grain"), name]
    printed, _ = run([*command, f"--seconds={seconds}", "--measure", side, data])
    return json.loads(printed.splitlines()[-1])


if __name__ == "__main__":
    main()
