"""What an accelerator does with infeed's loop: ResNet-50 and a Transformer of 100 M parameters, in ten minutes.

    python -m benchmarks.accelerator [--seconds 15] [--peak-tflops ...] [--images 8000] [--json FILE] [--tiny]

From a checkout with infeed[train] and JAX for the device installed. Makes synthetic shards in a temporary directory.
Trains in bfloat16 on all devices: ResNet-50 on images of 224 pixels from memory with 1, 10 and 100 steps per dispatch,
then from shards, then the Transformer on rows of 2,048 tokens with each --remat. A row is a process of its own, so that
its peak memory is its own and running out of it ends only itself: the batch is halved until it fits. Prints Markdown
that can be pasted into results, and writes JSON if asked.

Shares of the peak are FLOPs over the data sheet's, in bfloat16: ResNet's are those of its products and convolutions,
the Transformer's 6 per parameter and token, and its attention's 12 x layers x width x length per token; what is
rematerialized does not count. --tiny: small models for a second, on any device, to see that it runs."""

import argparse
import dataclasses
import io
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import write_tfrecords

LIMIT = 600  # seconds of a row, most of which compiles
IMAGE_BYTES = 120e6  # of a training step in bfloat16, generously; and of a row of 2,048 tokens
ROW_BYTES = {"none": 6e9, "attention": 1.8e9, "dots": 0.9e9, "full": 0.5e9}
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
ERROR = re.compile(r"[\w.]+Error: ")
COLUMNS = (
    "model",
    "input",
    "k",
    "batch",
    "per second",
    "TFLOP/s",
    "of peak",
    "input wait",
    "peak memory",
)


@dataclass(frozen=True)
class Row:
    """A training to measure. batch: of all devices; 0: chosen by the memory. length: of a row of tokens; 0: images."""

    model: str
    input: str
    k: int
    batch: int = 0
    size: int = 224
    length: int = 0
    layers: int = 12
    width: int = 832
    heads: int = 13
    remat: str = "none"
    attention: str = "xla"
    workers: int | str = "auto"

    @property
    def name(self) -> str:
        """The model, and how it computes."""
        how = [f"remat {self.remat}"] * (self.remat != "none") + [self.attention] * (
            self.attention != "xla"
        )
        return ", ".join([self.model, *how])


def rows(*, tiny: bool, gpu: bool) -> Iterator[Row]:
    """Those of the table."""
    image = partial(
        Row, "small CNN" if tiny else "ResNet-50", size=32 if tiny else 224, batch=8 if tiny else 0
    )
    yield from (image("memory", k) for k in ((1, 10) if tiny else (1, 10, 100)))
    cores = os.cpu_count() or 1
    workers = ("auto",) if tiny else ("auto", 0, max(2, cores - 2))
    yield from (image("shards", 10, workers=count) for count in workers)
    small: Mapping[str, Any] = {"layers": 2, "width": 64, "heads": 2, "batch": 4, "length": 64}
    text = partial(Row, "Transformer", "memory", 10, **(small if tiny else {"length": 2048}))
    yield from (
        text(remat=remat) for remat in ("none", "attention", "dots", "full")[: 2 if tiny else None]
    )
    if gpu and not tiny:
        yield text(attention="cudnn")


