"""The state that a training run carries from step to step and saves in checkpoints, and the two
models in it: the one that trains, and the one with the exponential moving average (EMA) of its
parameters."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from pipeline.errors import InputError
from trainer.config import Model
from trainer.mesh.batch_spec import path_name
from trainer.mesh.placement import Placement, split_parameters
from trainer.task import Task, TrainState, Variables, kind_of


def _init(task: Task, seed: Array, batch_spec: Any, ema: bool) -> TrainState:
    init_key, step_key = jax.random.split(jax.random.key(seed))
    variables = task.init(init_key, batch_spec)
    if not isinstance(variables, Variables):
        raise InputError(
            f"init returned {kind_of(variables)}. It must return Variables(params), or with extra "
            "arrays."
        )
    optimizer = task.optimizer.init(variables.params)
    averages = jax.tree.map(widened, variables.params) if ema else ()
    return TrainState(jnp.int32(0), variables, optimizer, jax.random.key_data(step_key), averages)


def widened(leaf: Array) -> Array:
    """The array in float32 or wider."""
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))


def init_state(
    task: Task,
    seed: int,
    batch_spec: Any,
    placement: Placement,
    ema: bool = False,
) -> TrainState:
    """A fresh state, computed in its final placement.

    ema: whether it has averaged parameters, which begin as the parameters."""
    shardings = jax.tree.map(
        lambda leaf: leaf.sharding, abstract_state(task, batch_spec, placement, ema)
    )
    # The seed is an argument: as a constant, every seed would need its own compilation.
    make = jax.jit(
        lambda seed: _init(task, seed, batch_spec, ema),
        out_shardings=shardings,
        compiler_options=placement.runs_once,
    )
    lowered = make.lower(jax.ShapeDtypeStruct((), jnp.uint32))
    return lowered.compile()(jnp.uint32(seed))


def abstract_state(
    task: Task, batch_spec: Any, placement: Placement, ema: bool = False
) -> TrainState:
    """The state's shapes, dtypes and shardings, without computing anything."""
    shapes = jax.eval_shape(
        lambda seed: _init(task, seed, batch_spec, ema), jax.ShapeDtypeStruct((), jnp.uint32)
    )
    replicated = partial(_placed, sharding=placement.replicated)
    shardings = split_parameters(shapes.variables.params, task.partition, placement)

    def split(path: Any, param: Any) -> jax.ShapeDtypeStruct:
        return _placed(param, shardings[path_name(path)])

    def like_its_parameter(statistic: Any, param: Any) -> jax.ShapeDtypeStruct:
        if _is_masked(statistic):  # of a parameter that this part of the optimizer does not update
            return statistic
        if statistic.shape == param.shape:
            return _placed(statistic, param.sharding)
        return replicated(statistic)  # a factored one (adafactor) lacks a dimension, and is small

    params = jax.tree_util.tree_map_with_path(split, shapes.variables.params)
    averages = jax.tree_util.tree_map_with_path(split, shapes.ema)
    optimizer = optax.tree_utils.tree_map_params(
        task.optimizer,
        like_its_parameter,
        shapes.optimizer,
        params,
        transform_non_params=replicated,
        is_leaf=_is_masked,
    )
    step, extra, key = jax.tree.map(replicated, (shapes.step, shapes.variables.extra, shapes.key))
    return TrainState(step, Variables(params, extra), optimizer, key, averages)


def _is_masked(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)


def _placed(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def averaged(average: Any, params: Any, step: Array, decay: float) -> Any:
    """The average after a step: decay x average + (1 - decay) x params, for each array, in float32
    or wider.

    step: finished steps before this one, n. The decay is at most (1 + n) / (10 + n), so that the
    average forgets the initial parameters quickly."""
    done = step.astype(jnp.float32)
    weight = jnp.minimum(decay, (1 + done) / (10 + done))
    return jax.tree.map(
        lambda old, new: weight * old + (1 - weight) * new.astype(old.dtype), average, params
    )


def model_of(state: TrainState, model: Model) -> Variables:
    """The model that trains, or the one with the averaged parameters, in the dtypes of the
    former."""
    if model == "params":
        return state.variables
    average = jax.tree.map(
        lambda old, new: old.astype(new.dtype), state.ema, state.variables.params
    )
    return Variables(average, state.variables.extra)
