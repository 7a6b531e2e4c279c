"""The published settings of a plain Vision Transformer, and what images makes of one: its variants, pixels and weight decay."""

import math
from typing import Any

import pytest
from flax import nnx

from trainer.commands.loading import parsed
from trainer.models.pixels import STATISTICS
from trainer.models.vit import VITS, VitShape
from trainer.optimizers.build import groups_of, learning_rate
from trainer.optimizers.config import Run
from trainer.recipes import images
from trainer.recipes.imagenet_vit import Config

RECIPE = Config.trainer
STEPS = round(90 * round(1_281_167 * 0.99) / 1024)


def of_flags(*flags, kind=images.Config) -> Any:
    return parsed(kind, ["--tiny", "--workdir", "work", *flags], "train")[0]


def published_rate(step):
    """https://github.com/google-research/big_vision/blob/main/big_vision/utils.py, create_learning_rate_schedule."""
    progress = min(max((step - 10_000) / (STEPS - 10_000), 0), 1)
    return 1e-3 * 0.5 * (1 + math.cos(math.pi * progress)) * min(1, step / 10_000)


def test_the_learning_rate_is_that_of_the_published_formula():
    assert RECIPE.max_steps == STEPS
    schedule = learning_rate(Config.optimizer, Run(STEPS, 1024))
    at = [0, 1, 5000, 9999, 10_000, 10_001, 60_000, STEPS - 1]
    published = pytest.approx([published_rate(step) for step in at], rel=1e-4, abs=1e-10)
    assert [float(schedule(step)) for step in at] == published
    # there, the schedule from 0 to 1 multiplies both
    assert Config.optimizer.weight_decay * Config.optimizer.learning_rate == pytest.approx(1e-4)


@pytest.mark.parametrize(
    ("flags", "epsilon", "pooling"),
    [
        ((), 1e-6, "token"),
        (("--vit", "transformers"), 1e-12, "token"),
        (("--vit", "big_vision", "--patch", "8"), 1e-6, "mean"),
    ],
)
def test_a_vision_transformer_has_its_variant_and_only_kernels_decay(
    monkeypatch, flags, epsilon, pooling
):
    monkeypatch.setitem(VITS, "vit_s16", VitShape(2, 8, 2))
    recipe = of_flags("--model", "vit_s16", *flags)
    model: Any = nnx.eval_shape(lambda: recipe.network(nnx.Rngs(0)))
    assert (model.norm.epsilon, model.shape.pooling, model.side) == (
        epsilon,
        pooling,
        64 // recipe.patch,
    )
    leaves = nnx.to_flat_state(nnx.state(model, nnx.Param))
    shapes = {"/".join(map(str, path)): leaf.get_value().shape for path, leaf in leaves}
    groups = groups_of(recipe.optimizer, shapes)
    decaying = {name for name, group in groups.items() if group.decays}
    assert decaying == {name for name in shapes if name.endswith("kernel")} != {*shapes}


@pytest.mark.parametrize(
    ("flags", "statistics"),
    [
        ((), "inception"),
        (("--normalization", "imagenet"), "imagenet"),
        (("--model", "resnet18"), "imagenet"),
        (("--model", "resnet18", "--normalization", "unit"), "unit"),
        (("--model", "vit_ti16"), "inception"),
        (("--model", "vit_ti16", "--normalization", "imagenet"), "imagenet"),
    ],
)
def test_pixels_are_normalized_as_is_usual_for_the_model_or_as_the_flag_says(flags, statistics):
    recipe = of_flags(*flags)
    model: Any = nnx.eval_shape(lambda: recipe.network(nnx.Rngs(0)))
    assert model.statistics == STATISTICS[statistics]
