"""A recipe on programs as tutorials of tf.data and Grain write them: python -m trainer brought_programs:Config --program NAME.

It fits a matrix; PAUSE in the environment are seconds after each dispatch."""

import os
import time
from dataclasses import dataclass

import grain
import jax.numpy as jnp
import numpy as np
import optax
from brought_elements import (
    BATCH,
    RECORDS,
    X,
    Y,
    element,
    failing,
    in_workers,
    mixture,
    not_a_number,
    places,
)

from pipeline import grain as infeed_grain
from pipeline import tf_data
from pipeline.tf_cpu import tf
from trainer.callbacks import Callback
from trainer.recipe import Recipe, TrainerConfig, settings
from trainer.task import Task, Variables

STEPS, EVERY = 60, 20


def tensors():
    return tf.data.Dataset.from_tensor_slices({"number": np.arange(RECORDS), "x": X, "y": Y})


def augmented(element):
    scale = tf.random.stateless_uniform([], [1, element["number"]], 0.9, 1.1)
    return {"x": element["x"] * scale, "y": element["y"]}


def interleaved(ctx):
    files = tf.data.Dataset.range(4).shuffle(4, seed=1)
    dataset = files.interleave(lambda file: tensors().shard(4, file), cycle_length=2)
    dataset = dataset.shuffle(32, seed=2).map(augmented, num_parallel_calls=tf.data.AUTOTUNE)
    return tf_data.training_batches(dataset, BATCH, ctx.hosts)


PROGRAMS = {
    "tf.data": interleaved,
    "Grain": lambda: places().repeat().batch(BATCH, drop_remainder=True),
    "Grain, unbatched": places,
    "Grain, a mixture": lambda: mixture().batch(BATCH),
    "Grain, workers": lambda: in_workers(places().repeat()),
}


FAULTY = {
    "an error": lambda: grain.MapDataset.range(RECORDS).map(failing),
    "an error in a worker": lambda: in_workers(grain.MapDataset.range(RECORDS).map(failing)),
    "NaN": lambda: grain.MapDataset.range(RECORDS).map(not_a_number),
}


class Slow(Callback):
    def on_loop_end(self, end):
        time.sleep(float(os.environ.get("PAUSE", "0")))


def loss_fn(variables, batch, rng, train):
    error = jnp.tanh(batch["x"] @ variables.params["w"]) - batch["y"]
    return jnp.mean(error**2, axis=-1), variables, error


@dataclass(frozen=True, kw_only=True)
class Config(Recipe):
    """Fits a matrix."""

    program: str
    """Its name in PROGRAMS or FAULTY."""
    trainer: TrainerConfig = settings(
        global_batch_size=BATCH,
        eval_batch_size=16,
        iterations_per_loop=2,
        max_steps=STEPS,
        checkpoint_every_steps=EVERY,
        stall_seconds=60.0,
    )

    def task(self):
        return Task(lambda rng, spec: Variables({"w": jnp.zeros((4, 4))}), loss_fn, optax.adam(0.1))

    def callbacks(self):
        return [Slow()]

    def train_input(self, ctx):
        make = (PROGRAMS | FAULTY)[self.program]
        return make(ctx) if self.program == "tf.data" else make()

    def eval_input(self, ctx):
        if self.program == "tf.data":
            dataset = tensors().map(lambda each: {"x": each["x"], "y": each["y"]})
            return tf_data.evaluation_batches(dataset, ctx.global_batch_size, ctx.hosts)
        dataset = grain.MapDataset.range(RECORDS).map(element)
        if self.program == "Grain, a mixture":
            return infeed_grain.evaluation_batches(
                dataset.to_iter_dataset(), ctx.global_batch_size, num_records=RECORDS
            )
        return dataset
