"""Predictions, record by record, in the order of the dataset, while the device computes the next
ones; and a trained model in memory, ready to be called: what trainer.trainer.load returns.

All hosts make the same number of dispatches: the sums that prove the epoch are over all hosts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
from jax import Array

from pipeline.errors import CheckpointError, HostError, OptionError
from pipeline.logs import logger
from pipeline.sizes import counted
from pipeline.spec import centered, with_offsets
from pipeline.storage.storage import join
from pipeline.user_code import ShortErrors
from trainer.checkpointing.kept_data import as_in_run
from trainer.checkpointing.manager import CheckpointManager, WhichStep
from trainer.config import TrainerConfig
from trainer.inputs import INDEX, MASK, InputFn
from trainer.loop.dispatching import Dispatches, DispatchResult, Steps
from trainer.loop.exact_epoch import ExactEpoch
from trainer.loop.feed import Feeder
from trainer.loop.job import Job, OpenedInput
from trainer.loop.session import Session, open_session, restore
from trainer.mesh.batch_spec import check_is_mapping
from trainer.reports.segments import read_history
from trainer.reports.workdir import SEGMENTS
from trainer.step.state import model_of
from trainer.step.steps import PROOF, ROWS, predict_step
from trainer.task import Task, Variables

MOST_BYTES = 2**26  # of one row: the file may state any number

log = logger("trainer")


def check_predict(task: Task, keys: Sequence[str] | None) -> None:
    """OptionError if the task cannot predict or keys is not a list of names. Unknown names are
    found later."""
    if task.predict_fn is None:
        raise OptionError(
            "the task has no predict_fn, so it cannot predict. Give Task(predict_fn=...) a "
            "function of (variables, batch), or nnx_task(predict=...) one of (model, batch)."
        )
    if isinstance(keys, str):
        raise OptionError(f"keys={keys!r} is one str. Give a list of names: keys=[{keys!r}].")


def check_export(job: Job, keys: Sequence[str] | None) -> None:
    """OptionError if the task cannot be exported: it must predict, from arrays with rows first."""
    check_predict(job.task, keys)
    job.check_rows_first(
        "an export", "Export with a Trainer without batch_axis, whose predict_fn takes them."
    )


def predict(
    job: Job,
    input_fn: InputFn,
    keys: Sequence[str] | None,
    step: WhichStep | None,
    checkpoint_path: str | None,
    gather: bool,
) -> Iterator[dict[str, Any]]:
    """See Trainer.predict."""
    with ShortErrors(), open_session(job) as session:
        # Closed before the records: a host that stops early must not wait here for others.
        with session.checkpoints:
            start = restore(
                session, "predict", input_fn, step, checkpoint_path, keys=keys, gather=gather
            )
            with session.supervisor.leaving():
                variables = model_of(start.state, job.config.evaluated_model)
                prediction = Prediction(session, start.opened, variables, keys, gather=gather)
        yield from prediction.records()


class Prediction:
    """One exact epoch of predictions by one model. Its arrays are donated: continue with
    `variables`.

    keys: which predictions; None: all. gather: every host gets the rows of all hosts, not only its
    own."""

    def __init__(
        self,
        session: Session,
        opened: OpenedInput,
        variables: Variables,
        keys: Sequence[str] | None = None,
        *,
        gather: bool,
    ) -> None:
        job = session.job
        self.variables = variables
        self._session = session
        self._opened = opened
        self._epoch = ExactEpoch(opened.source)
        self._returned = 0
        place = job.placement
        step = predict_step(job.traced_task, keys, place.axes)
        rows = jax.eval_shape(step, variables, job.spec(opened))[1][ROWS]
        num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(rows))
        num_bytes //= 1 if gather else place.replicas
        epoch = opened.source.info.steps_per_epoch
        marks = [epoch] if epoch else []
        k = job.steps_per_dispatch(opened, session.superbatch_bytes, marks, out_bytes=num_bytes)
        self._steps = Steps.of_epoch(epoch, k)

        def outs(stacked: bool) -> dict[str, Any]:
            rows = place.replicated if gather else place.rows(stacked)
            return {PROOF: place.replicated, ROWS: rows}

        self._program = job.program(step, variables, opened, k, outs)

    def records(self) -> Iterator[dict[str, Any]]:
        """The predictions of every record that counts, with its `_index` if the input has one.

        EvaluationError, before the last dispatch's predictions, unless the epoch was exact.
        HostError if this host stops before the end and another one does not."""
        session = self._session
        results = list[DispatchResult]()
        with session.dispatching(
            self._program,
            self.variables,
            self._opened,
            self._opened.source.info.start,
            self._steps,
            results.append,
            read=self._read,
        ) as (dispatches, feeder):
            try:
                for _ in dispatches:
                    self.variables = dispatches.carry
                    if dispatches.ended:
                        break
                    session.end_if_preempted()
                    with session.activity.doing(
                        "with the consumer of its predictions", math.inf, grace=math.inf
                    ):
                        yield from self._records(results)
            except GeneratorExit:
                self._stop_together(dispatches, feeder)
                raise
            session.exchange.tell("dispatches", dispatches.launched)  # for hosts that stop early
            epoch = self._epoch
            returned = f"{self._returned} predictions were returned"
            epoch.check("prediction", f"{returned} before this was known: do not use them")
            if epoch.masked:
                left_out = counted(epoch.masked, "bad record")
                log.warning("prediction: left out %s, predicted %d", left_out, epoch.records)
        yield from self._records(results)

    def _read(self, returned: list[Any], stacked: bool) -> dict[str, Any]:
        """The rows of a dispatch on this host, whose proof is added to that of the epoch."""
        steps = []
        for step in returned:
            self._epoch.add(jax.device_get(step[PROOF]))
            steps.append(jax.tree.map(partial(_on_this_host, stacked=stacked), step[ROWS]))
        rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *steps)
        return with_offsets(rows, self._session.job.task.added)

    def _records(self, results: list[DispatchResult]) -> Iterator[dict[str, Any]]:
        """Those of the results, which it takes out."""
        while results:
            rows = results.pop(0).scalars
            counting = np.flatnonzero(rows.pop(MASK) > 0)
            leaves, tree = jax.tree.flatten(rows)
            for row in counting.tolist():
                if self._session.supervisor.alone:  # the consumer may be slow
                    self._session.supervisor.check_asked()
                self._returned += 1
                yield tree.unflatten([leaf[row] for leaf in leaves])

    def _stop_together(self, dispatches: Dispatches, feeder: Feeder) -> None:
        """Makes the dispatches that other hosts have already made: they would wait for them
        forever."""
        exchange = self._session.exchange
        seconds = self._session.supervisor.host_seconds / 2
        launched_by_host = exchange.gather("dispatches", dispatches.launched, seconds)
        if len(launched_by_host) < exchange.count:
            raise HostError(
                f"it stopped iterating over its predictions after {dispatches.launched} "
                f"dispatches, but other hosts continued for {seconds:g} s (half of "
                "host_timeout_seconds). Iterate in the same way on every host; if an error stopped "
                "this one, see its log."
            )
        for _ in range(max(launched_by_host.values()) - dispatches.launched):
            dispatches.launch(next(feeder))
        dispatches.settle()


def _on_this_host(array: Array, stacked: bool) -> np.ndarray:
    """The rows on this host's devices, each once and in order: [rows, ...]; those of k steps are
    concatenated."""
    axis = 1 if stacked else 0
    # Devices along the model axis hold the same rows.
    parts = {shard.index[axis].start or 0: shard.data for shard in array.addressable_shards}
    rows = np.concatenate(jax.device_get([parts[start] for start in sorted(parts)]), axis)
    return rows.reshape(-1, *rows.shape[2:]) if stacked else rows


@dataclass(frozen=True)
class LoadedModel:
    """A trained model on one device.

    step: of its checkpoint.
    task: what the recipe makes.
    variables: its arrays, Array by name: params, and extra, such as running statistics; the
        averaged parameters where evaluations use them.
    recipe: of the training; its `class_names` has the names of predicted classes.
    inputs: what a batch of the recipe's evaluation has, by name, with shape ([rows, ...]) and
        dtype: int64 where the task has an offset, which predict subtracts."""

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
            raise OptionError(
                "this task has no module: nnx_task did not make it. Use predict, or the variables."
            )
        return self.task.module(self.variables)

    def predict(self, batch: Mapping[str, Any]) -> dict[str, Array]:
        """The task's predictions, each [b, ...], by name: what Trainer.predict yields for such
        records.

        batch: the arrays that the task reads, [b, ...] each, such as {"image": uint8 [b, height,
        width, channels]}. Without "_mask", all rows count. Compiled for each new size of a batch.
        OptionError for no rows, and for an array of another shape or dtype than `inputs` has, which
        a model might take for something else."""
        check_is_mapping(batch)
        rows = next((leaf.shape[0] for leaf in jax.tree.leaves(dict(batch))), 0)
        if not rows:
            raise OptionError("the batch has no rows.")
        for name in self.inputs.keys() & batch.keys():
            array = batch[name]
            spec = self.inputs[name]
            narrow = name in self.task.offsets and array.dtype.kind in "iu"
            if isinstance(spec, jax.ShapeDtypeStruct) and (
                (array.dtype != spec.dtype and not narrow) or array.shape[1:] != spec.shape[1:]
            ):
                raise OptionError(
                    f"{name!r} is {array.dtype} {list(array.shape)}; the recipe reads {spec.dtype} "
                    f"[rows, {', '.join(map(str, spec.shape[1:]))}]."
                )
        batch = {MASK: np.ones(rows, np.float32), **batch}
        for name in self.task.offsets.keys() & batch.keys():
            batch[name] = centered(batch[name], self.task.offsets[name])
        predicted = with_offsets(self._predict(self.variables, batch)[1][ROWS], self.task.added)
        return {name: rows for name, rows in predicted.items() if name not in (MASK, INDEX)}

    @cached_property
    def _predict(self) -> Any:
        check_predict(self.task, None)
        return jax.jit(predict_step(self.task, None))


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
    return LoadedModel(saved.step, job.traced_task, model, recipe, inputs)
