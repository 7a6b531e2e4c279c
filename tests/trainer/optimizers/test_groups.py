"""Patterns of paths: what is frozen, what decays, and what has a rate of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.errors import OptionError
from trainer.mesh import Placement
from trainer.optimizers.build import ParameterGroup, groups_of, make_optimizer
from trainer.optimizers.config import OptimizerConfig, Run
from trainer.state import abstract_state
from trainer.task import Task, Variables

RUN = Run(max_steps=100, global_batch_size=256)
PARAMS = {"body": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}, "head": {"kernel": jnp.ones((2, 2))}}
SHAPES = {"body/kernel": (2, 2), "body/bias": (2,), "head/kernel": (2, 2)}


def settings(**values):
    return OptimizerConfig(**{"optimizer": "sgd", "momentum": 0.0, "schedule": "constant", "warmup": "0"} | values)


def updates_of(config):
    optimizer = make_optimizer(config, RUN)
    gradients = jax.tree.map(jnp.ones_like, PARAMS)
    updates, _ = optimizer.update(gradients, optimizer.init(PARAMS), PARAMS)
    return {"/".join(key.key for key in path): float(leaf.max()) for path, leaf in jax.tree.leaves_with_path(updates)}


def test_a_group_follows_from_path_and_shape():
    config = settings(freeze=("body/bias",), no_decay=("head/*",), rate_of=("body/*=0.1", "*=0.5"))
    assert groups_of(config, SHAPES) == {
        "body/kernel": ParameterGroup(0.1, True),
        "body/bias": ParameterGroup(0.0, False),
        "head/kernel": ParameterGroup(0.5, False),
    }
    assert groups_of(settings(decay_all=True), SHAPES)["body/bias"] == ParameterGroup(1.0, True)


def test_rates_scale_updates_and_frozen_parameters_have_none():
    updates = updates_of(settings(learning_rate=1.0, freeze=("body/bias",), rate_of=("body/*=0.1",)))
    assert updates == pytest.approx({"body/kernel": -0.1, "body/bias": 0.0, "head/kernel": -1.0})


def test_frozen_parameters_do_not_count_for_clipping():
    clipped = updates_of(settings(learning_rate=1.0, freeze=("body/*",), clip_norm=1.0))
    np.testing.assert_allclose(clipped["head/kernel"], -0.5)  # the norm of four ones is 2


@pytest.mark.parametrize("optimizer", ["adamw", "lars", "lion"])
def test_statistics_are_placed_like_their_parameters_and_frozen_ones_have_none(optimizer):
    config = settings(optimizer=optimizer, weight_decay=0.1, freeze=("body/*",), rate_of=("head/*=0.5",), clip_norm=1.0)
    partition = jax.sharding.PartitionSpec("model")
    task = Task(
        lambda *_: Variables(PARAMS),
        lambda *_: None,  # pyright: ignore
        make_optimizer(config, RUN),
        partition=lambda name, shape: partition if name == "head/kernel" else jax.sharding.PartitionSpec(),
    )
    state = abstract_state(task, {}, Placement.of(jax.devices(), {"model": 2}))
    statistics = [leaf for leaf in jax.tree.leaves(state.optimizer) if leaf.shape]
    assert statistics
    assert {(leaf.shape, leaf.sharding.spec) for leaf in statistics} == {((2, 2), partition)}


@pytest.mark.parametrize("field", ["freeze", "no_decay"])
def test_a_pattern_that_matches_nothing_is_refused(field):
    text = r"the pattern 'body/kernle' matches no parameter\. Did you mean 'body/kernel'\?"
    with pytest.raises(OptionError, match=text):
        updates_of(settings(**{field: ("body/kernle",)}))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"rate_of": ("body/*",)}, r"rate_of='body/\*' must be a pattern and a factor, such as 'backbone/\*=0.1'"),
        ({"momentum": 1.0}, "momentum=1.0 must be below 1"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0 must be at least 0"),
        ({"optimizer": "adam"}, "optimizer='adam' is not one of adamw, sgd, lamb, lars, lion"),
        ({"clip_norm": 0.0}, r"clip_norm=0\.0 would stop the training"),
        ({"warmup": "5 epochs"}, r"'5 epochs' is not a length\. Give steps \(500\), epochs \(5ep\) or a share"),
        ({"schedule": "step"}, "the step schedule needs decay_at"),
        ({"decay_at": ("30ep",)}, "the step schedule needs decay_at, and no other has it"),
    ],
)
def test_a_wrong_setting_is_refused(values, text):
    with pytest.raises(OptionError, match=text):
        settings(**values)
