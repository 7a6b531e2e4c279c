"""What test_batch_axis.py asks of its processes: one convolution, trained and evaluated on images in two layouts."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
from host_task import settings
from jax import lax

from trainer.callbacks import Callback
from trainer.task import Task, Variables
from trainer.trainer import Trainer

LAYOUTS = ("NHWC", "HWCN")
RECORDS = 40


class Losses(Callback):
    """Those of every step."""

    def __init__(self):
        self.of_steps = []

    def on_loop_end(self, end):
        self.of_steps += np.ravel(end.scalars["loss"]).tolist()


def conv_task(layout):
    """A convolution over images in this layout; its means over an image are the logits [b, 3]."""

    def init(rng, spec):
        return Variables({"w": 0.3 * jax.random.normal(rng, (3, 3, 2, 3))})

    def loss_fn(variables, batch, rng, train):
        numbers = (layout, "HWIO", "NHWC")
        made = lax.conv_general_dilated(
            batch["image"], variables.params["w"], (1, 1), "SAME", dimension_numbers=numbers
        )
        logits = 4 * jnp.tanh(made).mean((1, 2))
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]), variables, logits

    def right(logits, batch):
        return logits.argmax(-1) == batch["label"]

    return Task(init, loss_fn, optax.sgd(0.5), {"right": right})


def foreign(layout):
    """An input_fn of dicts of arrays in this layout. The last batch of an evaluation has padding, of NaN."""
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(RECORDS, 6, 5, 2)), rng.integers(0, 3, RECORDS).astype(np.int32)

    def batches(ctx):
        rows = np.array([row for part in ctx.hosts.rows for row in part])
        count = -(-RECORDS // ctx.global_batch_size) if ctx.mode == "eval" else 10**6
        for start in range(0, count * ctx.global_batch_size, ctx.global_batch_size):
            ids = start + rows
            there = (ids < RECORDS) | (ctx.mode == "train")
            image = np.where(there[:, None, None, None], images[ids % RECORDS], np.nan).astype(np.float32)
            turned = np.moveaxis(image, 0, layout.index("N")).copy()
            yield {"image": turned, "label": labels[ids % RECORDS], "_mask": there.astype(np.float32)}

    return batches


def batch_axes(order):
    """Trains and evaluates both layouts in every run of `order.runs`, {name: (devices, settings)}."""
    for name, (devices, others) in order.runs.items():
        for layout in LAYOUTS:
            config = replace(
                settings(order, iterations_per_loop=4, eval_batch_size=32, **others),
                workdir=f"{order.workdir}/{name}/{layout}",
                batch_axis={"image": layout.index("N")},
            )
            losses = Losses()
            trainer = Trainer(conv_task(layout), config, jax.devices()[:devices], [losses])
            trained = trainer.train(foreign(layout), max_steps=8)
            result = trainer.evaluate(foreign(layout), check_padding=True)
            weights = np.asarray(trained.state.variables.params["w"].addressable_data(0)).tobytes().hex()
            yield f"{name}, {layout}", [losses.of_steps, result.metrics, result.records, weights]
