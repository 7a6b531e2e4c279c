"""Handwritten digits: a small CNN on the shards of the digits demo.

tensorflow is needed by the input only, so its import stands inside the input_fn."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
import tyro

from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import join
from trainer.calls.evaluation import EvalResult
from trainer.config import TrainerConfig
from trainer.inputs import InputContext, InputFn
from trainer.models.cnn import SmallCnn
from trainer.nnx_task import nnx_task
from trainer.task import Batch, Task
from trainer.trainer import Trainer

__all__ = ["Config", "digits_task", "run"]

IMAGE, LABEL = "image", "image/class/label"
IMAGE_SHAPE = (32, 32, 1)
NUM_CLASSES, LABEL_BASE = 10, 1  # the tpu schema keeps 0 for the background


@dataclass(frozen=True, kw_only=True)
class Config:
    """Trains a small CNN on handwritten digits, then evaluates one exact epoch of the validation split."""

    data_dir: str
    """Directory with the shards and their manifest.json."""
    mode: Literal["train", "evaluate"] = "train"
    """train: train, then evaluate. evaluate: only evaluate the newest checkpoint."""
    check_padding: bool = False
    """Evaluate with three kinds of padding behind the last record: an error unless the metrics have the same bits."""
    learning_rate: float = 3e-3
    """Peak of a cosine schedule with a short warm-up."""
    shift_pixels: int = 3
    """Training images are shifted by up to so many pixels each way."""
    trainer: tyro.conf.OmitArgPrefixes[TrainerConfig] = field(
        default_factory=lambda: TrainerConfig(
            workdir=tyro.MISSING,
            global_batch_size=64,
            eval_batch_size=128,
            max_steps=600,
            iterations_per_loop=20,
            checkpoint_every_steps=200,
        )
    )


def digits_task(learning_rate: float, max_steps: int) -> Task:
    """Cross entropy and accuracy of a SmallCnn. Batches: image uint8 [b, 32, 32, 1], label int32 [b] in 1..10."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, learning_rate, max_steps // 10 + 1, max_steps + 1)

    def labels(batch: Batch) -> jax.Array:
        return batch[LABEL] - LABEL_BASE

    def loss(model: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        logits = model(batch[IMAGE])
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels(batch)), logits

    def accuracy(logits: jax.Array, batch: Batch) -> jax.Array:
        return jnp.argmax(logits, axis=-1) == labels(batch)

    def make_model(rngs: Any) -> SmallCnn:
        return SmallCnn(NUM_CLASSES, IMAGE_SHAPE, rngs)

    return nnx_task(make_model, loss, optax.adamw(schedule, weight_decay=1e-4), {"accuracy": accuracy})


def _input_fns(config: Config) -> tuple[InputFn, InputFn]:
    def train_input(ctx: InputContext) -> Any:
        from pipeline.datasets import train_dataset
        from pipeline.ops import DecodeJpeg, RandomShift

        return train_dataset(
            config.data_dir,
            split="train",
            global_batch=ctx.global_batch_size,
            hosts=ctx.hosts,
            ops=[
                DecodeJpeg("image/encoded", into=IMAGE, shape=IMAGE_SHAPE),
                RandomShift(IMAGE, pixels=config.shift_pixels),
            ],
            keys=(IMAGE, LABEL),
            seed=ctx.seed,
            stall_seconds=ctx.stall_seconds,
        )

    def eval_input(ctx: InputContext) -> Any:
        from pipeline.datasets import eval_dataset
        from pipeline.ops import DecodeJpeg

        return eval_dataset(
            config.data_dir,
            split="validation",
            global_batch=ctx.global_batch_size,
            hosts=ctx.hosts,
            ops=[DecodeJpeg("image/encoded", into=IMAGE, shape=IMAGE_SHAPE)],
            keys=(IMAGE, LABEL),
            stall_seconds=ctx.stall_seconds,
        )

    return train_input, eval_input


def run(config: Config) -> None:
    """Trains (unless the mode is evaluate), evaluates, prints the result and writes it to
    <workdir>/eval_result.json, the speed of the training to train_result.json."""
    train_input, eval_input = _input_fns(config)
    task = digits_task(config.learning_rate, config.trainer.max_steps or 1)
    trainer = Trainer(task, config.trainer)
    speed = trainer.train(train_input).speed if config.mode == "train" else None
    result = trainer.evaluate(eval_input, check_padding=config.check_padding)
    if jax.process_index() > 0 or config.trainer.fast_dev_run:
        return
    path = _publish(config.trainer.workdir, "eval_result.json", _report(result))
    if speed:
        _publish(config.trainer.workdir, "train_result.json", asdict(speed))
    print(
        f"step {result.step}: accuracy {result.metrics['accuracy']:.2%}, loss {result.metrics['loss']:.4f} over "
        f"{result.records} of {result.num_records} validation records, "
        f"{'proven exact' if result.proven else 'not proven'}; written to {path}"
    )


def _publish(workdir: str, name: str, report: dict[str, Any]) -> str:
    path = join(workdir, name)
    with open_storage(workdir).publish(path) as sink:
        sink.write(json.dumps(report, indent=2).encode() + b"\n")
    return path


def _report(result: EvalResult) -> dict[str, Any]:
    numbers = {key: value for key, value in asdict(result).items() if key != "metrics"}
    return result.metrics | numbers | {"proven": result.proven}
