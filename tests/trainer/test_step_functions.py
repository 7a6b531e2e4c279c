"""The step of training sees the whole batch, however many devices share it."""

from dataclasses import replace

import jax
import numpy as np
import optax
import pytest

from trainer.trainer import Trainer


@pytest.fixture
def clipped(dense_task):
    # So low that every step is clipped, and Adam, which does not feel the scale of a gradient, is left out.
    return replace(dense_task, optimizer=optax.chain(optax.clip_by_global_norm(0.01), optax.sgd(1.0)))


def test_a_clipped_step_is_the_same_on_any_number_of_devices(clipped, vector_input, config):
    def trained(devices):
        trainer = Trainer(clipped, config(f"on{devices}"), devices=jax.devices()[:devices])
        return jax.tree.leaves(trainer.train(vector_input, steps=5).state.variables)

    # Where each device clipped its own part, and these were averaged, a step on four would be shorter than 0.01.
    for one, four in zip(trained(1), trained(4), strict=True):
        np.testing.assert_allclose(np.asarray(four), np.asarray(one), rtol=1e-5, atol=1e-6)
