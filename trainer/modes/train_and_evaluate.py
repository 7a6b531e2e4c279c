"""Evaluation in the middle of training, of the state in memory; and the names of evaluations."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from pipeline.errors import OptionError
from trainer.inputs import InputFn
from trainer.modes.evaluate import FinishedEvaluation
from trainer.modes.evaluation import Evaluation
from trainer.modes.session import Session
from trainer.results import EvalResult
from trainer.state import TrainState


class PeriodicEvaluations:
    """Exact epochs of these inputs every `every_steps` of training, and at its end. results: all so far."""

    def __init__(self, session: Session, inputs: Mapping[str | None, InputFn], every_steps: int | None) -> None:
        self.opened = {name: session.open("eval", input_fn) for name, input_fn in inputs.items()}
        self.every_steps, self.results = every_steps, list[EvalResult]()
        self._session, self._evaluations = session, dict[str | None, Evaluation]()

    def __call__(self, step: int, state: TrainState, stop: Callable[[str], None], /, *, final: bool) -> TrainState:
        """Returns the same state in other arrays: its own are donated. stop(why): ends the training after this. final:
        whether the training has ended."""
        first = next(iter(self.opened))
        for name, opened in self.opened.items():
            begin = self._evaluations[name].again if name in self._evaluations else Evaluation
            evaluation = self._evaluations[name] = begin(self._session, opened, state, step)
            result = replace(evaluation.epoch(), name=name)
            finished = FinishedEvaluation(self._session, evaluation.state, result, final=final)
            self.results.append(result)
            self._session.ownership.fence()
            finished.report(name, stop)
            if name == first:  # after the callbacks: a run that is killed in one of them makes up for this evaluation
                finished.record()
            state = finished.state
        return state

    def make_up(self, start: int, end: int | None) -> None:
        """Evaluates the checkpoint that a run resumes from, if that was due and has not happened."""
        ends, checkpoints = end is not None and start >= end, self._session.checkpoints
        due = ends or (self.every_steps is not None and start % self.every_steps == 0)
        if due and not checkpoints.was_evaluated(start):
            like = self._session.job.abstract_state(next(iter(self.opened.values())))
            self(start, checkpoints.restore(start, like).state, lambda _: None, final=ends)


def named_inputs(inputs: InputFn | Mapping[str, InputFn], name: str | None) -> Mapping[str | None, InputFn]:
    """The inputs of an evaluation by name: one, or several. OptionError for a name that cannot be one."""
    if not isinstance(inputs, Mapping):
        check_name(name)
        return {name: inputs}
    if name is not None or not inputs:
        raise OptionError(f"name={name!r} with {len(inputs)} inputs: the keys of a mapping of inputs are the names.")
    for key in inputs:
        check_name(key)
    return {key: input_fn for key, input_fn in inputs.items()}  # noqa: C416 (a copy with keys of a wider type)


def check_name(name: str | None) -> None:
    """Raises OptionError unless this can name an evaluation: it becomes part of a directory's name."""
    if name is not None and not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name):
        raise OptionError(
            f"name={name!r} cannot name a directory. Allowed: up to 100 letters, digits, '.', '_' and '-'; the "
            "events go to <workdir>/eval_<name>."
        )
