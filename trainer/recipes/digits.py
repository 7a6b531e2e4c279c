"""Handwritten digits: a small CNN on the shards of the digits demo. A complete recipe: model, loss, inputs.

Only the inputs need tensorflow, so they import it themselves."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from trainer.inputs import InputContext, InputFn
from trainer.metrics.classes import Accuracy
from trainer.models.cnn import SmallCnn
from trainer.nnx_task import nnx_task
from trainer.recipes.command import batch_options, run_command
from trainer.recipes.digits_config import ENCODED, LABEL, Config
from trainer.task import Batch, Task

__all__ = ["Config", "digits_task", "input_fns", "run"]

IMAGE = "image"
IMAGE_SHAPE = (32, 32, 1)
NUM_CLASSES, LABEL_BASE = 10, 1  # the tpu schema keeps 0 for the background


def digits_task(learning_rate: float, max_steps: int) -> Task:
    """Cross entropy and accuracy of a SmallCnn. Batches: image uint8 [b, 32, 32, 1], label int32 [b] in 1..10.

    Predicts class and label (both in 1..10) and the probability of the class."""
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


def input_fns(config: Config) -> tuple[InputFn, InputFn]:
    """The inputs of training and evaluation."""

    def train_input(ctx: InputContext) -> Any:
        from pipeline.datasets import train_dataset
        from pipeline.ops import DecodeJpeg, RandomShift

        ops = [DecodeJpeg(ENCODED, into=IMAGE, shape=IMAGE_SHAPE), RandomShift(IMAGE, pixels=config.shift_pixels)]
        return train_dataset(config.train_records, ops=ops, keys=(IMAGE, LABEL), seed=ctx.seed, **batch_options(ctx))

    def eval_input(ctx: InputContext) -> Any:
        from pipeline.datasets import eval_dataset
        from pipeline.ops import DecodeJpeg

        ops = [DecodeJpeg(ENCODED, into=IMAGE, shape=IMAGE_SHAPE)]
        return eval_dataset(config.eval_records, ops=ops, keys=(IMAGE, LABEL), **batch_options(ctx))

    return train_input, eval_input


def run(config: Config) -> None:
    """See run_command."""
    run_command(config, digits_task(config.learning_rate, config.trainer.max_steps or 1), *input_fns(config))
