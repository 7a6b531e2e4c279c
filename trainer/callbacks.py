"""Callbacks at the end of a dispatch, a save and an evaluation: Trainer(callbacks=[...]).

docs/callbacks.md shows how to write one. WandbCallback needs the extra `wandb`."""

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from pipeline.checks import check_choice, check_number
from pipeline.errors import OptionError
from pipeline.packages import how_to_install
from pipeline.sizes import counted
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import join
from trainer.inputs import InputFn
from trainer.reports.progress import Speed
from trainer.reports.workdir import eval_directory
from trainer.reports.writer import Reports
from trainer.results import EvalResult, ExportResult
from trainer.serving.publishing import ExportOptions
from trainer.task import Better, Metrics, TrainState, better_of

__all__ = [
    "Callback",
    "CheckpointComplete",
    "CheckpointEnd",
    "EarlyStopping",
    "EvaluationEnd",
    "Export",
    "Exporter",
    "LoopEnd",
    "TrainBegin",
    "WandbCallback",
    "When",
]

Stop = Callable[[str], None]
Export = Callable[..., ExportResult | None]
"""export(path, input_fn, *, metric=None, better=None, ...) exports the model that was just
evaluated, as Trainer.export does, with its other options. Every host has to call it.

metric: only if this metric of the evaluation is better than in the newest export in `path`, or if
that has no such metric; otherwise it returns None. better: "max" or "min", for a metric that does
not state it; alone, of the loss."""


@dataclass(frozen=True)
class TrainBegin:
    """A training run is about to begin or resume.

    step: number of finished steps. earlier: given the name of an evaluation of this training,
    returns its metrics at each step so far, including those of earlier runs; {} on hosts other than
    0. Raises CheckpointError for a damaged file. stop: see Callback."""

    step: int
    earlier: Callable[[str | None], Mapping[int, Mapping[str, float]]]
    stop: Stop


@dataclass(frozen=True)
class LoopEnd:
    """The host has read the results of a dispatch. The next one is already running, so the state is
    not available.

    step: number of finished steps. scalars: name -> float32 [n], the values of the last n steps.
    reports, stop: see Callback. speed: since the last log line, whenever there is a new one
    (TrainerConfig.log_every), on host 0."""

    step: int
    scalars: Mapping[str, np.ndarray]
    reports: Reports
    stop: Stop
    speed: Speed | None = None


@dataclass(frozen=True)
class CheckpointEnd:
    """A checkpoint is being written. The state's arrays are on the devices; the next step consumes
    them.

    step: number of finished steps. reports, stop: see Callback."""

    step: int
    state: TrainState
    reports: Reports
    stop: Stop


@dataclass(frozen=True)
class CheckpointComplete:
    """A checkpoint is complete: any process can read it.

    step: number of finished steps. path: <workdir>/checkpoints/<step>. reports: see Callback; after
    an error that ended the run, it no longer writes."""

    step: int
    path: str
    reports: Reports


@dataclass(frozen=True)
class EvaluationEnd:
    """An evaluation has finished, with this result.

    name: the one given to the call. final: whether no training continues after it, as far as is
    known: an input may turn out to have ended just there. export: see Export. reports, stop: see
    Callback."""

    name: str | None
    result: EvalResult
    final: bool
    export: Export
    reports: Reports
    stop: Stop


class Callback:
    """Does nothing by default; override what you need. Callbacks run in the main thread of every
    host, in list order; on_checkpoint_complete only runs on host 0.

    `reports` writes scalars, images, histograms and texts; only on host 0, so a callback need not
    check. `stop(why)` ends the training within three dispatches and saves; only the request of host
    0 counts. An exception in a callback ends the run on all hosts."""

    def check(self, metrics: Metrics) -> None:
        """Called when the Trainer is made, with the task's metrics. Raise OptionError for what
        could not work."""

    def on_train_begin(self, begin: TrainBegin) -> None:
        """Called before the first dispatch of a training run, including a resumed one."""

    def on_loop_end(self, end: LoopEnd) -> None:
        """Called after every dispatch of training."""

    def on_checkpoint(self, end: CheckpointEnd) -> None:
        """Called after training has started to write a checkpoint."""

    def on_checkpoint_complete(self, end: CheckpointComplete) -> None:
        """Called on host 0 once a checkpoint is complete: before the next dispatch, save or export,
        or when the run ends.

        Once per checkpoint, in order; never for one that failed. Training does not wait for it,
        except at its end and before it exports the model of that checkpoint. An error or a
        preemption does not prevent it; a kill does."""

    def on_evaluation_end(self, end: EvaluationEnd) -> None:
        """Called after each evaluation by evaluate, train_and_evaluate or evaluate_continuously."""


When = Literal["best", "latest", "final"]
"""best: after an evaluation that is better than that of the newest export. latest: after every one.
final: after the last one of a run."""


