"""A recipe outside of our packages, which fits a line: `python -m line_worker --workdir ... [trainer's options]`.

It needs no TensorFlow and hardly a compiler, so that a process starts and trains in three seconds."""

import faulthandler
import itertools
import sys
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import optax

from trainer import __main__ as command
from trainer.recipe import Recipe, TrainerConfig, settings
from trainer.task import Task, Variables


def init(rng, batch_spec):
    return Variables({"w": jnp.zeros(3)})


def loss_fn(variables, batch, rng, train):
    residual = batch["x"] @ variables.params["w"] - batch["y"]
    return residual**2, variables, residual


def batches(ctx):
    for step in itertools.count(ctx.start_step):
        rng = np.random.default_rng((ctx.seed, step, ctx.hosts.index))
        x = rng.normal(size=(ctx.per_host_batch_size, 3)).astype(np.float32)
        yield {"x": x, "y": x @ np.array([1, 2, 3], np.float32)}


@dataclass(frozen=True, kw_only=True)
class Config(Recipe):
    """Fits a line."""

    trainer: TrainerConfig = settings(
        global_batch_size=16,
        max_steps=40,
        iterations_per_loop=5,
        checkpoint_every_steps=20,
        keep_max=2,
    )

    def task(self):
        return Task(init, loss_fn, optax.adam(0.1))

    def train_input(self, ctx):
        return batches(ctx)

    def eval_input(self, ctx):
        return itertools.islice(batches(ctx), 1)


if __name__ == "__main__":
    faulthandler.enable()
    command.start(["line_worker:Config", *sys.argv[1:]])
