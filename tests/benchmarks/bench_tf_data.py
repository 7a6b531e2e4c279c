"""What pipeline.tf_data costs: infeed's batches as a tf.data.Dataset, and a tf.data program as the trainer reads it.

    python tests/benchmarks/bench_tf_data.py [--rounds 5]

Made images with grain: JPEGs of 32 x 32 pixels, decoded; and of 500 x 375, from which a random crop is decoded to 224.
Contenders take turns. Prints medians (least and most) of the rounds, the first one left out: microseconds of CPU time
per record, of the process, relative to the contender in the first row of each part."""

# ruff: noqa: E402 (a script: it finds its packages itself)

import argparse
import gc
import io
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2])]

import numpy as np
from PIL import Image

from pipeline import tf_data
from pipeline.datasets import train_dataset
from pipeline.index import main as index
from pipeline.ops import DecodeJpeg, DecodeRandomResizedCrop
from pipeline.tf_cpu import tf

BATCH, WARM_UP = 64, 8
SIZES = {"JPEGs of 32 x 32": (32, 32, 2048, 300), "crops of photographs": (500, 375, 256, 20)}  # of images, and batches


def write(directory: str, width: int, height: int, count: int) -> None:
    """A TFRecord file with its index."""
    rng = np.random.default_rng(0)
    with tf.io.TFRecordWriter(f"{directory}/train-00000-of-00001") as writer:
        for number in range(count):
            colours = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8))
            pixels = np.asarray(colours.resize((width, height))) + rng.normal(0, 8, (height, width, 1))
            buffer = io.BytesIO()
            Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=92)
            features = {
                "encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[buffer.getvalue()])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    assert index([directory]) == 0


def contenders(directory: str, small: bool) -> dict[str, dict[str, Callable[[], Iterator[Any]]]]:
    """What makes the batches of each, by name and by part."""
    shape = (32, 32, 3) if small else (224, 224, 3)
    op = (
        DecodeJpeg("encoded", "image", shape)
        if small
        else DecodeRandomResizedCrop("encoded", into="image", size=shape[:2])
    )
    options: dict[str, Any] = {"global_batch": BATCH, "ops": [op], "keys": ["image", "label"], "epochs": "span"}
    stored = {"encoded": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def decoded(record: Any) -> dict[str, Any]:
        example = tf.io.parse_single_example(record, stored)
        image = tf.io.decode_jpeg(example["encoded"], 3)
        image = image if small else tf.cast(tf.image.resize(image, shape[:2]), tf.uint8)
        return {"image": tf.ensure_shape(image, shape), "label": example["label"]}

    records = tf.data.TFRecordDataset(f"{directory}/train-00000-of-00001")
    program = records.map(decoded, num_parallel_calls=tf.data.AUTOTUNE)
    return {
        "infeed": {
            "`batches()`": lambda: train_dataset(directory, **options).batches(),
            "`tf_data.train_dataset`": lambda: tf_data.train_dataset(directory, **options).as_numpy_iterator(),
        },
        "a program": {
            "`repeat().batch().prefetch()`": lambda: (
                program.repeat().batch(BATCH, True).prefetch(2).as_numpy_iterator()
            ),
            "`tf_data.training_batches`": lambda: tf_data.training_batches(program, BATCH).as_numpy_iterator(),
            "as the trainer reads it": lambda: tf_data.training_batches(program, BATCH).infeed_input.batches(0),
        },
    }


def cpu_us(make: Callable[[], Iterator[Any]], count: int) -> float:
    """CPU time per record, once the first batches have filled what works ahead."""
    batches = make()
    for _ in itertools.islice(batches, WARM_UP):
        pass
    begun = time.process_time()
    for _ in itertools.islice(batches, count):
        pass
    used = time.process_time() - begun
    getattr(batches, "close", lambda: None)()
    del batches
    gc.collect()
    time.sleep(0.5)  # threads end
    return used / count / BATCH * 1e6


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print("| images | batches | CPU us per record | relative |\n| --- | --- | --- | --- |")
    for kind, (width, height, count, batches) in SIZES.items():
        with tempfile.TemporaryDirectory() as directory:
            write(directory, width, height, count)
            for part, made in contenders(directory, width == 32).items():
                found: dict[str, list[float]] = {name: [] for name in made}
                for _ in range(rounds + 1):
                    for name, make in made.items():
                        found[name].append(cpu_us(make, batches))
                first = next(iter(found.values()))[1:]
                for name, times in found.items():
                    ratios = [mine / other for mine, other in zip(times[1:], first, strict=True)]
                    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})"
                    print(f"| {kind} | {part}: {name} | {statistics.median(times[1:]):.0f} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
