"""Evaluations with and without on_records, compiled as users' are: evaluation_bits.py DIRECTORY

The last line is JSON: the loss of each as a hexadecimal number. See training_bits.py for why this is a process of its
own. XLA computes the loss of this task in another order if the losses of the records are outputs, too."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from trainer.config import TrainerConfig
from trainer.task import Task, Variables
from trainer.trainer import Trainer

SHAPES = ((16, 32), (32, 10), (10,))


def init(rng, spec):
    return Variables([jnp.sin(7.0 * jnp.arange(1, np.prod(shape) + 1)).reshape(shape) * 0.5 for shape in SHAPES])


def logits_of(variables, batch):
    first, second, bias = variables.params
    return jax.nn.relu(batch["x"] @ first) @ second + bias


def loss_fn(variables, batch, rng, train):
    logits = logits_of(variables, batch)
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]), variables, logits


def predict_fn(variables, batch):
    probabilities = jax.nn.softmax(logits_of(variables, batch))
    return {"class": probabilities.argmax(-1), "probability": probabilities.max(-1)}


def batches(ctx):
    rng = np.random.default_rng(0)
    for _ in range(6):
        yield {"x": rng.standard_normal((24, 16)).astype(np.float32), "label": rng.integers(0, 10, 24).astype(np.int32)}


def main(directory):
    task = Task(init, loss_fn, optax.sgd(0.01), predict_fn=predict_fn)
    trainer = Trainer(task, TrainerConfig(workdir=directory, global_batch_size=24, loop_mode="step"))
    trainer.train(batches, steps=1)
    evaluated = {"without": trainer.evaluate(batches), "with": trainer.evaluate(batches, on_records=lambda _: None)}
    print(json.dumps({name: result.metrics["loss"].hex() for name, result in evaluated.items()}))


if __name__ == "__main__":
    main(sys.argv[1])
