"""The rules against the formulas of their papers in NumPy, for a matrix, and for a bias without weight decay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.optimizers.build import make_optimizer
from trainer.optimizers.config import OptimizerConfig, Run

RUN = Run(max_steps=100, global_batch_size=256)
RATE, DECAY = 0.1, 0.05
STEPS = 3
RNG = np.random.default_rng(0)
START = {"kernel": RNG.normal(size=(3, 2)), "bias": RNG.normal(size=2)}
GRADIENTS = [{name: RNG.normal(size=value.shape) for name, value in START.items()} for _ in range(STEPS)]


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


def lars(memory, w, gradient, step, decay):  # You et al. 2017, algorithm 1; biases without decay are not normalized
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
        **{"learning_rate": RATE, "schedule": "constant", "warmup": "0", "weight_decay": DECAY} | values
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
        np.testing.assert_allclose(params[array], start - RATE * GRADIENTS[0][array] * 0.5 / length, rtol=1e-5)
