"""A task with its settings, devices and callbacks, which train, evaluate and predict share. Opens
their inputs."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax

from pipeline.description import Describe, Description, unproven_classes
from pipeline.errors import InfeedError, InputError, OptionError
from pipeline.hosts import Hosts
from pipeline.logs import logger
from pipeline.sizes import counted, format_bytes
from trainer.callbacks import Callback
from trainer.config import TrainerConfig
from trainer.inputs import (
    MASK,
    Input,
    InputContext,
    InputFn,
    IterableInput,
    as_function,
    as_input,
    described_as,
    first_batches,
)
from trainer.loop.compiled import Compiled
from trainer.mesh.batch_spec import batch_struct, named_leaves
from trainer.mesh.placement import Placement
from trainer.reports.segments import Invocation
from trainer.step.state import abstract_state, init_state
from trainer.task import Step, Task, TrainState, better_of, check_called, kind_of

log = logger("trainer")

Mode = Literal["train", "eval", "predict"]


@dataclass(frozen=True)
class OpenedInput:
    """An input, the spec of its host batches as jax sees it, the size of a global batch, and what
    made the input.

    description: of the model to which it is given, whose numbers it has. classes: see
    EvalResult."""

    mode: Mode
    source: Input
    struct: dict[str, Any]
    global_batch: int
    input_fn: InputFn
    description: Description | None
    classes: str

    @property
    def resumable(self) -> bool:
        """Whether the input has positions; a plain iterable has none."""
        return not isinstance(self.source, IterableInput)


@dataclass(frozen=True)
class Job:
    """A task, how to run it, and where. command: what started the process, for the history of the
    work directory."""

    task: Task
    config: TrainerConfig
    placement: Placement
    callbacks: Sequence[Callback] = ()
    command: Invocation | None = None

    @property
    def target(self) -> str | None:
        """The feature that the model predicts, if the task states it."""
        return self.task.target and self.task.target.key

    @property
    def writes(self) -> bool:
        """Whether this process writes to the work directory: host 0, unless in a fast_dev_run."""
        return jax.process_index() == 0 and not self.config.fast_dev_run

    @property
    def traced_task(self) -> Task:
        """The task, for programs on this mesh."""
        return self.task.traced_in(self.placement.in_context)

    def __post_init__(self) -> None:
        """Raises OptionError for what is not a Task, for an optimizer that is not optax's, for
        another precision than the task's, for a batch_axis with an augmentation, and for a
        keep_best that no evaluation can have: the first one may be hours away. The config, as it
        is saved, gets the keep_best_mode of its metric."""
        _check_task(self.task)
        if self.task.augment is not None:
            self.check_rows_first(
                "Task.augment", "Augment in loss_fn, which has the step's random key."
            )
        for callback in self.callbacks:
            callback.check(self.task.metrics)
        if (metric := self.config.keep_best) is not None:
            better = better_of(self.task.metrics, metric, self.config.keep_best_mode)
            object.__setattr__(self, "config", replace(self.config, keep_best_mode=better))
        if self.task.precision != self.config.precision:
            raise OptionError(
                f"precision={self.config.precision!r}, but the task computes in "
                f"{self.task.precision!r}. Give it the config's: nnx_task(..., "
                "precision=config.precision)."
            )

    def check_rows_first(self, what: str, remedy: str) -> None:
        """Raises OptionError if some arrays do not have rows first, as `what` needs them."""
        if any(self.config.batch_axis.values()):
            raise OptionError(
                f"batch_axis={self.config.batch_axis}, but {what} needs arrays with rows first. "
                f"{remedy}"
            )

    def check_microbatches(self) -> None:
        """Raises OptionError unless each device can split its rows of a training batch into
        microbatches."""
        rows = self.config.global_batch_size // self.placement.replicas
        count = self.config.accumulate
        if rows % count:
            fitting = ", ".join(str(n) for n in range(1, rows + 1) if rows % n == 0)
            raise OptionError(
                f"accumulate={count} does not divide the {rows} rows of each device "
                f"(global_batch_size={self.config.global_batch_size}). Allowed: {fitting}."
            )

    def open(
        self,
        mode: Mode,
        input_fn: InputFn,
        start_step: int = 0,
        describe: Describe = lambda data: data,
    ) -> OpenedInput:
        """Calls input_fn and checks its spec against the batch size, and its description against
        the model's.

        describe: what describes the model. Default: the data."""
        config = self.config
        sizes = {
            "eval": config.resolved_eval_batch_size,
            "predict": config.resolved_predict_batch_size,
        }
        batch = sizes.get(mode, config.global_batch_size)
        hosts = self.placement.hosts(batch)
        cut = config.overfit_batches if mode == "train" else config.fast_dev_run and 1
        context = self.context(mode, batch, hosts, 0 if cut else start_step)
        dataset = as_function(input_fn)(context)
        source = as_input(dataset, context)
        target = {aim.key: aim.classes or 0} if (aim := self.task.target) else {}
        own = source.info.description
        description = describe(own)
        source = described_as(
            source,
            description,
            target,
            strict=mode != "predict",
            same_classes=config.same_classes,
        )
        if cut:
            source = first_batches(source, cut, start_step if mode == "train" else None)
        struct = self._checked_struct(source, context)
        classes = unproven_classes(description, own, self.target, any(target.values()))
        opened = OpenedInput(mode, source, struct, batch, input_fn, description, classes)
        known = source.info.num_records is not None or source.info.host_records is not None
        if mode == "eval" and not known and not config.fast_dev_run:
            log.warning(
                "the input does not state how many records it has, so one that it left out would "
                "not be missed. For a tf.data program, use pipeline.tf_data.evaluation_batches, "
                "and assert_cardinality if it reads files; for one of Grain, num_records of "
                "pipeline.grain.evaluation_batches"
            )
        is_tf = hasattr(dataset, "as_numpy_iterator") and not hasattr(dataset, "infeed_input")
        if hosts.count > 1 and is_tf and not cut:
            log.warning(
                "this tf.data.Dataset is not as pipeline.tf_data made it, so hosts cannot compare "
                "what they deliver. Transform it before training_batches or evaluation_batches, "
                "not after"
            )
        if not opened.resumable and start_step and not callable(input_fn):
            raise InputError(
                f"the run resumes after step {start_step}, where this dataset cannot start: it has "
                "no positions. Make it with pipeline.tf_data, or give an input_fn that starts at "
                "InputContext.start_step."
            )
        return opened

    def context(self, mode: Mode, batch: int, hosts: Hosts, start_step: int = 0) -> InputContext:
        """The context of an input_fn for batches of this size, whose rows these hosts deliver."""
        config = self.config
        on_error = config.on_error
        if mode != "train" and on_error == "skip":  # which no exact epoch can
            on_error = "mask"
        return InputContext(
            mode,
            global_batch_size=batch,
            per_host_batch_size=sum(len(rows) for rows in hosts.host_rows(batch)),
            per_device_batch_size=batch // hosts.devices,
            hosts=hosts,
            seed=config.seed,
            start_step=start_step,
            stall_seconds=config.stall_seconds,
            workers=config.input_workers,
            reading={
                "cache": config.cache,
                "read_ahead_bytes": config.read_ahead_bytes,
                "on_error": on_error,
                "offsets": self.task.offsets,
            },
        )

    def _checked_struct(self, source: Input, context: InputContext) -> dict[str, Any]:
        info = source.info
        if info.global_batch not in (None, context.global_batch_size):
            raise InputError(
                f"the input has global_batch={info.global_batch}, the trainer "
                f"{context.global_batch_size} ({context.mode}). Leave out global_batch and hosts: "
                "the trainer gives both to a train_dataset or eval_dataset."
            )
        if context.mode != "train" and info.endless:
            raise InputError(
                "the input never ends, so no epoch is exact. Use eval_dataset, or "
                "evaluation_batches."
            )
        if MASK not in info.spec:
            raise InputError(
                f"the input's spec has no {MASK}. An Input must deliver {MASK} float32 [b] with "
                "every batch."
            )
        struct = batch_struct(info.spec)
        if context.mode == "train":  # the batches of an evaluation may have fewer arrays
            self.placement.axes.check_names(struct)
        self.placement.axes.check_rows(struct, context.per_host_batch_size)
        for name in self.task.offsets.keys() & struct.keys():
            if struct[name].dtype.kind in "iu":
                raise InputError(
                    f"the batch's {name} is {struct[name].dtype}; the task takes float32 with its "
                    "offset subtracted. Subtract task.offsets in 64 bits, as train_dataset does "
                    "with offsets=task.offsets."
                )
        return struct

    def labels_without_target(self, opened: OpenedInput) -> list[str]:
        """The arrays with a class number per record, if the task has no Target."""
        if self.task.target:
            return []
        described = opened.description
        return [
            name
            for name, leaf in named_leaves(opened.struct).items()
            if name in opened.struct and leaf.dtype.kind == "i" and leaf.ndim == 1
            if name.endswith("label") or (described and described.names(name))
        ]

    def abstract_state(self, opened: OpenedInput) -> TrainState:
        """Shapes and shardings of the task's state for this input."""
        with self.naming_batch(opened):
            spec = self.spec(opened)
            return abstract_state(self.traced_task, spec, self.placement, self.config.averages)

    def fresh_state(self, opened: OpenedInput) -> TrainState:
        """The initial state of a run."""
        with self.naming_batch(opened):
            spec = self.spec(opened)
            config = self.config
            return init_state(self.traced_task, config.seed, spec, self.placement, config.averages)

    def spec(self, opened: OpenedInput) -> Any:
        """The global batch as a jax.ShapeDtypeStruct for each array."""
        return self.placement.global_struct(opened.struct, opened.global_batch)

    @contextmanager
    def naming_batch(self, opened: OpenedInput) -> Iterator[None]:
        """Adds what the batch contains to an error in the task, which is traced inside."""
        try:
            yield
        except InfeedError:
            raise
        except Exception as error:
            arrays = ", ".join(
                f"{name} {leaf.dtype} {list(leaf.shape)}"
                for name, leaf in named_leaves(self.spec(opened)).items()
                if not name.startswith("_")
            )
            error.add_note(f"the batch: {arrays}")
            raise

    def steps_per_dispatch(
        self,
        opened: OpenedInput,
        superbatch_bytes: int,
        marks: Iterable[int],
        steps: int | None = None,
        out_bytes: int = 0,
    ) -> int:
        """`steps` (default: the config's), reduced so that dispatches end at the marks and no
        super-batch takes more than superbatch_bytes of a device.

        out_bytes: bytes of a step's outputs on a device."""
        host_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(opened.struct))
        row_bytes = host_bytes // opened.struct[MASK].shape[0]
        step_bytes = row_bytes * (opened.global_batch // self.placement.replicas) + out_bytes
        steps = steps or self.config.steps_per_loop
        k = max(1, min(steps, superbatch_bytes // step_bytes))
        if k < steps:
            log.info(
                "%s per dispatch instead of %d: one takes %s of a device, and superbatch_bytes of "
                "the TrainerConfig is %s",
                counted(k, "step"),
                steps,
                format_bytes(step_bytes),
                format_bytes(superbatch_bytes),
            )
        return min([k, *marks])

    def program(
        self,
        step: Step,
        constants: tuple[Any, ...],
        carry: Any,
        opened: OpenedInput,
        gather: bool = True,
    ) -> Compiled:
        """`step` for this input; `Session.feeding` compiles it. See Compiled."""
        with self.naming_batch(opened):
            return Compiled(
                step,
                constants,
                carry,
                opened.struct,
                self.placement,
                opened.global_batch,
                self.config.loop_mode,
                gather,
            )


def _check_task(task: object) -> None:
    if not isinstance(task, Task):
        raise OptionError(
            f"the task is {kind_of(task)}. It must be a Task. Does task() of the recipe return it?"
        )
    optimizer: Any = task.optimizer
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        hint = ""
        if callable(optimizer):
            hint = " A schedule is an optimizer's learning rate: optax.adam(schedule)."
        raise OptionError(
            f"the task's optimizer is {kind_of(optimizer)}. Give one of optax: "
            f"optax.adam(1e-3).{hint}"
        )
    check_called("the task's init", task.init, "rng, batch_spec")
    check_called("the task's loss_fn", task.loss_fn, "variables, batch, rng, train")
