"""The task of a classifier of images: loss, metrics and predictions."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from trainer.inputs import MASK
from trainer.metrics.classes import Accuracy, TopK
from trainer.nnx_task import nnx_task
from trainer.optimizers.build import make_optimizer
from trainer.recipes.labelled_images import IMAGE
from trainer.task import Augment, Batch, Task

SOFT_LABELS = "labels"


def classifier_task(
    config: Any,
    make_model: Callable[[Any], Any],
    label: str,
    label_base: int,
    class_base: int,
    *,
    top5: bool = False,
    augment: Augment | None = None,
) -> Task:
    """Cross entropy and accuracy of a model that is called with (images, mask), on the features "image" and `label`.

    config: a recipe of images; its optimizer and precision count. Labels are numbered from label_base. In training,
    SOFT_LABELS, shares of the classes, take their place if `augment` makes them. Predicts the class, numbered from
    class_base, and its probability; also the label, as the data number it, where the batch has one."""

    def labels(_: Any, batch: Batch) -> jax.Array:
        return batch[label] - label_base

    def loss(model: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        logits = model(batch[IMAGE], batch[MASK])
        if SOFT_LABELS in batch:
            return optax.softmax_cross_entropy(logits, batch[SOFT_LABELS]), logits
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels(logits, batch)), logits

    def predict(model: Any, batch: Batch) -> dict[str, jax.Array]:
        probabilities = jax.nn.softmax(model(batch[IMAGE], batch[MASK]))
        best = jnp.argmax(probabilities, axis=-1) + class_base
        given = {"label": batch[label]} if label in batch else {}
        return {"class": best, **given, "probability": probabilities.max(axis=-1)}

    metrics = {"accuracy": Accuracy(labels)} | ({"top5_accuracy": TopK(5, labels)} if top5 else {})
    optimizer, precision = make_optimizer(config.optimizer, config.run), config.trainer.precision
    return nnx_task(make_model, loss, optimizer, metrics, predict, augment=augment, precision=precision)
