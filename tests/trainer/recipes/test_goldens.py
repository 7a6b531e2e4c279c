"""Every recipe on the records of --tiny: training, exact evaluation, predictions, and the loss after a few steps.

A change that moves a loss changes what all users of the recipe train. Its commit says why."""

import math
import re
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from narrow_recipes import narrow_models, row

from trainer.__main__ import RECIPES
from trainer.commands.loading import recipe_class
from trainer.recipes.language_models import PackedText
from trainer.trainer import Trainer

PINNED = Path(__file__).parents[3] / "constraints.txt"
STACK = ("jax", "jaxlib", "flax", "optax", "numpy", "tensorflow", "pillow")
STEPS, BATCH = 8, 32
SMALL_CNN: dict[str, Any] = {"widths": (8, 16), "hidden": 32}


@dataclass(frozen=True)
class Golden:
    """The loss of the last of STEPS steps; with these fields, which make the model narrow."""

    loss: float
    fields: dict[str, Any] = field(default_factory=dict)


GOLDENS = {
    "digits": Golden(1.59261),
    "mnist": Golden(2.06935, SMALL_CNN),
    "fashion_mnist": Golden(2.06454, SMALL_CNN),
    "cifar10": Golden(2.29461),
    "images": Golden(2.13540, {"size": 32, "widths": (8, 16)}),
    "imagenet_resnet50": Golden(2.28743, {"size": 32}),
    "imagenet_vit": Golden(2.29806, {"size": 32}),
    "tabular": Golden(0.99926, {"widths": (8,)}),
    "char_lm": Golden(3.32159, {"width": 16}),
    "byte_lm": Golden(3.99212, {"layers": 2, "width": 16, "heads": 2}),
}


def other_versions():
    """What is installed in another version than CI's: {name: (installed, pinned)}."""
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", PINNED.read_text(), re.MULTILINE))
    found = {name: (version(name), pinned[name]) for name in STACK}
    return {name: both for name, both in found.items() if both[0] != both[1]}


@pytest.fixture(scope="module", autouse=True)
def _narrow():
    with narrow_models():
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """trained(name): the recipe of a run that has taken STEPS steps, its trainer, and the last loss."""
    runs = {}

    def run(name):
        if name not in runs:
            kind = recipe_class(name)
            defaults = kind.__dataclass_fields__["trainer"].default
            sizes = {"global_batch_size": BATCH, "eval_batch_size": 100, "max_steps": STEPS}
            settings = replace(defaults, workdir=str(tmp_path_factory.mktemp(name)), **sizes)
            recipe = kind(tiny=True, trainer=settings, **GOLDENS[name].fields)
            recipe.check()
            trainer = Trainer(recipe.task(), recipe.trainer)
            runs[name] = recipe, trainer, trainer.train(recipe.train_input).metrics["loss"]
        return runs[name]

    return run


def test_every_recipe_has_a_row():
    assert GOLDENS.keys() == RECIPES.keys()


@pytest.mark.parametrize("name", [row(name) for name in GOLDENS])
def test_the_loss_after_a_few_steps_is_the_one_that_was_committed(trained, name):
    if others := other_versions():
        pytest.skip(f"the losses are those of constraints.txt; here: {others}")
    _, _, loss = trained(name)
    assert loss == pytest.approx(GOLDENS[name].loss, rel=1e-3)


# e2e/test_text_recipes.py has its own
@pytest.mark.parametrize("name", [row(name) for name in GOLDENS if name != "byte_lm"])
def test_the_evaluation_on_tiny_records_is_proven_and_every_record_is_predicted(trained, name):
    recipe, trainer, _ = trained(name)
    result = trainer.evaluate(recipe.eval_input)
    assert (result.records, result.step, result.proven) == (130, STEPS, True)
    rows = list(trainer.predict(recipe.eval_input))
    assert len(rows) == 130
    if isinstance(recipe, PackedText):
        assert (
            sum(row["num_bytes"] for row in rows)
            == result.totals["num_bytes"]
            == recipe.eval_records.info.totals["num_bytes"]
        )
        bits = sum(row["nats"] for row in rows) / math.log(2) / result.totals["num_bytes"]
        assert result.metrics["bits_per_byte"] == pytest.approx(bits)
    else:
        right = sum(row["class"] == row["label"] for row in rows)
        assert result.metrics["accuracy"] == pytest.approx(right / 130)
