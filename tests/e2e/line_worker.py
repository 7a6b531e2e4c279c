"""A recipe that fits a line, under the real command line: `python -m line_worker --workdir ... [trainer's options]`.

It needs no TensorFlow and hardly a compiler, so that a process starts and trains in three seconds."""

import itertools
import sys

import jax.numpy as jnp
import numpy as np
import optax

from trainer import __main__ as command
from trainer.task import Task, Variables
from trainer.trainer import Trainer


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


def run(config):
    Trainer(Task(init, loss_fn, optax.adam(0.1)), config.trainer).train(batches)


if __name__ == "__main__":
    command.RECIPES["line"] = "line_worker"
    command.start(["line", *sys.argv[1:]])
