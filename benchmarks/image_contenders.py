"""One contender of bench_images, in a process of its own: from payloads in memory to batches of pixels.

    python -m benchmarks.image_contenders NAME DIR THREADS

Decodes all images of DIR once for each line on stdin, then says what it took, as a line of JSON: images, CPU seconds
of all threads, wall seconds. Random resized crops to 224, flipped, in batches of 64 in memory that the caller can
keep. What a device can do is left out, of all."""

import io
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

__all__ = ["CONTENDERS", "Contender"]

BATCH, SIZE = 64, 224
PASSES = 16  # with windows of their own, then those again
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
IMAGE, LABEL = "image/encoded", "image/class/label"
Run = Callable[[], Iterator[Any]]  # one pass: the images of each batch


class Contender(NamedTuple):
    """imports: what it needs. prepare: (images, threads) -> a pass over them."""

    imports: str
    prepare: Callable[[Sequence[bytes], int], Run]


def _payloads(images: Sequence[bytes]) -> list[bytes]:
    from pipeline.shards.example import encode_example
    from pipeline.shards.schema import Feature, Schema

    schema = Schema("photographs", {IMAGE: Feature("bytes"), LABEL: Feature("int64")})
    return [encode_example(schema, {IMAGE: image, LABEL: n % 23}) for n, image in enumerate(images)]


def _tensorflow(threads: int) -> Any:
    from pipeline.tf_cpu import tf

    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    return tf


def ours(images: Sequence[bytes], threads: int) -> Run:
    """The Decoder of train_dataset, in as many threads as it is to have."""
    from pipeline.decoding import row_threads
    from pipeline.decoding.decode import Decoder
    from pipeline.ops import DecodeRandomResizedCrop
    from pipeline.shards.schema import Feature, Schema

    schema = Schema("photographs", {IMAGE: Feature("bytes"), LABEL: Feature("int64")})
    op, row_threads.THREADS = DecodeRandomResizedCrop(size=(SIZE, SIZE)), threads
    decoder = Decoder(schema, BATCH, ops=[op], keys=["image", LABEL])
    payloads, seed = _payloads(images), itertools.count()
    index = np.arange(BATCH, dtype=np.int32)

    def batch(begin: int, seeds: np.ndarray) -> np.ndarray:
        return decoder(payloads[begin : begin + BATCH], seeds, index)["image"]

    def run() -> Iterator[np.ndarray]:
        random = np.random.default_rng(next(seed))
        begins = range(0, len(payloads) - BATCH + 1, BATCH)
        seeds = [random.integers(-(2**31), 2**31, (BATCH, 1, 2)).astype(np.int32) for _ in begins]
        yield from map(batch, begins, seeds)

    return run


def ours_marked(images: Sequence[bytes], threads: int) -> Run:
    """The same of images with restart markers, which jpegtran has to write."""
    from pipeline.raw.jpeg import to_rgb_jpeg

    return ours([to_rgb_jpeg(image, "header").restarted().data for image in images], threads)


def tf_data(images: Sequence[bytes], threads: int) -> Run:
    """map and batch of big_vision's recipe: in the caller's thread, or in several of tf.data's."""
    tf = _tensorflow(threads)
    random, sizes = (
        np.random.default_rng(0),
        [Image.open(io.BytesIO(image)).size for image in images],
    )
    tables = itertools.cycle([_windows(sizes, random) for _ in range(PASSES)])
    windows = tf.Variable(_windows(sizes, random))
    features = {
        IMAGE: tf.io.FixedLenFeature([], tf.string),
        LABEL: tf.io.FixedLenFeature([], tf.int64),
    }

    def one(payload: Any, number: Any) -> Any:
        parsed = tf.io.parse_single_example(payload, features)
        return {
            "image": big_vision(tf, parsed[IMAGE], tf.gather(windows, number)),
            LABEL: parsed[LABEL],
        }

    dataset = tf.data.Dataset.from_tensor_slices((_payloads(images), tf.range(len(images))))
    dataset = dataset.map(one, num_parallel_calls=None if threads == 1 else threads)
    dataset = dataset.batch(BATCH, drop_remainder=True)
    if threads > 1:
        dataset = dataset.prefetch(2)
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    dataset = dataset.with_options(options)

    def run() -> Iterator[Any]:
        windows.assign(next(tables))
        for batch in dataset:
            yield batch["image"].numpy()

    return run


