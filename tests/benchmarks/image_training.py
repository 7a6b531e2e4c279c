"""train_dataset on real photographs, alone and under a Trainer whose step does nothing: second part of bench_images.

    python tests/benchmarks/image_training.py DIR STEPS

Writes the images of DIR as a data set, in a page cache that is warm then. Each turn is a process that measures STEPS
batches of 64; the two take three turns each."""

# ruff: noqa: E402 (a script: it finds its packages itself)

import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from image_contenders import BATCH, IMAGE, LABEL, SIZE
from image_data import label_of

WARM, TURNS = 10, 3
COPIES = 8  # of the images, so that an epoch is not over at once


def write_records(images: Path, directory: Path) -> None:
    """One file of Examples, as others write them."""
    from pipeline.shards.example import encode_example
    from pipeline.shards.record import frame
    from pipeline.shards.schema import Feature, Schema

    schema = Schema("photographs", {IMAGE: Feature("bytes"), LABEL: Feature("int64")})
    data = [path.read_bytes() for path in sorted(images.glob("*.jpg"))]
    records = [frame(encode_example(schema, {IMAGE: image, LABEL: label_of(n)})) for n, image in enumerate(data)]
    (directory / "train.tfrecord-00000-of-00001").write_bytes(b"".join(records * COPIES))


def source(directory: str) -> Any:
    """The input that is measured."""
    from pipeline.datasets import train_dataset
    from pipeline.ops import DecodeRandomResizedCrop

    ops = [DecodeRandomResizedCrop(size=(SIZE, SIZE))]
    return train_dataset(directory, "train", global_batch=BATCH, ops=ops, keys=["image", LABEL], epochs="span")


class Clock:
    """Begins after WARM steps, prints when all are done."""

    def __init__(self, steps: int) -> None:
        self._steps, self._began = steps, (0.0, 0.0)

    def __call__(self, step: int) -> None:
        """step: how many are done."""
        now = (time.perf_counter(), time.process_time())
        if step == WARM:
            self._began = now
        elif step == WARM + self._steps:
            wall, cpu = ((after - before) / self._steps / BATCH for before, after in zip(self._began, now, strict=True))
            print(f"measured {1 / wall:.1f} {cpu * 1e6:.1f}", flush=True)


def alone(directory: str, steps: int) -> None:
    """The batches, and nothing done with them."""
    clock, batches = Clock(steps), source(directory).batches()
    for step in range(1, WARM + steps + 1):
        next(batches)
        clock(step)
    batches.close()


def trained(directory: str, steps: int) -> None:
    """Trainer.train; its step takes the batch to the device and reads none of it."""
    import logging

    import jax.numpy as jnp
    import optax

    from trainer.callbacks import Callback, LoopEnd
    from trainer.config import TrainerConfig
    from trainer.task import Task, Variables
    from trainer.trainer import Trainer

    class Steps(Callback):
        def __init__(self) -> None:
            self._clock = Clock(steps)

        def on_loop_end(self, end: LoopEnd) -> None:
            self._clock(end.step)

    task = Task(
        init=lambda key, spec: Variables({"nothing": jnp.zeros(())}),
        loss_fn=lambda variables, batch, rng, train: (batch["_mask"] * variables.params["nothing"], variables, None),
        optimizer=optax.sgd(0.0),
    )
    logging.basicConfig(level=logging.INFO, force=True)  # absl has configured it before
    with tempfile.TemporaryDirectory() as workdir:
        config = TrainerConfig(
            workdir=workdir,
            global_batch_size=BATCH,
            iterations_per_loop=1,
            log_every=WARM + steps,
            checkpoint_every_steps=None,
        )
        Trainer(task, config, callbacks=[Steps()]).train(lambda context: source(directory), steps=WARM + steps)


def turn(name: str, directory: str, steps: int) -> tuple[float, float, float]:
    """One process: images/s, CPU microseconds an image, and the share of input wait that it logged, in percent."""
    command = [sys.executable, __file__, directory, str(steps), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"measured (\S+) (\S+)", done.stdout)
    if done.returncode or not found:
        sys.exit(f"{name} failed:\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    waits = re.findall(r"input wait\s+(\d+)\s*%", done.stdout + done.stderr)
    return float(found[1]), float(found[2]), float(waits[-1]) if waits else float("nan")


def main() -> None:
    """Prints the table; or, as a process of its own, runs one of them."""
    directory, steps = sys.argv[1], int(sys.argv[2])
    if len(sys.argv) > 3:
        {"alone": alone, "trained": trained}[sys.argv[3]](directory, steps)
        return
    with tempfile.TemporaryDirectory() as data:
        write_records(Path(directory), Path(data))
        turns: dict[str, list[tuple[float, float, float]]] = {"alone": [], "trained": []}
        for _ in range(TURNS):
            for name, found in turns.items():
                found.append(turn(name, data, steps))
    print("\n| train_dataset | images/s | CPU us an image | input wait, % |\n| --- | --- | --- | --- |")
    for name, found in turns.items():
        rate, cpu, wait = (statistics.median(values) for values in zip(*found, strict=True))
        print(f"| {name} | {rate:.0f} | {cpu:.0f} | {wait:.0f} |")  # alone there is none: nan


if __name__ == "__main__":
    main()
