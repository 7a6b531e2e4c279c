"""Images with one label each: a small CNN on any such dataset. A complete recipe: inputs, augmentation, model, loss.

Only the inputs need tensorflow, so they import it themselves."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from trainer.augment import color_jitter, cutmix, mixup, one_hot, random_erasing
from trainer.inputs import InputContext, InputFn
from trainer.metrics.classes import Accuracy, TopK
from trainer.models.cnn import SmallCnn
from trainer.nnx_task import nnx_task
from trainer.recipes.command import batch_options, run_command
from trainer.recipes.image_data import ImageData
from trainer.recipes.images_config import Config
from trainer.task import Augment, Batch, Task

__all__ = ["Config", "images_task", "input_fns", "run"]

IMAGE, SOFT_LABELS = "image", "labels"


def input_fns(config: Config, data: ImageData) -> tuple[InputFn, InputFn]:
    """The inputs of training and evaluation: image uint8 [b, size, size, channels] and the label int32 [b]."""
    keys = (IMAGE, data.label)
    decoded = {"into": IMAGE, "size": (config.size, config.size), "channels": data.channels}

    def central() -> Any:
        from pipeline.ops import DecodeCentralCrop

        return DecodeCentralCrop(data.image, resize_short=round(config.size * 8 / 7), **decoded)

    def train_input(ctx: InputContext) -> Any:
        from pipeline.datasets import train_dataset
        from pipeline.ops import DecodeRandomResizedCrop, TrivialAugmentWide

        crop = DecodeRandomResizedCrop(data.image, area=(config.min_area, 1.0), flip=config.mirror, **decoded)
        ops = {"none": [central()], "crop": [crop], "trivial": [crop, TrivialAugmentWide(IMAGE)]}
        options = {"ops": ops[config.augmentation], "keys": keys, "seed": ctx.seed, "epochs": "span"}
        return train_dataset(config.train_records, **options, **batch_options(ctx))

    def eval_input(ctx: InputContext) -> Any:
        from pipeline.datasets import eval_dataset

        return eval_dataset(config.eval_records, ops=[central()], keys=keys, **batch_options(ctx))

    return train_input, eval_input


def images_task(config: Config, data: ImageData) -> Task:
    """Cross entropy, accuracy and top-5 accuracy of a SmallCnn, on the batches of input_fns.

    Predicts class and label, numbered as in the data, and the probability of the class."""
    steps = config.trainer.max_steps or 1
    schedule = optax.warmup_cosine_decay_schedule(0.0, config.learning_rate, steps // 10 + 1, steps + 1)

    def labels(outputs: Any, batch: Batch) -> jax.Array:
        del outputs
        return batch[data.label] - data.base

    def loss(model: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        logits = model(batch[IMAGE])
        if SOFT_LABELS in batch:  # in training with smoothed or mixed labels
            return optax.softmax_cross_entropy(logits, batch[SOFT_LABELS]), logits
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels(logits, batch)), logits

    def predict(model: Any, batch: Batch) -> dict[str, jax.Array]:
        probabilities = jax.nn.softmax(model(batch[IMAGE]))
        best = jnp.argmax(probabilities, axis=-1) + data.base
        return {"class": best, "label": batch[data.label], "probability": probabilities.max(axis=-1)}

    def make_model(rngs: Any) -> SmallCnn:
        return SmallCnn(data.num_classes, (config.size, config.size, data.channels), rngs, config.widths)

    metrics: dict[str, Any] = {"accuracy": Accuracy(labels)}
    if data.num_classes > 5:
        metrics["top5_accuracy"] = TopK(5, labels)
    optimizer = optax.adamw(schedule, weight_decay=config.weight_decay)
    return nnx_task(make_model, loss, optimizer, metrics, predict, _augment(config, data))


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


def run(config: Config) -> None:
    """As run_command. Predictions include the names of classes that have names."""
    data = config.image_data

    def named(values: Mapping[str, Any]) -> Mapping[str, Any]:
        names = {f"{key}_name": data.name(values[key]) for key in ("class", "label")}
        return {**values, **{key: name for key, name in names.items() if name is not None}}

    run_command(config, images_task(config, data), *input_fns(config, data), named)
