"""The trainer on batches that are nested dicts: the same training, and an evaluation that proves itself."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pipeline.datasets import eval_dataset, train_dataset
from pipeline.ops import DecodeJpeg, MultiHot
from trainer.config import TrainerConfig
from trainer.task import Task, Variables
from trainer.trainer import Trainer

PIXELS, LABELS = "image/pixels", "image/class/hot"
OPS = [DecodeJpeg("image/encoded", into=PIXELS, shape=(32, 32, 1)), MultiHot("image/class/label", 10, 1, LABELS)]


def task(get) -> Task:
    """One layer over pixels, a sigmoid a class; `get` finds an array of a batch."""

    def init(rng, spec):
        inputs, classes = np.prod(get(spec, PIXELS).shape[1:]), get(spec, LABELS).shape[1]
        return Variables({"w": 0.01 * jax.random.normal(rng, (inputs, classes))})

    def loss_fn(variables, batch, rng, train):
        logits = (get(batch, PIXELS) / 255.0).reshape(len(batch["_mask"]), -1) @ variables.params["w"]
        return optax.sigmoid_binary_cross_entropy(logits, get(batch, LABELS)).sum(-1), variables, logits

    def right(logits, batch):
        return jnp.take_along_axis(get(batch, LABELS), jnp.argmax(logits, -1)[:, None], 1)[:, 0]

    return Task(init, loss_fn, optax.sgd(0.05), {"right": right})


def in_tree(batch, key):
    for name in key.split("/"):
        batch = batch[name]
    return batch


@pytest.fixture(scope="module")
def results(digits, tmp_path_factory):
    """nested -> the weights after two runs of four steps, and what an evaluation says of them."""

    def trained(nested: bool):
        options = {"ops": OPS, "keys": [PIXELS, LABELS], "nested": nested}
        settings = TrainerConfig(
            workdir=str(tmp_path_factory.mktemp("model")),
            global_batch_size=16,
            eval_batch_size=100,
            iterations_per_loop=2,
        )

        def train_input(ctx):
            return train_dataset(str(digits[1]), global_batch=ctx.global_batch_size, seed=ctx.seed, **options)

        def eval_input(ctx):
            return eval_dataset(str(digits[1]), global_batch=ctx.global_batch_size, **options)

        trainer = Trainer(task(in_tree if nested else dict.__getitem__), settings, devices=jax.devices()[:1])
        trainer.train(train_input, max_steps=4)
        return trainer.train(train_input, max_steps=8), trainer.evaluate(eval_input)

    return {nested: trained(nested) for nested in (False, True)}


def test_nested_batches_train_to_the_same_weights(results):
    flat, nested = (results[nested][0].state.variables.params["w"] for nested in (False, True))
    np.testing.assert_array_equal(nested, flat)


def test_nested_batches_are_evaluated_to_the_same_numbers_and_prove_it(results):
    flat, nested = (results[nested][1] for nested in (False, True))
    assert nested.proven
    assert (nested.records, nested.num_records, nested.step) == (368, 368, 8)
    assert nested.metrics == flat.metrics
    assert nested.metrics["right"] > 0.2  # chance is 0.1
