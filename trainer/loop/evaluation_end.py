"""The end of an evaluation: its result is written, and callbacks get it, which may export the
model."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline.checks import did_you_mean
from pipeline.errors import ExportError, OptionError
from pipeline.logs import logger
from trainer.callbacks import EvaluationEnd
from trainer.inputs import InputFn
from trainer.loop.prediction import check_export
from trainer.loop.session import Session
from trainer.reports.workdir import eval_directory
from trainer.reports.writer import Reports
from trainer.results import EvalResult, ExportResult
from trainer.serving.publishing import DESCRIPTION, EXTRA, ExportOptions, Exports
from trainer.task import Better, TrainState, better_of

log = logger("trainer")


def report(
    session: Session,
    state: TrainState,
    result: EvalResult,
    stop: Callable[[str], None] = lambda _: None,
    *,
    final: bool,
    for_best: bool,
) -> None:
    """Writes the result to <workdir>/eval_<name>, or to eval and eval_result.json, and calls the
    callbacks. state: that was evaluated.

    for_best: whether to record the metrics of the checkpoint for keep_best. That comes last: a run
    that is killed in a callback makes up for this evaluation."""
    config = session.job.config
    name = result.name
    with Reports(config, eval_directory(name)) as reports:
        reports.scalars(result.step, result.metrics)
        if session.job.writes and (for_best or name is None):
            result.write(config.workdir)
        exporting = _Exporting(session, state, result)
        end = EvaluationEnd(name, result, final, exporting, reports, stop)
        session.call_back("on_evaluation_end", end)
    if for_best:
        session.checkpoints.record(result.step, result.metrics)


@dataclass
class _Exporting:
    """Exports the state of an evaluation: see callbacks.Export."""

    session: Session
    state: TrainState
    result: EvalResult

    def __call__(
        self,
        path: str,
        input_fn: InputFn,
        *,
        metric: str | None = None,
        better: Better | None = None,
        **options: Any,
    ) -> ExportResult | None:
        from trainer.loop.export import export  # loads TensorFlow

        session = self.session
        result = self.result
        config = session.job.config
        check_export(session.job, options.get("keys"))
        if config.fast_dev_run:
            log.info("fast_dev_run: nothing is exported to %s", path)
            return None
        if (metric or better) and not self._is_better(path, metric or "loss", better):
            return None
        opened = session.open("predict", input_fn)
        origin = {"step": result.step, "workdir": config.workdir, "metrics": result.metrics}
        session.checkpoints.settle(wait=True)
        settings = ExportOptions(path, **options)
        with session.activity.doing("exporting"):
            return export(session, opened, self.state, origin, settings)

    def _is_better(self, path: str, metric: str, better: Better | None) -> bool:
        """Host 0 decides for all."""
        metrics = self.result.metrics
        best = better_of(self.session.job.task.metrics, metric, better, ("metric", "better"))
        if metric not in metrics:
            raise OptionError(
                f"metric={metric!r} is not a metric of the "
                f"evaluation.{did_you_mean(metric, metrics)}"
            )

        def improved() -> bool:
            before = measured(path, metric)
            value = metrics[metric]
            above = value < before if best == "min" else value > before
            return bool(math.isfinite(value) and (math.isnan(before) or above))

        return self.session.exchange.from_host_0("better", improved)


def measured(path: str, metric: str) -> float:
    """This metric of the newest export in `path`; NaN if it is not known. ExportError if the export
    is damaged."""
    exports = Exports(path)
    newest = max(exports.numbers(), default=None)
    if newest is None:
        return math.nan
    try:
        return float(exports.origin(newest).get("metrics", {}).get(metric, math.nan))
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as e:
        raise ExportError(
            f"{path}/{newest}/{EXTRA}/{DESCRIPTION} is damaged: {e}. Copy it again, or remove it."
        ) from e
