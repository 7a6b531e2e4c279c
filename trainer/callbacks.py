"""Callbacks at the end of a dispatch, a save and an evaluation: Trainer(callbacks=[...])."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from trainer.events.progress import Speed
from trainer.events.reports import Reports
from trainer.results import EvalResult, ExportResult
from trainer.state import TrainState

__all__ = ["Callback", "CheckpointComplete", "CheckpointEnd", "EvaluationEnd", "Export", "LoopEnd"]

Stop = Callable[[str], None]


Export = Callable[..., ExportResult | None]
"""export(path, input_fn, *, better=None, metric="loss", ...) exports the model that was just evaluated, as
Trainer.export does, with its other options. Every host has to call it.

better: only if this metric of the evaluation is smaller ("min") or larger ("max") than in the newest export in `path`,
or if that has no such metric; otherwise it returns None."""


@dataclass(frozen=True)
class LoopEnd:
    """The host has read the results of a dispatch. The next one is already running, so the state is not available.

    step: number of finished steps. scalars: name -> float32 [n], the values of the last n steps. reports, stop: see
    Callback. speed: since the last log line, whenever there is a new one (TrainerConfig.log_every), on host 0."""

    step: int
    scalars: Mapping[str, np.ndarray]
    reports: Reports
    stop: Stop
    speed: Speed | None = None


@dataclass(frozen=True)
class CheckpointEnd:
    """A checkpoint is being written. The state's arrays are on the devices; the next step consumes them.

    step: number of finished steps. reports, stop: see Callback."""

    step: int
    state: TrainState
    reports: Reports
    stop: Stop


@dataclass(frozen=True)
class CheckpointComplete:
    """A checkpoint is complete: any process can read it.

    step: number of finished steps. path: <workdir>/checkpoints/<step>. reports: see Callback; after an error that ended
    the run, it no longer writes."""

    step: int
    path: str
    reports: Reports


@dataclass(frozen=True)
class EvaluationEnd:
    """An evaluation has finished, with this result.

    name: the one given to the call. final: whether no training continues after it, as far as is known: an input may
    turn out to have ended just there. export: see Export. reports, stop: see Callback."""

    name: str | None
    result: EvalResult
    final: bool
    export: Export
    reports: Reports
    stop: Stop


class Callback:
    """Does nothing by default; override what you need. Callbacks run in the main thread of every host, in list order;
    on_checkpoint_complete only runs on host 0.

    `reports` writes scalars, images, histograms and texts; only on host 0, so a callback need not check. `stop(why)`
    ends the training within three dispatches and saves; only the request of host 0 counts. An exception in a callback
    ends the run on all hosts."""

    def on_loop_end(self, end: LoopEnd) -> None:
        """After every dispatch of training."""

    def on_checkpoint(self, end: CheckpointEnd) -> None:
        """After training has started to write a checkpoint."""

    def on_checkpoint_complete(self, end: CheckpointComplete) -> None:
        """Once a checkpoint is complete, on host 0: before the next dispatch, save or export, or when the run ends.

        Once per checkpoint, in order; never for one that failed. Training does not wait for it, except at its end and
        before it exports the model of that checkpoint. An error or a preemption does not prevent it; a kill does."""

    def on_evaluation_end(self, end: EvaluationEnd) -> None:
        """After each evaluation by evaluate, train_and_evaluate or evaluate_continuously."""