class Exporter(Callback):
    """Exports what was evaluated to `path`, as Trainer.export does.

    input_fn: see Trainer.export. metric, better: what best means; better is the largest ("max") or
    the smallest ("min") value, of a metric that does not state it. A restarted run compares
    with the newest export, which knows its own. keep: how many exports to keep; None: all. name: of
    the evaluations; default: those without a name. options: model, keys, labels, tolerance,
    platforms and assets_extra of Trainer.export. An export that fails ends the training, whose
    checkpoint was saved before."""

    def __init__(
        self,
        path: str,
        input_fn: InputFn,
        *,
        when: When = "latest",
        metric: str = "loss",
        better: Better | None = None,
        keep: int | None = 5,
        name: str | None = None,
        **options: Any,
    ) -> None:
        check_choice("when", when, get_args(When))
        check_choice("better", better, ("min", "max", None))
        # a mistake should not wait for the first evaluation
        ExportOptions(path, keep=keep, **options)
        self._path = path
        self._input_fn = input_fn
        self._when = when
        self._name = name
        self._options: dict[str, Any] = options | {"keep": keep}
        self._best: dict[str, Any] = {"metric": metric, "better": better} if when == "best" else {}

    def on_evaluation_end(self, end: EvaluationEnd) -> None:
        """Exports, if it is due."""
        if end.name == self._name and (end.final or self._when != "final"):
            end.export(self._path, self._input_fn, **self._options, **self._best)

    def check(self, metrics: Metrics) -> None:
        """Raises OptionError unless it is known which values of its metric are the best."""
        if self._best:
            better_of(metrics, **self._best, options=("metric", "better"))


class EarlyStopping(Callback):
    """Ends a training once `patience` evaluations in a row have brought no better value of a
    metric. The model stays that of the last step; TrainerConfig.keep_best keeps the best one, too.

    metric, better: as in Exporter. patience: a number of evaluations; those before a restart
    count, so that a repeated call trains no further. name: of the evaluations; default: those
    without a name. NaN is never better."""

    def __init__(
        self, metric: str, patience: int, *, better: Better | None = None, name: str | None = None
    ) -> None:
        check_choice("better", better, ("min", "max", None))
        check_number("patience", patience, at_least=1)
        self._metric = metric
        self._patience = patience
        self._better: Better | None = better
        self._name = name

    def on_train_begin(self, begin: TrainBegin) -> None:
        """Ends the training, if it was time before a restart."""
        self._end(begin.step, begin.earlier(self._name), begin.stop)

    def on_evaluation_end(self, end: EvaluationEnd) -> None:
        """Ends the training, if it is time."""
        if end.name == self._name and end.reports.writes:
            step = end.result.step
            self._end(step, end.reports.earlier(step) | {step: end.result.metrics}, end.stop)

    def _end(self, step: int, scalars: Mapping[int, Mapping[str, float]], stop: Stop) -> None:
        measured = {
            step: float(np.float32(values[self._metric]))  # as precise as those in the file
            for step, values in scalars.items()
            if self._metric in values
        }
        sign = -1 if self._better == "max" else 1
        ranked = [(sign * value, step) for step, value in measured.items() if math.isfinite(value)]
        best = min(ranked)[1] if ranked else -1
        worse = sum(each > best for each in measured)
        if worse >= self._patience:
            since = f"{measured[best]:.6g} at step {best}" if ranked else "any finite value"
            evaluations = counted(worse, "evaluation")
            stop(f"{self._metric} was not better than {since} in {evaluations} up to step {step}")

    def check(self, metrics: Metrics) -> None:
        """Raises OptionError unless it is known which values of its metric are the best."""
        self._better = better_of(metrics, self._metric, self._better, ("metric", "better"))


class WandbCallback(Callback):
    """Logs to one W&B run per work directory what TensorBoard gets: every step's scalars, the
    speed, evaluations.

    <workdir>/wandb_id names the run, so that a restart continues it. options: for wandb.init, such
    as project="mine". Without a connection, set WANDB_MODE=offline. Raises OptionError if wandb is
    not installed."""

    def __init__(self, workdir: str, **options: Any) -> None:
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise OptionError(
                f"WandbCallback needs the package wandb: {how_to_install('wandb')}"
            ) from error
        self._wandb = wandb
        self._workdir = str(workdir)
        self._options = options
        self._run = None

    def on_loop_end(self, end: LoopEnd) -> None:
        """Logs the scalars of each step, and the speed if there is a new one."""
        if end.reports.writes:
            first = end.step + 1 - len(end.scalars["loss"])
            for row, step in enumerate(range(first, end.step + 1)):
                values = {f"train/{name}": float(of[row]) for name, of in end.scalars.items()}
                if end.speed and step == end.step:
                    values |= end.speed.scalars()
                self._log(step, values)

    def on_evaluation_end(self, end: EvaluationEnd) -> None:
        """Logs the metrics of the evaluation."""
        if end.reports.writes:
            group = eval_directory(end.name)
            metrics = end.result.metrics
            self._log(end.result.step, {f"{group}/{name}": metrics[name] for name in metrics})

    def _log(self, step: int, values: dict[str, float]) -> None:
        if self._run is None:
            storage = open_storage(self._workdir)
            path = join(self._workdir, "wandb_id")
            storage.create(path, secrets.token_hex(8).encode())  # unless it exists
            directory = None if is_remote(self._workdir) else self._workdir
            own = {"id": storage.read(path).decode(), "resume": "allow", "dir": directory}
            self._run = self._wandb.init(**own | self._options)
            # W&B's own steps cannot go back after a kill
            self._run.define_metric("*", step_metric="step")
        self._run.log({"step": step, **values})