def _windows(sizes: Sequence[tuple[int, int]], random: np.random.Generator) -> np.ndarray:
    boxes = np.array([_box(width, height, random) for width, height in sizes], np.int32)
    return np.stack(
        [boxes[:, 1], boxes[:, 0], boxes[:, 3] - boxes[:, 1], boxes[:, 2] - boxes[:, 0]], 1
    )


def big_vision(tf: Any, data: Any, window: Any) -> Any:
    """decode_jpeg_and_inception_crop(224) and flip_lr of google-research/big_vision: bilinear, cast to uint8.

    Its sample_distorted_bounding_box draws for nothing: it takes a uniform height, where ours and Pillow's take a
    uniform area, so its own windows would be smaller."""
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(data),
        tf.constant([0.0, 0.0, 1.0, 1.0], shape=[1, 1, 4]),
        min_object_covered=0.0,
        aspect_ratio_range=RATIO,
        area_range=AREA,
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    window += tf.minimum(tf.concat([begin[:2], size[:2]], 0), 0)
    pixels = tf.io.decode_and_crop_jpeg(data, window, channels=3)
    return tf.image.random_flip_left_right(tf.cast(tf.image.resize(pixels, (SIZE, SIZE)), tf.uint8))


def grain_pil(images: Sequence[bytes], threads: int) -> Run:
    """grain with Pillow: random access by itself, or its threads. The images as they are: there is nothing to parse."""
    import grain

    class Crop(grain.transforms.RandomMap):
        def random_map(
            self, element: tuple[bytes, int], rng: np.random.Generator
        ) -> dict[str, Any]:
            return {"image": _pillow(element[0], rng), LABEL: element[1]}

    source = [(image, number % 23) for number, image in enumerate(images)]
    dataset = (
        grain.MapDataset.source(source).seed(0).random_map(Crop()).batch(BATCH, drop_remainder=True)
    )
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=4)

    def run() -> Iterator[np.ndarray]:
        batches = (
            (dataset[i] for i in range(len(dataset)))
            if threads == 1
            else dataset.to_iter_dataset(options)
        )
        for batch in batches:
            yield batch["image"]

    return run


def _pillow(data: bytes, random: np.random.Generator) -> np.ndarray:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, _box(*image.size, random))
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image)


def _box(width: int, height: int, random: np.random.Generator) -> tuple[int, int, int, int]:
    """torchvision's RandomResizedCrop: left, upper, right, lower."""
    for _ in range(10):
        area = width * height * random.uniform(*AREA)
        ratio = math.exp(random.uniform(*map(math.log, RATIO)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            x, y = int(random.integers(width - w + 1)), int(random.integers(height - h + 1))
            return x, y, x + w, y + h
    return 0, 0, width, height


CONTENDERS = {
    "ours": Contender("tensorflow", ours),
    "ours, with restart markers": Contender("tensorflow", ours_marked),
    "tf.data, big_vision's recipe": Contender("tensorflow", tf_data),
    "grain + PIL": Contender("grain", grain_pil),
}


def main() -> None:
    """Runs one contender, a pass for each line."""
    name, directory, threads = sys.argv[1:]
    images = [path.read_bytes() for path in sorted(Path(directory).glob("*.jpg"))]
    run = CONTENDERS[name].prepare(images, int(threads))
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        count = sum(len(batch) for batch in run())
        found = {
            "images": count,
            "cpu": time.process_time() - cpu,
            "wall": time.perf_counter() - wall,
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
