"""The Trainer: trains and evaluates a Task from any input. The front door of the package."""

import logging
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import jax

from pipeline.shards.errors import OptionError
from trainer.checkpoint import Checkpoints
from trainer.config import TrainerConfig, check_positive_int
from trainer.evaluation import EvalResult, evaluate_epoch
from trainer.inputs import InputFn
from trainer.job import Job
from trainer.mesh import Placement
from trainer.summaries import EventWriter
from trainer.task import Task
from trainer.training import TrainResult, train_run

__all__ = ["Trainer"]

log = logging.getLogger("trainer")


class Trainer:
    """Trains and evaluates `task` on these jax devices (default: all).

    Keeps nothing between calls but what is in the work directory, so each call goes on from the newest checkpoint."""

    def __init__(self, task: Task, config: TrainerConfig, devices: Sequence[Any] | None = None) -> None:
        self.config = config
        self._job = Job(task, config, Placement.of(devices))
        for batch in (config.global_batch_size, config.resolved_eval_batch_size):
            self._job.placement.hosts(batch)  # a size that the devices do not divide fails here, not hours later

    def train(self, input_fn: InputFn, *, steps: int | None = None, max_steps: int | None = None) -> TrainResult:
        """Trains `steps` more steps, or to `max_steps` in all (default: the config's), and saves a checkpoint.

        A run that was stopped goes on with the state, the random keys and the input position of its newest
        checkpoint, so the result is that of a straight run. Raises NanError, naming the step, before a broken state
        is saved; InputError for an input that ends early or changes its shapes."""
        max_steps = _goal(steps, max_steps, self.config.max_steps)
        with Checkpoints(self.config.workdir, self.config.keep_max) as checkpoints:
            start = checkpoints.latest() or 0
            end = start + steps if steps is not None else max_steps
            if start >= end:
                log.info("nothing to train: the checkpoint of step %d has reached max_steps=%d", start, end)
                return TrainResult(start, start, None, {}, None, 0)
            opened = self._job.open("train", input_fn, start)
            return train_run(self._job, checkpoints, opened, start, end)

    def evaluate(self, input_fn: InputFn, *, step: int | None = None) -> EvalResult:
        """Means over one exact epoch, with the newest checkpoint or that of `step`.

        Raises EvaluationError unless every record that is due counted exactly once (an input that cannot say what is
        due gives proven=False); CheckpointError where there is no checkpoint."""
        with Checkpoints(self.config.workdir) as checkpoints:
            step = checkpoints.require(step)
            opened = self._job.open("eval", input_fn)
            saved = checkpoints.restore(step, self._job.abstract_state(opened))
        result = evaluate_epoch(self._job, opened, saved.state.variables, step)
        if jax.process_index() == 0:
            with closing(EventWriter(Path(self.config.workdir) / "eval")) as events:
                events.scalars(step, result.metrics)
        return result


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
