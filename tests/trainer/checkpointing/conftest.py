"""A state that is made and saved in milliseconds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from trainer.checkpointing.manager import CheckpointManager, Saved
from trainer.mesh.placement import Placement
from trainer.task import TrainState, Variables


@pytest.fixture
def state_at():
    """state_at(step, devices, P of w) -> a state whose numbers depend on the step."""

    def make(step=0, devices=4, partition=None, model=1):
        mesh = Placement.of(jax.devices()[:devices], {"model": model}).mesh
        w = np.random.default_rng(step).standard_normal((64, 48)).astype(np.float32)
        params = {
            "w": jax.device_put(w, NamedSharding(mesh, partition or P())),
            "b": jnp.full(3, step, jnp.bfloat16),
        }
        copied = NamedSharding(mesh, P())
        state = TrainState(
            jnp.int32(step), Variables(params), (jnp.float32(0.5),), jnp.arange(2, dtype=jnp.uint32)
        )
        return jax.tree.map(
            lambda leaf: leaf if leaf is params["w"] else jax.device_put(leaf, copied), state
        )

    return make


@pytest.fixture
def save(state_at):
    """save(settings, step, ...): a call of train that saves these steps."""

    def saved(settings, *steps, **state):
        with CheckpointManager(settings) as checkpoints:
            checkpoints.resume_step()
            for step in steps:
                checkpoints.save(
                    Saved(step, state_at(step, **state), {"position": step}, settings.to_json())
                )

    return saved
