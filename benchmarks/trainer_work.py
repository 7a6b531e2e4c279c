"""What the loops of bench_trainer train: models as pure functions, their data, their optimizers.

Keras's process loads it, too, so: jax, numpy and optax only."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

__all__ = ["CLASSES", "WORKS", "Work", "losses", "new_params", "update"]

CLASSES = 10
IN_MEMORY = 100  # batches, over and over


class Work(NamedTuple):
    """A model and how it is trained. shape: of a record; conv, dense: widths of the layers, the last one apart.

    k: steps a dispatch, and between two looks of the peers. looks: in a turn that is measured."""

    shape: tuple[int, ...]
    batch: int
    k: int
    looks: int
    dense: tuple[int, ...] = ()
    conv: tuple[int, ...] = ()
    optimizer: str = "adamw"

    @property
    def is_image(self) -> bool:
        """Whether records are uint8 [h, w, c] and not float32 [d]."""
        return len(self.shape) == 3

    def made_optimizer(self) -> optax.GradientTransformation:
        """The optimizer in optax."""
        return (
            optax.adamw(1e-3, weight_decay=1e-4) if self.optimizer == "adamw" else optax.sgd(1e-2)
        )

    def batches(self) -> Iterator[dict[str, np.ndarray]]:
        """Endless batches: image [b, *shape] and label int32 [b]. The arrays are made before the first."""
        random = np.random.default_rng(0)
        shape = (self.batch, *self.shape)
        kept = []
        for _ in range(IN_MEMORY):
            noise = (
                random.integers(0, 256, shape, np.uint8)
                if self.is_image
                else random.standard_normal(shape)
            )
            image = noise if self.is_image else noise.astype(np.float32)
            kept.append(
                {
                    "image": image,
                    "label": random.integers(CLASSES, size=self.batch).astype(np.int32),
                }
            )
        while True:
            yield from kept


WORKS = {
    "tiny MLP": Work((16,), 16, k=100, looks=20, dense=(32,), optimizer="sgd"),
    "medium MLP": Work((256,), 128, k=10, looks=6, dense=(512, 512)),
    "medium MLP, 100 steps a dispatch": Work((256,), 128, k=100, looks=6, dense=(512, 512)),
    "small CNN": Work((32, 32, 3), 32, k=10, looks=6, conv=(16, 32), optimizer="sgd"),
}


def new_params(work: Work, key: jax.Array) -> list[dict[str, jax.Array]]:
    """A kernel and a bias a layer."""
    layers, size, shape = [], 0, work.shape
    for width in work.conv:
        layers.append((3, 3, shape[2], width))
        shape = (-(-shape[0] // 2), -(-shape[1] // 2), width)
    size = int(np.prod(shape))
    for width in (*work.dense, CLASSES):
        layers.append((size, width))
        size = width
    keys = jax.random.split(key, len(layers))
    return [
        {"kernel": jax.nn.initializers.he_normal()(each, layer), "bias": jnp.zeros(layer[-1])}
        for each, layer in zip(keys, layers, strict=True)
    ]


def losses(work: Work, params: list[dict[str, jax.Array]], batch: Any) -> jax.Array:
    """Cross entropy, float32 [b]."""
    x = batch["image"]
    if work.is_image:
        x = x.astype(jnp.float32) / 127.5 - 1.0
    for number, layer in enumerate(params):
        if number < len(work.conv):
            x = jax.lax.conv_general_dilated(
                x, layer["kernel"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        else:
            x = x.reshape(len(x), -1) @ layer["kernel"]
        x = x + layer["bias"]
        x = jax.nn.relu(x) if number < len(params) - 1 else x
    return optax.softmax_cross_entropy_with_integer_labels(x, batch["label"])


def update(work: Work, state: Any, batch: Any) -> tuple[Any, jax.Array, Any, Any]:
    """One step of (params, optimizer's state): the next, the loss, the gradients, the updates."""
    params, opt = state
    loss, grads = jax.value_and_grad(lambda params: losses(work, params, batch).mean())(params)
    updates, opt = work.made_optimizer().update(grads, opt, params)
    return (optax.apply_updates(params, updates), opt), loss, grads, updates
