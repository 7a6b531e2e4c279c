"""The task of the images recipe: model, loss, metrics, predictions, and augmentation on the device."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from trainer.augment import color_jitter, cutmix, mixup, one_hot, random_erasing
from trainer.inputs import MASK
from trainer.metrics.classes import Accuracy, TopK
from trainer.models.cnn import SmallCnn
from trainer.models.resnet import RESNETS, ResNet
from trainer.nnx_task import nnx_task
from trainer.optimizers.build import make_optimizer
from trainer.recipes.image_data import ImageData
from trainer.recipes.images import IMAGE, Config
from trainer.task import Augment, Batch, Task

__all__ = ["images_task"]

SOFT_LABELS = "labels"


def images_task(config: Config, data: ImageData) -> Task:
    """Cross entropy, accuracy and top-5 accuracy of the config's model, on the batches of the recipe's inputs.

    Predicts the class, numbered as in the training, its probability, and the label, numbered as in the data."""

    def labels(outputs: Any, batch: Batch) -> jax.Array:
        del outputs
        return batch[data.label] - data.base

    def loss(model: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        logits = model(batch[IMAGE], batch[MASK])
        if SOFT_LABELS in batch:  # in training with smoothed or mixed labels
            return optax.softmax_cross_entropy(logits, batch[SOFT_LABELS]), logits
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels(logits, batch)), logits

    def predict(model: Any, batch: Batch) -> dict[str, jax.Array]:
        probabilities = jax.nn.softmax(model(batch[IMAGE], batch[MASK]))
        best = jnp.argmax(probabilities, axis=-1) + data.classes.base
        return {"class": best, "label": batch[data.label], "probability": probabilities.max(axis=-1)}

    def make_model(rngs: Any) -> SmallCnn | ResNet:
        if config.model != "cnn":
            shape = RESNETS[config.model]
            return ResNet(shape, data.num_classes, rngs, channels=data.channels, bn_span=config.bn_span)
        return SmallCnn(data.num_classes, (config.size, config.size, data.channels), rngs, config.widths)

    metrics: dict[str, Any] = {"accuracy": Accuracy(labels)}
    if data.num_classes > 5:
        metrics["top5_accuracy"] = TopK(5, labels)
    optimizer = make_optimizer(config.optimizer, config.run)
    precision = config.trainer.precision
    return nnx_task(make_model, loss, optimizer, metrics, predict, _augment(config, data), precision=precision)


def _augment(config: Config, data: ImageData) -> Augment | None:
    def augment(batch: Batch) -> Batch:
        if x := config.color_jitter:
            saturation = x if data.channels == 3 else 0.0
            batch = color_jitter(batch, IMAGE, brightness=x, contrast=x, saturation=saturation)
        if config.random_erasing:
            batch = random_erasing(batch, IMAGE, probability=config.random_erasing)
        if config.mixup or config.cutmix or config.label_smoothing:
            batch = one_hot(
                batch, data.label, data.num_classes, base=data.base, smoothing=config.label_smoothing, into=SOFT_LABELS
            )
        if config.mixup:
            batch = mixup(batch, IMAGE, SOFT_LABELS, alpha=config.mixup)
        if config.cutmix:
            batch = cutmix(batch, IMAGE, SOFT_LABELS, alpha=config.cutmix)
        return batch

    changes = (config.color_jitter, config.random_erasing, config.mixup, config.cutmix, config.label_smoothing)
    return augment if any(changes) else None
