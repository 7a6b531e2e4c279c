"""A training step without any feature stays the program that it was before these features existed, to the letter."""

import hashlib
from importlib.metadata import version

import jax
import jax.numpy as jnp
import optax
import pytest

from trainer.state import TrainState
from trainer.step_functions import train_step
from trainer.task import Task, Variables

# "ignore": of commit acd72f7, before precision, accumulation and averages. The others: since the check of the model is
# a dot over all axes. A change to the step that is meant to be changes them, and its commit says why.
EXPECTED = {"raise": "d7d9f901188839db", "skip": "46f770fb769ba802", "ignore": "1c06fe965eab9950"}
PINNED = "0.10.2"  # of jax in constraints.txt: another one lowers to other text


def init(rng, spec):
    return Variables({"w": jax.random.normal(rng, (8, 3)), "b": jnp.zeros(3)}, {"seen": jnp.zeros(())})


def loss_fn(variables, batch, rng, train):
    x = batch["x"] + 0.1 * jax.random.normal(rng, batch["x"].shape)
    logits = jnp.tanh(x @ variables.params["w"]) + variables.params["b"]
    seen = {"seen": variables.extra["seen"] + batch["_mask"].sum()}
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return losses, Variables(variables.params, seen), logits


def accuracy(logits, batch):
    return logits.argmax(-1) == batch["label"]


@pytest.mark.skipif(version("jax") != PINNED, reason="the text depends on JAX")
@pytest.mark.parametrize("on_nan", EXPECTED)
def test_without_features_a_step_is_the_same_program_as_ever(on_nan):
    task = Task(init, loss_fn, optax.adamw(1e-2), {"accuracy": accuracy}, augment=lambda batch: batch)
    batch = {"x": (4, 8), "label": (4,), "_mask": (4,)}
    dtypes = {"label": jnp.int32}
    batch = {key: jax.ShapeDtypeStruct(shape, dtypes.get(key, jnp.float32)) for key, shape in batch.items()}
    key = jnp.zeros(2, jnp.uint32)
    variables = jax.eval_shape(init, jax.random.key(0), batch)
    optimizer = jax.eval_shape(task.optimizer.init, variables.params)
    state = TrainState(jax.ShapeDtypeStruct((), jnp.int32), variables, optimizer, jax.eval_shape(lambda: key))
    text = jax.jit(train_step(task, on_nan)).lower(state, batch).as_text()
    found = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert found == EXPECTED[on_nan], found
