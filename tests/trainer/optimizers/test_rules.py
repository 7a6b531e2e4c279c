"""Optimizers against the formulas of their papers, the learning rate by step, and groups of parameters."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.errors import OptionError
from trainer.mesh.placement import Placement
from trainer.optimizers.build import ParameterGroup, groups_of, learning_rate, make_optimizer
from trainer.optimizers.config import OptimizerConfig, Run, steps_of
from trainer.step.state import abstract_state
from trainer.task import Task, Variables

RUN = Run(max_steps=100, global_batch_size=256)
RATE, DECAY = 0.1, 0.05
STEPS = 3
RNG = np.random.default_rng(0)
START = {"kernel": RNG.normal(size=(3, 2)), "bias": RNG.normal(size=2)}
GRADIENTS = [
    {name: RNG.normal(size=value.shape) for name, value in START.items()} for _ in range(STEPS)
]


def norm(x):
    return np.sqrt(np.sum(x**2))


def adam_direction(memory, gradient, step):
    memory["m"] = 0.9 * memory.get("m", 0) + 0.1 * gradient
    memory["v"] = 0.999 * memory.get("v", 0) + 0.001 * gradient**2
    mean, square = memory["m"] / (1 - 0.9**step), memory["v"] / (1 - 0.999**step)
    return mean / (np.sqrt(square) + 1e-8)


def adamw(memory, w, gradient, step, decay):  # Loshchilov and Hutter 2019, algorithm 2
    return w - RATE * (adam_direction(memory, gradient, step) + decay * w)


def lamb(memory, w, gradient, step, decay):  # You et al. 2020, algorithm 2
    update = adam_direction(memory, gradient, step) + decay * w
    return w - RATE * norm(w) / norm(update) * update


# You et al. 2017, algorithm 1; biases without decay are not normalized
def lars(memory, w, gradient, step, decay):
    if decay:
        gradient = gradient + decay * w
        gradient = gradient * 0.001 * norm(w) / norm(gradient)
    memory["m"] = 0.9 * memory.get("m", 0) + RATE * gradient
    return w - memory["m"]


def sgd(memory, w, gradient, step, decay):  # Nesterov's momentum as Sutskever et al. 2013 write it
    gradient = gradient + decay * w
    memory["m"] = 0.9 * memory.get("m", 0) + gradient
    return w - RATE * (gradient + 0.9 * memory["m"])


def lion(memory, w, gradient, step, decay):  # Chen et al. 2023, algorithm 2
    before = memory.get("m", 0)
    memory["m"] = 0.999 * before + 0.001 * gradient
    return w - RATE * (np.sign(0.9 * before + 0.1 * gradient) + decay * w)


RULES = {
    "adamw": (adamw, {}),
    "lamb": (lamb, {}),
    "lars": (lars, {"nesterov": False}),
    "sgd": (sgd, {}),
    "lion": (lion, {}),
}


def trained(config, params=START, gradients=GRADIENTS):
    optimizer = make_optimizer(config, RUN)
    params = jax.tree.map(jnp.asarray, params)
    state = optimizer.init(params)
    for gradient in gradients:
        updates, state = optimizer.update(jax.tree.map(jnp.asarray, gradient), state, params)
        params = jax.tree.map(jnp.add, params, updates)
    return params, state


def settings(**values):
    return OptimizerConfig(
        **{"learning_rate": RATE, "schedule": "constant", "warmup": "0", "weight_decay": DECAY}
        | values
    )


@pytest.mark.parametrize("name", RULES)
def test_each_optimizer_follows_its_paper_and_does_not_decay_biases(name):
    rule, options = RULES[name]
    params, _ = trained(settings(optimizer=name, **options))
    for array, start in START.items():
        w, memory = start, {}
        for step, gradient in enumerate(GRADIENTS, 1):
            w = rule(memory, w, gradient[array], step, DECAY if array == "kernel" else 0.0)
        np.testing.assert_allclose(params[array], w, rtol=2e-5, atol=1e-6)


def test_the_gradient_is_clipped_to_the_norm_of_all_parameters():
    plain = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0}
    params, _ = trained(settings(**plain, clip_norm=0.5), gradients=GRADIENTS[:1])
    length = np.sqrt(sum(norm(gradient) ** 2 for gradient in GRADIENTS[0].values()))
    for array, start in START.items():
        np.testing.assert_allclose(
            params[array], start - RATE * GRADIENTS[0][array] * 0.5 / length, rtol=1e-5
        )


LONG = Run(max_steps=1000, global_batch_size=1024)


def rates(steps, run=LONG, **settings):
    schedule = learning_rate(OptimizerConfig(learning_rate=1.0, **settings), run)
    return [float(schedule(step)) for step in steps]


def test_lengths_are_steps_or_shares():
    assert [steps_of(length, LONG) for length in ("500", "10%", "0.25%")] == [500, 100, 2]


@pytest.mark.parametrize(
    ("settings", "formula"),
    [
        ({"schedule": "constant"}, lambda share: 1.0),
        (
            {"schedule": "cosine", "final_rate": 0.1},
            lambda share: 0.1 + 0.9 * (1 + math.cos(math.pi * share)) / 2,
        ),
        ({"schedule": "linear", "final_rate": 0.1}, lambda share: 1 - 0.9 * share),
        ({"schedule": "polynomial", "final_rate": 0.1}, lambda share: 0.1 + 0.9 * (1 - share) ** 2),
    ],
)
def test_the_rate_warms_up_linearly_and_then_follows_its_schedule(settings, formula):
    steps = [0, 25, 99, 100, 101, 400, 550, 999, 1000]
    expected = [step / 100 if step < 100 else formula((step - 100) / 900) for step in steps]
    assert rates(steps, warmup="100", **settings) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_step_schedule_multiplies_the_rate_at_each_boundary():
    found = rates(
        [0, 374, 376, 899, 901],
        schedule="step",
        warmup="0",
        decay_at=("37.5%", "900"),
        decay_factor=0.5,
    )
    assert found == pytest.approx([1, 1, 0.5, 0.5, 0.25])


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_the_rate_is_scaled_with_the_batch_size(scaling, factor):
    assert rates([0], schedule="constant", warmup="0", scaling=scaling) == [factor]


PARAMS = {
    "body": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)},
    "head": {"kernel": jnp.ones((2, 2))},
}
SHAPES = {"body/kernel": (2, 2), "body/bias": (2,), "head/kernel": (2, 2)}


def plain(**values):
    return OptimizerConfig(
        **{"optimizer": "sgd", "momentum": 0.0, "schedule": "constant", "warmup": "0"} | values
    )


def updates_of(config):
    optimizer = make_optimizer(config, RUN)
    gradients = jax.tree.map(jnp.ones_like, PARAMS)
    updates, _ = optimizer.update(gradients, optimizer.init(PARAMS), PARAMS)
    return {
        "/".join(key.key for key in path): float(leaf.max())
        for path, leaf in jax.tree.leaves_with_path(updates)
    }


def test_a_group_follows_from_path_and_shape():
    config = plain(freeze=("body/bias",), no_decay=("head/*",), rate_of=("body/*=0.1", "*=0.5"))
    assert groups_of(config, SHAPES) == {
        "body/kernel": ParameterGroup(0.1, True),
        "body/bias": ParameterGroup(0.0, False),
        "head/kernel": ParameterGroup(0.5, False),
    }
    assert groups_of(plain(decay_all=True), SHAPES)["body/bias"] == ParameterGroup(1.0, True)


def test_rates_scale_updates_and_frozen_parameters_have_none():
    updates = updates_of(plain(learning_rate=1.0, freeze=("body/bias",), rate_of=("body/*=0.1",)))
    assert updates == pytest.approx({"body/kernel": -0.1, "body/bias": 0.0, "head/kernel": -1.0})


def test_frozen_parameters_do_not_count_for_clipping():
    clipped = updates_of(plain(learning_rate=1.0, freeze=("body/*",), clip_norm=1.0))
    np.testing.assert_allclose(clipped["head/kernel"], -0.5)  # the norm of four ones is 2


@pytest.mark.parametrize("optimizer", ["adamw", "lars", "lion"])
def test_statistics_are_placed_like_their_parameters_and_frozen_ones_have_none(optimizer):
    config = plain(
        optimizer=optimizer,
        weight_decay=0.1,
        freeze=("body/*",),
        rate_of=("head/*=0.5",),
        clip_norm=1.0,
    )
    partition = jax.sharding.PartitionSpec("model")
    task = Task(
        lambda *_: Variables(PARAMS),
        lambda *_: None,  # pyright: ignore
        make_optimizer(config, RUN),
        partition=lambda name, shape: (
            partition if name == "head/kernel" else jax.sharding.PartitionSpec()
        ),
    )
    state = abstract_state(task, {}, Placement.of(jax.devices(), {"model": 2}))
    statistics = [leaf for leaf in jax.tree.leaves(state.optimizer) if leaf.shape]
    assert statistics
    assert {(leaf.shape, leaf.sharding.spec) for leaf in statistics} == {((2, 2), partition)}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"freeze": ("body/kernle",)}, r"pattern 'body/kernle' matches no parameter\. Did you mean 'body/kernel'\?"),
        ({"no_decay": ("body/kernle",)}, "the pattern 'body/kernle' matches no parameter"),
        ({"schedule": "cosine", "warmup": "100%"}, "warmup='100%' takes 100 steps, but the run has 100. Shorten it"),
        ({"rate_of": ("body/*",)}, "rate_of="),
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"learning_rate": -1}, "learning_rate=-1 must be at least 0"),
        ({"clip_norm": -1}, "clip_norm=-1 must be at least 0"),
        ({"optimizer": "adam"}, "optimizer='adam'"),
        ({"clip_norm": 0.0}, "clip_norm=0 would stop"),
        ({"warmup": "5 epochs"}, "'5 epochs' is not a length"),
        ({"schedule": "step"}, "the step schedule needs decay_at"),
        ({"warmup": 500}, "500 is not a length. Give steps, as '500'"),
        ({"decay_at": ("30%",)}, "no other has it"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused(values, text):
    with pytest.raises(OptionError, match=text):
        updates_of(plain(**values))
