"""A trained model in memory, ready to be called: what `load` returns."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax import Array

from pipeline.errors import CheckpointError, OptionError
from pipeline.sizes import counted
from pipeline.spec import INDEX, MASK, centered, with_offsets
from pipeline.storage.storage import join
from trainer.checkpointing.kept_data import as_in_run
from trainer.checkpointing.listing import WhichStep
from trainer.checkpointing.manager import CheckpointManager
from trainer.config import TrainerConfig
from trainer.inputs import InputFn
from trainer.loop.job import Job
from trainer.loop.prediction import check_predict
from trainer.mesh.batch_spec import BatchAxes, check_is_mapping
from trainer.reports.segments import read_history
from trainer.reports.workdir import SEGMENTS
from trainer.step.state import model_of
from trainer.step.steps import ROWS, predict_step
from trainer.task import Task, Variables

MOST_BYTES = 2**26  # of one row: the file may state any number


@dataclass(frozen=True, repr=False)
class LoadedModel:
    """A trained model on one device.

    step: of its checkpoint.
    task: what the recipe makes.
    variables: its arrays, Array by name: params, and extra, such as running statistics; the
        averaged parameters where evaluations use them.
    recipe: of the training; its `class_names` has the names of predicted classes.
    inputs: what a batch of the recipe's evaluation has, by name, with shape ([rows, ...]) and
        dtype: int64 where the task has an offset, which predict subtracts.
    axes: where the rows of each array are."""

    step: int
    task: Task
    variables: Variables
    recipe: Any
    inputs: Mapping[str, Any]
    axes: BatchAxes

    def __repr__(self) -> str:
        return f"<LoadedModel of step {self.step}, which reads {self._reads}>"

    @property
    def _reads(self) -> str:
        return ", ".join(_readable(name, spec) for name, spec in self.inputs.items())

    @property
    def module(self) -> Any:
        """The flax.nnx.Module with these arrays, in eval() mode; a new one for each call.

        OptionError for a task that no nnx module makes."""
        if self.task.module is None:
            raise OptionError(
                "this task has no module: nnx_task did not make it. Use predict, or the variables."
            )
        return self.task.module(self.variables)

    def predict(self, batch: Mapping[str, Any]) -> dict[str, Array]:
        """The task's predictions, each [b, ...], by name: what Trainer.predict yields for such
        records.

        batch: the arrays that the task reads, [b, ...] each, such as {"image": uint8 [b, height,
        width, channels]}; lists and tuples are converted, and so are arrays of NumPy's default
        dtypes, int64 and float64, if no integer changes. Without "_mask", all rows count. Compiled
        for each new size of a batch.

        OptionError for a batch without rows, a missing array, and one whose shape, dtype or number
        of rows differs from `inputs` and the other arrays."""
        check_is_mapping(batch)
        arrays = jax.tree.map(
            lambda leaf: leaf if hasattr(leaf, "shape") else np.asarray(leaf),
            dict(batch),
            is_leaf=lambda node: not isinstance(node, dict),
        )
        # 0 for a number, which has no axis
        sizes = self.axes.map(lambda leaf, axis: sum(leaf.shape[axis : axis + 1]), arrays)
        rows = next(iter(jax.tree.leaves(sizes)), 0)
        if not rows:
            raise OptionError(f"the batch has no rows; the model reads {self._reads}.")
        batch = {MASK: np.ones(rows, np.float32), **arrays}
        for name, spec in self.inputs.items():
            if name in batch and isinstance(spec, jax.ShapeDtypeStruct):
                batch[name] = self._as_read(name, batch[name], spec, rows)
        for name in self.task.offsets.keys() & batch.keys():
            batch[name] = centered(batch[name], self.task.offsets[name])
        try:
            predicted = self._predict(self.variables, batch)[ROWS]
        except KeyError as error:
            if (name := error.args[0]) not in self.inputs:
                raise
            reads = _readable(name, self.inputs[name])
            raise OptionError(f"the batch has no {name!r}; the model reads {reads}.") from None
        predicted = with_offsets(predicted, self.task.added)
        return {name: rows for name, rows in predicted.items() if name not in (MASK, INDEX)}

    def _as_read(self, name: str, array: Any, spec: jax.ShapeDtypeStruct, rows: int) -> Any:
        """The array with the dtype of `inputs`; OptionError for another dtype, shape or number of
        rows, of which JAX would repeat a single one."""
        converted = _without_loss(array, spec.dtype)
        integer = name in self.task.offsets and array.dtype.kind in "iu"  # of any size
        misshapen = array.shape != (rows, *spec.shape[1:])
        if converted is array and array.dtype == np.int64 and not (integer or misshapen):
            place = tuple(np.argwhere(array.astype(spec.dtype) != array)[0])
            raise OptionError(
                f"{name!r} is {array[place]} in row {place[0]}, which {spec.dtype} cannot hold. "
                f"The model reads {_readable(name, spec)}."
            )
        if misshapen or (converted.dtype != spec.dtype and not integer):
            raise OptionError(
                f"{name!r} is {array.dtype} {list(array.shape)} in a batch of "
                f"{counted(rows, 'row')}; the model reads {_readable(name, spec)}. Only int64 and "
                "float64 are converted, if no integer changes."
            )
        return array if integer else converted

    @cached_property
    def _predict(self) -> Any:
        check_predict(self.task, None)
        return jax.jit(predict_step(self.task, None, self.axes))


def _without_loss(array: Any, dtype: np.dtype) -> Any:
    """An int64 or float64 array in this dtype, unless an integer changes or a float becomes one;
    any other as it is."""
    if array.dtype == np.int64 and (array.astype(dtype) == array).all():
        return array.astype(dtype)
    return array.astype(dtype) if array.dtype == np.float64 and dtype.kind == "f" else array


def _readable(name: str, spec: Any) -> str:
    if not isinstance(spec, jax.ShapeDtypeStruct):  # nested
        return name
    return f"{name}: {spec.dtype} [{', '.join(['rows', *map(str, spec.shape[1:])])}]"


def run_without_recipe(workdir: str) -> tuple[TrainerConfig, InputFn]:
    """The settings on which the model of a work directory's newest run depends, and a row like its
    own, of zeros.

    Raises CheckpointError for a run that has not recorded them."""
    try:
        start = read_history(workdir).starts[-1]
        batch = _zeros(dict(start.batch))
        names = ("precision", "ema_decay", "evaluate", "batch_axis", "keep_best", "keep_best_mode")
        settings = {name: start.settings[name] for name in names}
        config = TrainerConfig(workdir=workdir, global_batch_size=1, **settings)
    except (LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{join(workdir, SEGMENTS)} does not have the batches of the run. Copy it again."
        ) from error
    return config, lambda _: iter([batch])


def _zeros(spec: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """A row of these dtypes and shapes. ValueError if its arrays take more than MOST_BYTES."""
    is_leaf = lambda leaf: type(leaf) is list  # noqa: E731
    leaves = jax.tree.leaves(spec, is_leaf=is_leaf)
    num_bytes = sum(np.dtype(dtype).itemsize * abs(math.prod(shape)) for dtype, *shape in leaves)
    if num_bytes > MOST_BYTES:
        raise ValueError(f"a row has {num_bytes} bytes")
    return jax.tree.map(lambda leaf: np.zeros(leaf[1:], leaf[0]), spec, is_leaf=is_leaf)


def loaded(job: Job, input_fn: InputFn, step: WhichStep | None, recipe: Any) -> LoadedModel:
    """The model of a checkpoint. input_fn: has batches like those of the training; none is read."""
    with CheckpointManager(job.config) as checkpoints:
        number = checkpoints.require(step)
        describe = as_in_run(checkpoints.workdir, number)
        opened = job.open("predict", input_fn, describe=describe)
        saved = checkpoints.restore(number, job.abstract_state(opened))
    # Where rows are not first, sizes would be compared with their number.
    struct = {} if job.config.batch_axis else job.task.stored(opened.struct)
    inputs = {name: spec for name, spec in struct.items() if not name.startswith("_")}
    model = model_of(saved.state, job.config.evaluated_model)
    axes = job.placement.axes
    return LoadedModel(saved.step, job.traced_task, model, recipe, inputs, axes)
