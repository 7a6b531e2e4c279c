"""A flax.nnx module as a Task: statistics are carried, random streams follow the step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from pipeline.errors import OptionError
from trainer.nnx_task import nnx_task


class Net(nnx.Module):
    """Batch norm has statistics, dropout a random stream, the list a number in its path."""

    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(8, 8, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)])
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.layers[1](self.dropout(nnx.relu(self.layers[0](self.norm(x)))))


@pytest.fixture(scope="module")
def task():
    def loss(model, batch):
        logits = model(batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]), logits

    def predict(model, batch):
        return {"logits": model(batch["x"])}

    return nnx_task(Net, loss, optax.sgd(0.1), predict=predict)


@pytest.fixture(scope="module")
def variables(task):
    return jax.jit(task.init, static_argnums=1)(jax.random.key(0), None)


@pytest.fixture(scope="module")
def loss_fn(task):
    """As the trainer runs it: in a program."""
    return jax.jit(task.loss_fn, static_argnums=3)


def test_arrays_are_named_by_their_path(variables):
    layers = [f"layers/{number}/{name}" for number in (0, 1) for name in ("bias", "kernel")]
    assert sorted(variables.params) == [*layers, "norm/bias", "norm/scale"]
    assert sorted(variables.extra) == ["norm/mean", "norm/var"]


def test_dropout_depends_on_the_key_in_training_and_is_off_in_evaluation(variables, loss_fn):
    batch = {"x": jnp.eye(4, 8), "label": jnp.zeros(4, jnp.int32)}

    def outputs(seed, train):
        return np.asarray(loss_fn(variables, batch, jax.random.key(seed), train)[2])

    assert (outputs(1, True) == outputs(1, True)).all()
    assert (outputs(1, True) != outputs(2, True)).any()
    assert (outputs(1, False) == outputs(2, False)).all()


def test_nnx_task_refuses_a_model_instead_of_its_constructor():
    with pytest.raises(OptionError, match="make_model is a Net"):
        nnx_task(Net(nnx.Rngs(0)), lambda model, batch: None, optax.sgd(0.1))


def test_an_nnx_task_predicts_the_outputs_of_an_evaluation(task, variables, loss_fn):
    batch = {"x": jnp.eye(4, 8), "label": jnp.zeros(4, jnp.int32)}
    evaluated = loss_fn(variables, batch, jax.random.key(3), False)[2]
    assert (jax.jit(task.predict_fn)(variables, batch)["logits"] == evaluated).all()


def test_an_evaluation_leaves_the_statistics_alone(variables, loss_fn):
    batch = {"x": jnp.eye(4, 8), "label": jnp.zeros(4, jnp.int32)}
    _, after, _ = loss_fn(variables, batch, jax.random.key(0), False)
    for key, before in variables.extra.items():
        np.testing.assert_array_equal(after.extra[key], before)
