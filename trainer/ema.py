"""The exponential moving average (EMA) of the parameters, and which of the two models is evaluated."""

from typing import Any

import jax
import jax.numpy as jnp

from trainer.config import Model
from trainer.state import TrainState
from trainer.task import Variables

__all__ = ["averaged", "model_of", "with_model"]


def averaged(average: Any, params: Any, step: jax.Array, decay: float) -> Any:
    """The average after a step: decay x average + (1 - decay) x params, for each array, in float32 or wider.

    step: finished steps before this one, n. The decay is at most (1 + n) / (10 + n), so that the average forgets the
    initial parameters quickly."""
    done = step.astype(jnp.float32)
    kept = jnp.minimum(decay, (1 + done) / (10 + done))
    return jax.tree.map(lambda old, new: kept * old + (1 - kept) * new.astype(old.dtype), average, params)


def model_of(state: TrainState, model: Model) -> Variables:
    """The model that trains, or the one with the averaged parameters, in the dtypes of the former."""
    if model == "params":
        return state.variables
    average = jax.tree.map(lambda old, new: old.astype(new.dtype), state.ema, state.variables.params)
    return Variables(average, state.variables.extra)


def with_model(state: TrainState, model: Model, variables: Variables) -> TrainState:
    """The state with the arrays of such a model replaced by equal ones, as its own may have been donated."""
    if model == "params":
        return state._replace(variables=variables)
    average = jax.tree.map(lambda old, new: new if new.dtype == old.dtype else old, state.ema, variables.params)
    return state._replace(ema=average, variables=state.variables._replace(extra=variables.extra))
