"""Weights of classes and of rows: in the loss of the training, and nowhere else."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pipeline.datasets import eval_dataset, train_dataset
from pipeline.errors import OptionError
from trainer.recipe import settings
from trainer.recipes import images, tabular
from trainer.recipes.tabular import TINY
from trainer.recipes.tasks import balanced_weights
from trainer.task import Task, Variables
from trainer.trainer import Trainer

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
DATA = {"x": X, "y": X.sum(axis=1), "weight": np.arange(40, dtype=np.float32) / 20}


def task(inside, outside):
    """A regression whose losses have weights inside of the loss_fn in training, or outside of it."""

    def loss_fn(variables, batch, rng, train):
        losses = (batch["x"] @ variables.params - batch["y"]) ** 2
        weights = batch["weight"] if inside and train else 1.0
        return losses * weights, variables, losses

    weigh = (lambda batch: batch["weight"]) if outside else None
    return Task(
        lambda rng, spec: Variables(jnp.zeros(3)),
        loss_fn,
        optax.sgd(0.01),
        {"error": lambda outputs, batch: outputs},
        sample_weight=weigh,
    )


def test_a_task_weighs_the_losses_of_its_training_and_no_metric_or_evaluation(config):
    results, evaluated = [], []
    for inside, outside in ((True, False), (False, True), (False, False)):
        trainer = Trainer(task(inside, outside), config(f"{inside}{outside}", log_every=5))
        results.append(trainer.train(train_dataset(DATA, global_batch=16), max_steps=10))
        evaluated.append(trainer.evaluate(eval_dataset(DATA, global_batch=16)).metrics)
    given, weighted, equal = results
    assert weighted.metrics["loss"] == given.metrics["loss"] != equal.metrics["loss"]
    np.testing.assert_array_equal(weighted.state.variables.params, given.state.variables.params)
    assert weighted.metrics["error"] == given.metrics["error"] != weighted.metrics["loss"]
    assert evaluated[0] == evaluated[1]
    assert evaluated[1]["loss"] == evaluated[1]["error"]
    assert "where the loss is weighted" in str(weighted)
    assert "weighted" not in str(equal)


def test_balanced_classes_weigh_the_same_in_sum():
    weights = balanced_weights([90, 0, 6, 4])
    assert weights.tolist() == pytest.approx([100 / 270, 0, 100 / 18, 100 / 12])


def test_a_recipe_counts_the_classes_of_its_training_records():
    options = {"tiny": True, "class_weights": "balanced", "trainer": settings(workdir="w")}
    weighted = images.Config(**options).task().sample_weight
    labels = jnp.arange(10) + images.Config(**options).image_data.base
    key = images.Config(**options).image_data.label
    assert weighted({key: labels}).tolist() == [1.0] * 10  # 13 images of each
    soft = jnp.eye(10)[:2] / 2 + jnp.eye(10)[2:4] / 2
    assert weighted({key: labels[:2], "labels": soft}).tolist() == [1.0, 1.0]
    assert images.Config(**options, mode="evaluate").task().sample_weight is None


def house(**options):
    return tabular.Config(tiny=True, trainer=settings(workdir="w"), **options)


def test_the_weights_of_rows_and_of_classes_are_multiplied(monkeypatch, tmp_path):
    uneven = replace(TINY["city"], categories={"Oslo": 100, "Rome": 30})
    monkeypatch.setitem(tabular.TINY, "city", uneven)
    recipe = house(weight_column="price", class_weights="balanced")
    assert [*recipe.inputs] == ["area"]
    batch = {"price": jnp.float32([2.0, 4.0]), "city": jnp.int32([0, 1])}
    weights = recipe.task().sample_weight(batch)
    assert weights.tolist() == pytest.approx([2 * 130 / 200, 4 * 130 / 60])
    recipe = replace(recipe, trainer=settings(workdir=str(tmp_path), global_batch_size=16))
    trainer = Trainer(recipe.task(), recipe.trainer)
    assert trainer.train(recipe.train_input, max_steps=2).weighted
    assert trainer.evaluate(recipe.eval_input).records == 130  # which needs no weights


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"target": "price", "class_weights": "balanced"}, "'price' is a number. Leave it out"),
        ({"weight_column": "prise"}, "weight_column='prise': not a column .* Did you mean 'price'"),
        ({"weight_column": "city"}, "weight_column='city' has categories. It must have a number"),
        ({"target": "price", "weight_column": "city"}, "weight_column='city' has categories"),
        ({"target": "price", "weight_column": "price"}, "price' has numbers from 0 to 259, and 0"),
    ],
)
def test_weights_that_cannot_be_are_refused(options, problem):
    with pytest.raises(OptionError, match=problem):
        house(**options).check()