def write_shards(directory: Path, count: int, side: int, copies: int = 1) -> None:
    """Shards of 1,000 JPEGs, and their index: 500 images of smooth noise again and again, each of about 97 KB."""
    from PIL import Image

    from pipeline.shards.schema import Feature

    rng, images = np.random.default_rng(0), []
    for _ in range(min(count, 500)):
        noise = Image.fromarray(rng.integers(0, 256, (96, 128, 3), np.uint8))
        image = noise.resize((side * 5 // 4, side), Image.Resampling.BICUBIC)
        image.save(data := io.BytesIO(), "JPEG", quality=90)
        images.append(data.getvalue())
    features = {"image/encoded": Feature("bytes"), "image/class/label": Feature("int64")}
    for split, records in (("train", count), ("validation", min(count, 1000))):
        made = (
            {"image/encoded": images[i % 500], "image/class/label": i % 1000}
            for i in range(records)
        )
        write_tfrecords(directory, features, made, split, copies=copies)


def measure(row: Row, data: str, seconds: float, peak_tflops: float | None) -> dict[str, Any]:
    """Trains; returns what was measured."""
    import jax

    from trainer.callbacks import Callback, LoopEnd
    from trainer.config import TrainerConfig
    from trainer.trainer import Trainer

    class Until(Callback):
        """Ends the training this long after its second dispatch."""

        began: float | None = None

        def on_loop_end(self, end: LoopEnd) -> None:
            self.began = self.began if self.began or end.step <= row.k else time.perf_counter()
            if self.began and time.perf_counter() - self.began > seconds:
                end.stop("measured")

    with tempfile.TemporaryDirectory() as workdir:
        config = TrainerConfig(
            workdir=workdir, global_batch_size=row.batch, iterations_per_loop=row.k, precision="bf16", max_steps=10**7,
            peak_tflops=peak_tflops, checkpoint_every=None, input_workers=row.workers,
        )  # fmt: skip
        task, input_fn = text(row, config) if row.length else images(row, config, data)
        result = Trainer(task, config, callbacks=[Until()]).train(
            input_fn, max_steps=config.max_steps
        )
    speed, memory = (
        result.speed,
        (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use"),
    )
    assert speed
    measured = {
        "per_second": speed.examples_per_second * (row.length or 1),
        "tflops": speed.tflops_per_second,
    }
    return measured | {
        "of_peak": speed.mfu,
        "input_wait": speed.input_wait,
        "peak_bytes": memory,
        "steps": result.step,
    }


def images(row: Row, config: Any, data: str) -> tuple[Any, Any]:
    """ResNet-50, or a small CNN, and its batches."""
    from trainer.inputs import as_function
    from trainer.recipes.imagenet_resnet50 import Config

    given = {"data_dir": data, "size": row.size, "num_classes": 1000, "trainer": config}
    if row.model == "ResNet-50":
        recipe = Config(**given, bn_span=min(32, row.batch))
    else:
        recipe = Config(**given, model="cnn", widths=(8, 16), bn_span=None)
    if row.input == "shards":
        return recipe.task(), recipe.train_input

    def repeated(ctx: Any) -> Iterator[Mapping[str, Any]]:
        return itertools.repeat(first_of(as_function(recipe.train_input)(ctx)))

    return recipe.task(), repeated


def first_of(source: Any) -> dict[str, Any]:
    """The first batch of an input, as an iterable would have it."""
    batches = source.batches(source.info.start)
    batch = {
        name: np.array(value) for name, value in next(batches).items() if not name.startswith("_")
    }
    batches.close()
    return batch


def text(row: Row, config: Any) -> tuple[Any, Any]:
    """The Transformer of byte_lm, and rows of one segment of random bytes."""
    from pipeline.tokenizers import TextInfo
    from trainer.recipes.language_models import ByteLm

    class Rows(ByteLm):
        """byte_lm on rows of another length."""

        @property
        def text_info(self) -> TextInfo:  # pyright: ignore[reportIncompatibleVariableOverride]
            return TextInfo(self.tiny_tokenizer(), row.length, "documents")

    how: Any = {"layers": row.layers, "width": row.width, "heads": row.heads, "remat": row.remat}
    recipe = Rows(data_dir="", trainer=config, attention=row.attention, **how)  # pyright: ignore[reportArgumentType]
    task = recipe.task()
    parameters = 12 * row.layers * row.width**2
    per_token = 6 * parameters + 12 * row.layers * row.width * row.length

    def repeated(ctx: Any) -> Iterator[Mapping[str, Any]]:
        shape = (ctx.per_host_batch_size, row.length)
        ones, places = (
            np.ones(shape, np.int32),
            np.broadcast_to(np.arange(row.length, dtype=np.int32), shape),
        )
        tokens = np.random.default_rng(0).integers(1, 250, shape, np.int32)
        lengths = np.full(shape[0], row.length, np.int32)
        batch = {"tokens": tokens, "segment_ids": ones, "positions": places, "num_bytes": lengths}
        return itertools.repeat(batch)

    return dataclasses.replace(task, flops=float(per_token * row.batch * row.length)), repeated


def fitting(row: Row, device_bytes: int | None, devices: int) -> int:
    """A first batch, a power of two per device; 64 images or 4 rows where the memory is unknown."""
    # cuDNN keeps nothing of length x length either
    kept = "attention" if row.attention == "cudnn" else row.remat
    each = ROW_BYTES[kept] if row.length else IMAGE_BYTES
    most = 0.9 * device_bytes / each if device_bytes else 4 if row.length else 64
    return devices * max(1, 2 ** min(10, int(most).bit_length() - 1))


def in_process(row: Row, data: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measures a row in a process of its own, with half of the batch as long as it runs out of memory."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.accelerator",
        "--row",
        json.dumps(asdict(row)),
        "--data",
        data,
    ]
    command += [
        f"--seconds={options.seconds}",
        *[f"--peak-tflops={options.peak_tflops}"] * bool(options.peak_tflops),
    ]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return asdict(row) | {"error": f"not done after {LIMIT} s"}
    if done.returncode == 0:
        return asdict(row) | json.loads(done.stdout.splitlines()[-1])
    if OUT_OF_MEMORY in done.stderr and row.batch > 1:
        return in_process(dataclasses.replace(row, batch=row.batch // 2), data, options)
    lines = done.stderr.strip().splitlines() or ["no output"]
    return asdict(row) | {
        "error": next((line for line in reversed(lines) if ERROR.match(line)), lines[-1])
    }


def line(row: Row, found: Mapping[str, Any]) -> str:
    """A row of the table."""
    if "error" in found:
        return f"| {row.name} | {row.input} | {row.k} | {found['batch']} | {found['error'][:200]} | | | | |"
    unit = "tokens" if row.length else "images"
    workers = f", {row.workers} workers" * (row.input == "shards")
    share = "" if found["of_peak"] is None else f"{found['of_peak']:.1%}"
    memory = "" if found["peak_bytes"] is None else f"{found['peak_bytes'] / 1e9:.1f} GB"
    tflops = "" if found["tflops"] is None else f"{found['tflops']:.3g}"
    done = (
        row.input + workers,
        row.k,
        found["batch"],
        f"{found['per_second']:,.0f} {unit}",
        tflops,
        share,
    )
    return (
        f"| {' | '.join(map(str, (row.name, *done, format(found['input_wait'], '.0%'), memory)))} |"
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--peak-tflops", type=float)
    parser.add_argument("--images", type=int, default=8000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--data", help=argparse.SUPPRESS)
    parser.add_argument("--device", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(
            json.dumps(
                measure(
                    Row(**json.loads(options.row)),
                    options.data,
                    options.seconds,
                    options.peak_tflops,
                )
            )
        )
        return
    if options.device:
        import jax

        device = jax.devices()[0]
        limit = (device.memory_stats() or {}).get("bytes_limit")
        print(json.dumps([device.platform, device.device_kind, jax.device_count(), limit]))
        return
    # JAX keeps a device's memory as long as its process lives: this one does not load it.
    command = [sys.executable, "-m", "benchmarks.accelerator", "--device"]
    asked = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=LIMIT)
    kind, name, devices, limit = json.loads(asked.stdout.splitlines()[-1])
    versions = {
        package: version(package) for package in ("jax", "jaxlib", "flax", "optax", "numpy")
    }
    options.seconds = 1 if options.tiny else options.seconds
    print(
        f"{devices} x {name} ({kind}); {os.cpu_count()} cores; Python {platform.python_version()};",
        end=" ",
    )
    print(", ".join(f"{package} {number}" for package, number in versions.items()), end="\n\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}", flush=True)
    results = []
    with tempfile.TemporaryDirectory() as data:
        write_shards(
            Path(data), 32 if options.tiny else options.images, 40 if options.tiny else 400
        )
        for row in rows(tiny=options.tiny, gpu=kind == "gpu"):
            wanted = dataclasses.replace(row, batch=row.batch or fitting(row, limit, devices))
            results.append(in_process(wanted, data, options))
            print(line(row, results[-1]), flush=True)
    if options.json:
        about = {
            "device": name,
            "platform": kind,
            "devices": devices,
            "bytes_limit": limit,
            "versions": versions,
        }
        options.json.write_text(
            json.dumps(about | {"rows": results}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
