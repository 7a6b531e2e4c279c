"""What a user can have done at the end of a dispatch, of a save and of an evaluation: Trainer(callbacks=[...])."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from trainer.events.reports import Reports
from trainer.results import EvalResult
from trainer.state import TrainState

__all__ = ["Callback", "CheckpointEnd", "EvaluationEnd", "LoopEnd"]

Stop = Callable[[str], None]


@dataclass(frozen=True)
class LoopEnd:
    """The host has looked at a dispatch; the next one runs already, so there is no state to be seen.

    step: steps that were made. scalars: name -> float32 [n], one for each of the last n of them."""

    step: int
    scalars: Mapping[str, np.ndarray]
    reports: Reports
    stop: Stop


@dataclass(frozen=True)
class CheckpointEnd:
    """A checkpoint is being written. The state's arrays are on the devices, and the next step uses them up."""

    step: int
    state: TrainState
    reports: Reports
    stop: Stop


@dataclass(frozen=True)
class EvaluationEnd:
    """An evaluation is done. name: as it was given to the call."""

    name: str | None
    result: EvalResult
    reports: Reports
    stop: Stop


class Callback:
    """Does nothing at any of these; override what you need. Called in the main thread of every host, in their order.

    `reports` writes scalars, images, histograms and texts (on host 0 alone, so that nobody has to ask). `stop(why)`
    ends the training within three dispatches, saved; the word of host 0 counts. What a callback raises ends the run
    on all hosts."""

    def on_loop_end(self, end: LoopEnd) -> None:
        """After every look of training."""

    def on_checkpoint(self, end: CheckpointEnd) -> None:
        """Whenever training has begun to write a checkpoint."""

    def on_evaluation_end(self, end: EvaluationEnd) -> None:
        """After each evaluation: evaluate's, train_and_evaluate's and evaluate_continuously's."""
