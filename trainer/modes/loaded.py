"""A trained model in memory, ready to be called: what trainer.trainer.load returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np

from pipeline.errors import OptionError
from trainer.checkpointing.manager import CheckpointManager, WhichStep
from trainer.inputs import INDEX, MASK, InputFn
from trainer.job import Job
from trainer.modes.predict import check_predict
from trainer.state import model_of
from trainer.step_functions import ROWS, predict_step
from trainer.task import Task, Variables


@dataclass(frozen=True)
class LoadedModel:
    """A trained model on one device.

    step: of its checkpoint. task: what the recipe makes. variables: its arrays, jax.Array by name: params, and extra,
    such as running statistics; the averaged parameters where evaluations use them. recipe: of the training; its
    `class_names` has the names of predicted classes. inputs: what a batch of the recipe's evaluation has, by name, with
    shape ([rows, ...]) and dtype."""

    step: int
    task: Task = field(repr=False)
    variables: Variables = field(repr=False)
    recipe: Any = field(repr=False)
    inputs: Mapping[str, Any]

    @property
    def module(self) -> Any:
        """The flax.nnx.Module with these arrays, in eval() mode; a new one for each call.

        OptionError for a task that no nnx module makes."""
        if self.task.module is None:
            raise OptionError("this task has no module: nnx_task did not make it. Use predict, or the variables.")
        return self.task.module(self.variables)

    def predict(self, batch: Mapping[str, Any]) -> dict[str, jax.Array]:
        """The task's predictions, each [b, ...], by name: what Trainer.predict yields for such records.

        batch: the arrays that the task reads, [b, ...] each, such as {"image": uint8 [b, height, width, channels]}.
        Without "_mask", all rows count. Compiled for each new size of a batch. OptionError for no rows, and for an
        array of another shape or dtype than `inputs` has, which a model might take for something else."""
        rows = next((leaf.shape[0] for leaf in jax.tree.leaves(dict(batch))), 0)
        if not rows:
            raise OptionError("the batch has no rows.")
        for name in self.inputs.keys() & batch.keys():
            array, due = batch[name], self.inputs[name]
            if isinstance(due, jax.ShapeDtypeStruct) and _without_rows(array) != _without_rows(due):
                raise OptionError(
                    f"{name!r} is {array.dtype} {list(array.shape)}; the recipe reads {due.dtype} [rows, "
                    f"{', '.join(map(str, due.shape[1:]))}]."
                )
        given = {MASK: np.ones(rows, np.float32), **batch}
        predicted = self._predict(self.variables, given)[1][ROWS]
        return {name: rows for name, rows in predicted.items() if name not in (MASK, INDEX)}

    @cached_property
    def _predict(self) -> Any:
        check_predict(self.task, None)
        return jax.jit(predict_step(self.task, None))


def _without_rows(array: Any) -> tuple[Any, ...]:
    return array.dtype, array.shape[1:]


def loaded(job: Job, input_fn: InputFn, step: WhichStep | None, recipe: Any) -> LoadedModel:
    """The model of a checkpoint. input_fn: has batches like those of the training; none is read."""
    opened = job.open("predict", input_fn)
    with CheckpointManager(job.config) as checkpoints:
        found = checkpoints.require(step)
        state = checkpoints.restore(found, job.abstract_state(opened)).state
    # Where rows are not first, sizes would be compared with their number.
    struct = opened.struct if not job.config.batch_axis else {}
    inputs = {name: spec for name, spec in struct.items() if not name.startswith("_")}
    return LoadedModel(found, job.traced_task, model_of(state, job.config.evaluated_models[0]), recipe, inputs)
