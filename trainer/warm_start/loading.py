"""Begins a run with the arrays of a checkpoint: checks them against the model, then replaces its fresh ones."""

from typing import Any, NamedTuple

import jax
import numpy as np

from pipeline.logs import logger
from trainer.batch_spec import named_leaves
from trainer.mesh import Placement
from trainer.state import TrainState
from trainer.task import Task
from trainer.warm_start.config import WarmStart
from trainer.warm_start.matching import Array, check_rows, described_rows, from_torch, match, model_names
from trainer.warm_start.weights import Weights, open_weights

__all__ = ["Loading", "plan_loading"]

log = logger("trainer")


class Loading(NamedTuple):
    """The arrays to load. names: the model's -> those in the checkpoint."""

    weights: Weights
    names: dict[str, str]
    config: WarmStart

    def into(self, state: TrainState, task: Task, placement: Placement) -> TrainState:
        """The fresh state with the loaded arrays, in its dtypes and shardings.

        Averages begin as the loaded parameters, and the optimizer with its first state for them."""
        params = named_leaves(state.variables.params)
        averages = named_leaves(state.ema)
        replaced: dict[int, Any] = {}
        ours = model_names(params, named_leaves(state.variables.extra))
        for name, theirs in self.names.items():
            numbers = self.weights.read(theirs)
            if from_torch(name, numbers.shape, self.config):
                numbers = np.moveaxis(numbers, (0, 1), (-1, -2))
            numbers = numbers.astype(ours[name].dtype)
            replaced[id(ours[name])] = _placed(numbers, ours[name])
            if name in averages and name in params:
                replaced[id(averages[name])] = _placed(numbers, averages[name])

        def new(tree: Any) -> Any:
            return jax.tree.map(lambda leaf: replaced.get(id(leaf), leaf), tree)

        variables = new(state.variables)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, state.optimizer)
        begin = jax.jit(task.optimizer.init, out_shardings=shardings, compiler_options=placement.runs_once)
        return state._replace(variables=variables, optimizer=begin(variables.params), ema=new(state.ema))


def plan_loading(config: WarmStart, like: TrainState) -> Loading:
    """What to load into a state like this. Reads no array yet; logs the arrays that are not loaded.

    Raises OptionError for a path or pattern without a match, CheckpointError for arrays that do not fit."""
    assert config.init_from is not None
    weights = open_weights(config.init_from, config.init_ema)
    leaves = model_names(named_leaves(like.variables.params), named_leaves(like.variables.extra))
    model = {name: Array(leaf.shape, str(leaf.dtype)) for name, leaf in leaves.items()}
    rows = match(model, weights.arrays, config)
    check_rows(weights.path, rows, config)
    for line in described_rows(rows):
        log.info("init_from %s: %s", weights.path, line)
    return Loading(
        weights, {row.name: row.theirs for row in rows if row.status == "loaded" and row.theirs is not None}, config
    )


def _placed(numbers: np.ndarray, like: jax.Array) -> jax.Array:
    numbers = numbers.astype(like.dtype)
    return jax.make_array_from_callback(like.shape, like.sharding, lambda index: numbers[index])
