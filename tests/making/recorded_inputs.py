"""A training whose input notes which records each step was given, as the truth for those who compute it later."""

import jax.numpy as jnp
import optax

from trainer.task import Task, Variables

LABEL = "image/class/label"


def labels_task():
    """Learns the mean label."""

    def loss_fn(variables, batch, rng, train):
        return (batch[LABEL].astype(jnp.float32) - variables.params) ** 2, variables, None

    return Task(lambda rng, spec: Variables(jnp.float32(0)), loss_fn, optax.sgd(0.01))


class Recorded:
    """An input_fn; `seen` gets step -> the numbers of the records in the batch that the trainer was given for it."""

    def __init__(self, make):
        self.make, self.seen = make, {}

    def __call__(self, ctx):
        source = self.make(
            {"global_batch": ctx.global_batch_size, "hosts": ctx.hosts, "keys": (LABEL,)}
        )
        batches = source.batches

        def recording(position=None):
            for step, batch in enumerate(batches(position), ctx.start_step + 1):
                self.seen[step] = batch["_index"].tolist()
                yield batch

        source.batches = recording
        return source
