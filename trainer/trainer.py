"""The Trainer: trains and evaluates a Task from any input. The front door of the package."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import jax

from pipeline.shards.errors import OptionError
from pipeline.shards.storage import join
from trainer.calls.evaluation import EvalResult, Evaluation, compare_paddings
from trainer.calls.preflight import agree, facts_of
from trainer.calls.training import TrainResult, train_run
from trainer.checkpointing.checkpoint import Checkpoints
from trainer.cluster.store import open_store
from trainer.cluster.watchdog import Watchdog
from trainer.config import TrainerConfig, check_positive_int
from trainer.events.writer import EventWriter
from trainer.inputs import InputFn
from trainer.job import Job, Opened
from trainer.mesh import Placement
from trainer.task import Task

__all__ = ["Trainer"]

log = logging.getLogger("trainer")


class Trainer:
    """Trains and evaluates `task` on these jax devices (default: all).

    Keeps nothing between calls but what is in the work directory, so each call goes on from the newest checkpoint."""

    def __init__(self, task: Task, config: TrainerConfig, devices: Sequence[Any] | None = None) -> None:
        self.config = config
        self._job = Job(task, config, Placement.of(devices, config.model_parallelism))
        for batch in (config.global_batch_size, config.resolved_eval_batch_size):
            self._job.placement.hosts(batch)  # a size that the devices do not divide fails here, not hours later

    def train(self, input_fn: InputFn, *, steps: int | None = None, max_steps: int | None = None) -> TrainResult:
        """Trains `steps` more steps, or to `max_steps` in all (default: the config's), and saves a checkpoint.

        A run that was stopped goes on with the state, the random keys and the input position of its newest
        checkpoint, so the result is that of a straight run. Raises NanError, naming the step, before a broken state
        is saved; InputError for an input that ends early or changes its shapes."""
        max_steps = _goal(steps, max_steps, self.config.max_steps)
        with self._call() as (watchdog, checkpoints):
            start = checkpoints.resume_step()
            end = start + steps if steps is not None else max_steps
            if start >= end:
                self._agree(watchdog, None, start, end)
                log.info("nothing to train: the checkpoint of step %d has reached max_steps=%d", start, end)
                return TrainResult(start, start, None, {}, None, 0)
            opened = self._job.open("train", input_fn, start)
            self._agree(watchdog, opened, start, end)
            return train_run(self._job, checkpoints, opened, start, end)

    def evaluate(self, input_fn: InputFn, *, step: int | None = None, check_padding: bool = False) -> EvalResult:
        """Means over one exact epoch, with the newest checkpoint or that of `step`.

        check_padding: run the epoch twice more, with NaN and with the largest values in the rows that fill the last
        batch, where the task otherwise sees zeros; EvaluationError unless all metrics have the same bits.
        Raises EvaluationError unless every record that is due counted exactly once (an input that cannot say what is
        due gives proven=False); CheckpointError where there is no checkpoint."""
        with self._call() as (watchdog, checkpoints):
            step = checkpoints.require(step)
            opened = self._job.open("eval", input_fn)
            self._agree(watchdog, opened, step, step, check_padding=check_padding)
            saved = checkpoints.restore(step, self._job.abstract_state(opened))
            evaluation = Evaluation(self._job, opened, saved.state.variables, step)
            result = evaluation.epoch()
            if check_padding:
                # A plain iterable is read up: input_fn makes the next.
                again = (lambda: None) if opened.resumable else lambda: self._job.open("eval", input_fn).source
                compare_paddings(evaluation, result, again)
        if jax.process_index() == 0:
            with closing(EventWriter(join(self.config.workdir, "eval"))) as events:
                events.scalars(step, result.metrics)
        return result

    @contextmanager
    def _call(self) -> Iterator[tuple[Watchdog, Checkpoints]]:
        checkpoints = Checkpoints(self.config)
        # A failure is told before anything waits for the other hosts, as the end of a checkpoint does.
        with (
            Watchdog(open_store(), self.config.host_timeout_seconds, checkpoints.saving) as watchdog,
            checkpoints,
            watchdog.reporting(),
        ):
            yield watchdog, checkpoints

    def _agree(self, watchdog: Watchdog, opened: Opened | None, start: int, end: int, **others: Any) -> None:
        def facts() -> dict[str, Any]:
            return facts_of(self._job, opened, start, end) | others

        agree(watchdog, facts, self.config.workdir, self.config.stall_seconds)


def _goal(steps: int | None, max_steps: int | None, default: int | None) -> int:
    if steps is not None and max_steps is not None:
        raise OptionError(
            f"steps={steps} and max_steps={max_steps} are both given. Give one: steps counts from the newest "
            "checkpoint, max_steps from the very first run."
        )
    for name, value in (("steps", steps), ("max_steps", max_steps)):
        if value is not None:
            check_positive_int(name, value)
    if steps is None and max_steps is None and default is None:
        raise OptionError("no end is given. Give steps or max_steps to train, or max_steps in the TrainerConfig.")
    return max_steps or default or 0
