"""A complete run on real images: raw data, shards, training, exact evaluation.

    python examples/demo.py [--out demo_out] [--fresh]

Two commands convert, and are printed before they run. The function `train`, which is printed too,
is all that training takes. Nothing is downloaded: the images are the 1,797 handwritten digits that
ship with scikit-learn, written as tars like ImageNet's."""

if __name__ == "__main__":
    from pipeline.console.interrupts import ctrl_c_exits

    ctrl_c_exits()  # before the imports: they take seconds

import argparse
import inspect
import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import optax
from rich.console import Console
from rich.table import Table

from pipeline import logs
from pipeline.console.parser import exit_with
from pipeline.datasets import eval_dataset, train_dataset
from pipeline.ops import DecodeJpeg, RandomShift
from pipeline.shards.manifest import read_manifest
from pipeline.sizes import format_bytes
from trainer.config import TrainerConfig
from trainer.metrics.classes import Accuracy
from trainer.models.small import SmallCnn
from trainer.nnx_task import nnx_task
from trainer.results import EvalResult, TrainResult
from trainer.trainer import Trainer

TARGET_SHARD_BYTES = "250KB"  # several small shards for 1.5 MB of images; the default is 100MB


def train(shards: str, workdir: str) -> tuple[TrainResult, EvalResult]:
    """Trains a small CNN, 20 steps per dispatch, then evaluates every validation record exactly
    once."""
    image, label = "image", "image/class/label"
    decode = DecodeJpeg("image/encoded", into=image, shape=(32, 32, 1))
    training = train_dataset(
        shards, ops=[decode, RandomShift(image, pixels=3)], keys=[image, label]
    )

    def loss(model, batch):
        logits = model(batch[image])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[label]), logits

    task = nnx_task(
        # labels are 1 to 10, as ImageNet's are 1 to 1,000
        lambda rngs: SmallCnn(11, (32, 32, 1), rngs),
        loss,
        optax.adamw(optax.cosine_decay_schedule(3e-3, decay_steps=600)),
        metrics={"accuracy": Accuracy(label)},
    )
    sizes = {"global_batch_size": 64, "eval_batch_size": 128, "iterations_per_loop": 20}
    trainer = Trainer(task, TrainerConfig(workdir=workdir, **sizes))
    return trainer.train(training, max_steps=600), trainer.evaluate(
        eval_dataset(shards, ops=[decode])
    )


def convert(out: Path, console: Console) -> int:
    """Writes the raw data and converts them, by commands. Returns the exit status of the first that
    fails, or 0."""
    raw = f"{out}/raw"
    options = [
        f"--raw-data-dir={raw}",
        f"--gcs-output-path={out}/shards",
        f"--label-file={raw}/synsets.txt",
        f"--target-shard-bytes={TARGET_SHARD_BYTES}",
    ]
    stages = [
        ("1 Raw data in ImageNet's layout", "converters.digits_raw", [raw]),
        ("2 Shards", "converters.imagenet_to_gcs", options),
    ]
    for title, module, arguments in stages:
        console.rule(f"[bold]{title}", align="left")
        command = ["-m", module, *arguments]
        console.print(
            shlex.join(["python", *command]), style="cyan", soft_wrap=True, highlight=False
        )
        before = signal.signal(signal.SIGINT, lambda *_: None)  # the command handles Ctrl-C
        status = subprocess.run([sys.executable, *command], check=False).returncode
        signal.signal(signal.SIGINT, before)
        if status:
            return status
    return 0


def summary(shards: str, trained: TrainResult, result: EvalResult) -> Table:
    """What was written, trained and proven."""
    table = Table(title="Summary", show_header=False, title_justify="left")
    for name, split in sorted(read_manifest(shards).splits.items()):
        sizes = (
            f"{split.num_records:,} records, {format_bytes(split.num_bytes)} in "
            f"{len(split.shards)} shards"
        )
        table.add_row(name, f"{sizes}, fingerprint {split.fingerprint[:8]}")
    speed = (
        f", {trained.speed.steps_per_second:.0f} steps/s"
        if trained.speed
        else ", finished by an earlier run"
    )
    table.add_row("training", f"{result.step} steps{speed}")
    table.add_row("accuracy", f"{result.metrics['accuracy']:.2%}")
    counted = f"sum of _mask = {result.records} of N = {result.num_records}"
    table.add_row("exactness", f"{counted}, proven: {str(result.proven).lower()}")
    return table


def main() -> int:
    """Runs the stages. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("demo_out"),
        help="directory for everything the demo writes",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="first remove the output of an earlier run"
    )
    args = parser.parse_args()
    console = Console()
    if args.fresh:
        shutil.rmtree(args.out, ignore_errors=True)
    began = time.monotonic()
    if status := convert(args.out, console):
        return status
    console.rule("[bold]3 Training and exact evaluation", align="left")
    console.print(
        inspect.getsource(train), style="cyan", markup=False, highlight=False, soft_wrap=True
    )
    logs.show()
    shards, workdir = f"{args.out}/shards", f"{args.out}/model"
    trained, result = train(shards, workdir)
    table = summary(shards, trained, result)
    table.add_row("wall time", f"{time.monotonic() - began:.0f} s")
    table.add_row("look at it", f"infeed report {workdir}")
    console.print(table)
    facts = {"records": result.records, "num_records": result.num_records, "proven": result.proven}
    (args.out / "result.json").write_text(json.dumps({**result.metrics, **facts}))
    return 0


if __name__ == "__main__":
    exit_with(main)
