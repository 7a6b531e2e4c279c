"""All that a training run carries from step to step, and all that a checkpoint needs of the model."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from trainer.task import Task, Variables

__all__ = ["TrainState", "abstract_state", "init_state"]


class TrainState(NamedTuple):
    """step: int32, steps made. key: raw data of the run's random key; step s uses fold_in(key, s)."""

    step: jax.Array
    variables: Variables
    optimizer: Any
    key: jax.Array


def _init(task: Task, seed: jax.Array, batch_spec: Any) -> TrainState:
    init_key, step_key = jax.random.split(jax.random.key(seed))
    variables = task.init(init_key, batch_spec)
    return TrainState(
        step=jnp.int32(0),
        variables=variables,
        optimizer=task.optimizer.init(variables.params),
        key=jax.random.key_data(step_key),
    )


def init_state(task: Task, seed: int, batch_spec: Any, sharding: NamedSharding) -> TrainState:
    """A fresh state, computed where it is to live."""
    # The seed is an argument: as a constant, each seed would be a program of its own.
    make = jax.jit(lambda seed: _init(task, seed, batch_spec), out_shardings=sharding)
    return make(jnp.uint32(seed))


def abstract_state(task: Task, batch_spec: Any, sharding: NamedSharding) -> TrainState:
    """The state's shapes, dtypes and sharding, without computing anything."""
    shapes = jax.eval_shape(lambda seed: _init(task, seed, batch_spec), jax.ShapeDtypeStruct((), jnp.uint32))
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes)
