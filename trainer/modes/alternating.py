"""Evaluation in the middle of training, of the state in memory; and where evaluation results are reported."""

import re
from collections.abc import Callable

from pipeline.errors import OptionError
from trainer.callbacks import EvaluationEnd
from trainer.events.reports import Reports
from trainer.inputs import InputFn
from trainer.modes.evaluation import Evaluation
from trainer.modes.session import Session
from trainer.results import EvalResult
from trainer.setup import Setup
from trainer.state import TrainState

__all__ = ["Alternating", "check_name", "tell"]


class Alternating:
    """An exact epoch of this input every `every_steps` of training, and at its end. results: all so far."""

    def __init__(
        self, session: Session, setup: Setup, input_fn: InputFn, name: str | None, every_steps: int | None
    ) -> None:
        self.opened, self.every_steps = setup.open("eval", input_fn), every_steps
        self.results: list[EvalResult] = []
        self._session, self._setup, self._input_fn, self._name = session, setup, input_fn, name
        self._evaluation: Evaluation | None = None

    def __call__(self, step: int, state: TrainState, stop: Callable[[str], None], /) -> TrainState:
        """Returns the same state in other arrays: its own are donated. stop(why): ends the training after this."""
        self._evaluation = Evaluation.of(
            self._evaluation, self._session, self._setup, self.opened, state, step, self._input_fn
        )
        result = self._evaluation.epoch()
        self.results.append(result)
        self._session.ownership.fence()
        self._session.checkpoints.record(step, result.metrics)
        tell(self._setup, self._name, result, stop)
        return self._evaluation.state

    def make_up(self, start: int, end: int) -> None:
        """Evaluates the checkpoint that a run resumes from, if that was due and has not happened."""
        due = start >= end or (self.every_steps is not None and start % self.every_steps == 0)
        if due and not self._session.checkpoints.was_evaluated(start):
            like = self._setup.abstract_state(self.opened)
            self(start, self._session.checkpoints.restore(start, like).state, lambda _: None)


def check_name(name: str | None) -> None:
    """Raises OptionError unless this can name an evaluation: it becomes part of a directory's name."""
    if name is not None and not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name):
        raise OptionError(
            f"name={name!r} cannot name a directory. Allowed: up to 100 letters, digits, '.', '_' and '-'; the "
            "events go to <workdir>/eval_<name>."
        )


def tell(setup: Setup, name: str | None, result: EvalResult, stop: Callable[[str], None] = lambda _: None) -> None:
    """Writes a result to <workdir>/eval_<name>, or to eval, and calls the callbacks."""
    with Reports(setup.config, "eval" if name is None else f"eval_{name}") as reports:
        reports.scalars(result.step, result.metrics)
        for callback in setup.callbacks:
            callback.on_evaluation_end(EvaluationEnd(name, result, reports, stop))
