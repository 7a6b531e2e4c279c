"""Task.augment: in the steps of training and only there, on whole batches, whatever the devices."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.errors import InputError
from trainer.augment import one_hot, uniform
from trainer.nnx_task import nnx_task
from trainer.step.steps import train_step
from trainer.task import Task, TrainState
from trainer.trainer import Trainer


def noisy(batch):
    return {**batch, "x": batch["x"] + uniform(batch, "noise", 8)}


@pytest.fixture
def augmented(dense_task):
    return replace(dense_task, augment=noisy)


def trained(trainer, input_fn, steps=12):
    state = trainer.train(input_fn, steps=steps).state
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state.variables)]


def test_any_devices_and_any_steps_a_dispatch_train_the_same(
    augmented, dense_task, vector_input, config
):
    one = trained(Trainer(augmented, config("one"), devices=jax.devices()[:1]), vector_input)
    four = trained(Trainer(augmented, config("four", iterations_per_loop=6)), vector_input)
    plain = trained(Trainer(dense_task, config("plain"), devices=jax.devices()[:1]), vector_input)
    for a, b, c in zip(one, four, plain, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)
        assert not np.allclose(c, a, atol=1e-4)


def test_evaluation_and_prediction_see_the_records_as_they_are(
    dense_task, vectors, vector_input, config
):
    def predict(variables, batch):
        return {"x": batch["x"]}

    task = replace(dense_task, augment=noisy, predict_fn=predict)
    trainer, plain = Trainer(task, config()), Trainer(dense_task, config())
    trainer.train(vector_input, steps=2)
    assert trainer.evaluate(vector_input).metrics == plain.evaluate(vector_input).metrics
    record = next(trainer.predict(vector_input))
    assert (record["x"] == vectors["x"][record["_index"]]).all()


def test_augment_cannot_change_reserved_keys_but_may_add_others(dense_task):
    def loss_fn(variables, batch, rng, train):
        assert batch["labels"].shape == (4, 3)
        return batch["x"].sum(1), variables, None

    def augment(batch):
        of_all = 0 * batch["x"].sum()  # NaN, had the row of padding not been blanked before
        changed = {"x": batch["x"] + of_all, "_mask": jnp.ones(4), "_index": None}
        return {**one_hot(batch, "label", 3), **changed}

    batch = {
        "x": jnp.array([1.0, 2.0, jnp.nan, 4.0])[:, None] * jnp.ones(8),
        "label": jnp.array([0, 2, 0, 1]),
        "_mask": jnp.array([1.0, 1.0, 0.0, 1.0]),
        "_index": jnp.array([5, 6, -1, 7]),
    }
    task = replace(dense_task, loss_fn=loss_fn, augment=augment, metrics={})
    variables = task.init(jax.random.key(0), batch)
    optimizer, key = task.optimizer.init(variables.params), jnp.zeros(2, jnp.uint32)
    state = TrainState(jnp.int32(0), variables, optimizer, key)
    _, scalars = jax.jit(train_step(task))(state, batch)
    assert scalars["loss"] == (8 + 16 + 32) / 3


@pytest.mark.parametrize(
    ("augment", "text"),
    [
        (lambda batch: batch["x"], r"augment returned an array\. It must return a dict"),
        (lambda batch: {"x": batch["x"][:4]}, r"augment's x has the shape \[4, 8\]; expected \[16, ...\]"),
        (lambda batch: noisy({k: v for k, v in batch.items() if k != "_seed"}), "noise draws from _seed, which the ba"),
    ],
)  # fmt: skip
def test_an_augment_function_that_returns_no_batch_is_refused_before_any_step(
    dense_task, vector_input, config, augment, text
):
    with pytest.raises(InputError, match=text):
        Trainer(replace(dense_task, augment=augment), config()).train(vector_input, steps=1)


def test_augmenting_an_iterable_without_seeds_is_an_error_with_the_remedy(
    augmented, vectors, config
):
    batches = ({key: value[:16] for key, value in vectors.items()} for _ in range(2))
    with pytest.raises(InputError, match=r"let your iterable deliver _seed: uint32 \[b, 2\]"):
        Trainer(augmented, config()).train(lambda ctx: batches, steps=1)


def test_nnx_task_accepts_an_augment_function(dense_task):
    from flax import nnx

    made = nnx_task(lambda rngs: nnx.Linear(8, 3, rngs=rngs), lambda m, b: (b["x"], None), dense_task.optimizer,
                    augment=noisy)  # fmt: skip
    assert isinstance(made, Task)
    assert made.augment is noisy
