"""Evaluations in the middle of training, of the state where it is; and what follows from an evaluation's result."""

import re
from collections.abc import Callable
from typing import Any

from pipeline.shards.errors import OptionError
from trainer.callbacks import EvaluationEnd
from trainer.calls.call import Call
from trainer.calls.evaluation import Evaluation
from trainer.events.reports import Reports
from trainer.inputs import InputFn
from trainer.job import Job, Opened
from trainer.results import EvalResult
from trainer.state import TrainState
from trainer.task import Variables

__all__ = ["Alternating", "OneProgram", "check_name", "tell"]


class OneProgram:
    """Evaluates one model after another by the same program, as long as the input has the same shapes.

    variables: the model of the last one, in the arrays that are there after it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._shapes: Any = None
        self._evaluation: Evaluation | None = None
        self.variables = Variables(())

    def evaluate(self, call: Call, opened: Opened, variables: Variables, step: int) -> EvalResult:
        """One exact epoch. It uses up the arrays of `variables`."""
        shapes = opened.struct, opened.source.steps_per_epoch
        if self._evaluation is None or shapes != self._shapes:
            self._shapes, self._evaluation = shapes, Evaluation(call, self._job, opened, variables, step)
        else:
            self._evaluation.renew(call, variables, step)
        result = self._evaluation.epoch(source=opened.source)
        self.variables = self._evaluation.variables
        return result


class Alternating:
    """The Evaluating of a training: an exact epoch of this input every `every_steps`, and at the end.

    opened: the input. results: of all so far."""

    def __init__(self, call: Call, job: Job, input_fn: InputFn, name: str | None, every_steps: int | None) -> None:
        self.opened, self.every_steps = job.open("eval", input_fn), every_steps
        self.results: list[EvalResult] = []
        self._call, self._job, self._input_fn, self._name = call, job, input_fn, name
        self._program = OneProgram(job)

    def __call__(self, step: int, state: TrainState, stop: Callable[[str], None], /) -> TrainState:
        """The same state; its arrays have been used."""
        if self.results and not self.opened.resumable:  # a plain iterable is read up
            self.opened = self._job.open("eval", self._input_fn)
        result = self._program.evaluate(self._call, self.opened, state.variables, step)
        self.results.append(result)
        self._call.ownership.fence()
        self._call.checkpoints.record(step, result.metrics)
        tell(self._job, self._name, result, stop)
        return state._replace(variables=self._program.variables)

    def make_up(self, start: int, end: int) -> None:
        """Evaluates the checkpoint that a run goes on from, if that was due and nobody did."""
        due = start >= end or (self.every_steps is not None and start % self.every_steps == 0)
        if due and not self._call.checkpoints.was_evaluated(start):
            like = self._job.abstract_state(self.opened)
            self(start, self._call.checkpoints.restore(start, like).state, _go_on)


def _go_on(why: str) -> None:
    """There is no training to be stopped."""
    del why


def check_name(name: str | None) -> None:
    """Raises OptionError unless this may name an evaluation: it becomes a part of a directory's name."""
    if name is not None and not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name):
        raise OptionError(
            f"name={name!r} cannot name a directory. Allowed are up to 100 letters, digits, '.', '_' and '-'; the "
            "events go to <workdir>/eval_<name>."
        )


def tell(job: Job, name: str | None, result: EvalResult, stop: Callable[[str], None] = _go_on) -> None:
    """Writes a result to the reports of <workdir>/eval_<name>, or eval, and calls the callbacks."""
    with Reports(job.config, "eval" if name is None else f"eval_{name}") as reports:
        reports.scalars(result.step, result.metrics)
        for callback in job.callbacks:
            callback.on_evaluation_end(EvaluationEnd(name, result, reports, stop))
