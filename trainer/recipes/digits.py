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
from trainer.config import TrainerConfig
from trainer.inputs import InputContext, InputFn
from trainer.metrics.classes import Accuracy
from trainer.models.cnn import SmallCnn
from trainer.nnx_task import nnx_task
from trainer.results import EvalResult
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
    mode: Literal["train", "evaluate", "evaluate-continuously", "predict"] = "train"
    """train: train, then evaluate. evaluate: only evaluate the newest checkpoint. evaluate-continuously: evaluate the
    checkpoints that another process saves, as they come. predict: write <workdir>/predictions.jsonl, a line for each
    record of the validation split."""
    follow_seconds: float = 3600.0
    """evaluate-continuously ends when no new checkpoint has come for so long, and after that of max_steps."""
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
    """Cross entropy and accuracy of a SmallCnn. Batches: image uint8 [b, 32, 32, 1], label int32 [b] in 1..10.

    Predicts class, label (both in 1..10) and probability, that of the class."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, learning_rate, max_steps // 10 + 1, max_steps + 1)

    def labels(outputs: Any, batch: Batch) -> jax.Array:
        del outputs
        return batch[LABEL] - LABEL_BASE

    def loss(model: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        logits = model(batch[IMAGE])
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels(logits, batch)), logits

    def predict(model: Any, batch: Batch) -> dict[str, jax.Array]:
        probabilities = jax.nn.softmax(model(batch[IMAGE]))
        best = jnp.argmax(probabilities, axis=-1) + LABEL_BASE
        return {"class": best, "label": batch[LABEL], "probability": probabilities.max(axis=-1)}

    def make_model(rngs: Any) -> SmallCnn:
        return SmallCnn(NUM_CLASSES, IMAGE_SHAPE, rngs)

    optimizer = optax.adamw(schedule, weight_decay=1e-4)
    return nnx_task(make_model, loss, optimizer, {"accuracy": Accuracy(labels)}, predict)


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
    """Does what the mode says. Prints every evaluation and writes it to <workdir>/eval_result.json, the speed of the
    training to train_result.json, predictions to predictions.jsonl."""
    train_input, eval_input = _input_fns(config)
    task = digits_task(config.learning_rate, config.trainer.max_steps or 1)
    trainer = Trainer(task, config.trainer)
    if config.mode == "predict":
        _write_predictions(trainer, eval_input)
        return
    if config.mode == "evaluate-continuously":
        for result in trainer.evaluate_continuously(eval_input, timeout_seconds=config.follow_seconds):
            _tell(config.trainer, result)
        return
    speed = trainer.train(train_input).speed if config.mode == "train" else None
    _tell(config.trainer, trainer.evaluate(eval_input, check_padding=config.check_padding))
    if speed and jax.process_index() == 0 and not config.trainer.fast_dev_run:
        _publish(config.trainer.workdir, "train_result.json", asdict(speed))


def _write_predictions(trainer: Trainer, input_fn: InputFn) -> None:
    predictions = trainer.predict(input_fn, gather=True)
    if jax.process_index() > 0:
        for _ in predictions:
            pass
        return
    workdir, count = trainer.config.workdir, 0
    path = join(workdir, "predictions.jsonl")
    with open_storage(workdir).publish(path) as sink:
        for record in predictions:
            values = {key.removeprefix("_"): value.item() for key, value in sorted(record.items())}
            sink.write(json.dumps(values).encode() + b"\n")
            count += 1
    print(f"{count} predictions written to {path}")


def _tell(config: TrainerConfig, result: EvalResult) -> None:
    if jax.process_index() > 0 or config.fast_dev_run:
        return
    path = _publish(config.workdir, "eval_result.json", _report(result))
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
    numbers = {key: value for key, value in asdict(result).items() if key not in ("metrics", "arrays")}
    return result.metrics | numbers | {"proven": result.proven}
