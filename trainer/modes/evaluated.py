"""A model that was just evaluated: where its result is reported, and how callbacks export it."""

import json
import math
from collections.abc import Callable
from typing import Any, Literal

import jax

from pipeline.errors import ExportError, OptionError, did_you_mean
from pipeline.logs import logger
from trainer.callbacks import EvaluationEnd
from trainer.events.reports import Reports
from trainer.exporting.options import ExportOptions
from trainer.exporting.publishing import DESCRIPTION, EXTRA, Exports
from trainer.inputs import InputFn
from trainer.modes.prediction import check_export
from trainer.modes.session import Session
from trainer.results import EvalResult, ExportResult
from trainer.setup import Setup
from trainer.state import TrainState

__all__ = ["Evaluated", "measured"]

log = logger("trainer")


def measured(path: str, metric: str) -> float:
    """This metric of the newest export in `path`; NaN if it is not known. ExportError if the export is damaged."""
    exports = Exports(path)
    newest = max(exports.numbers(), default=None)
    try:
        return math.nan if newest is None else float(exports.origin(newest).get("metrics", {}).get(metric, math.nan))
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as e:
        raise ExportError(f"{path}/{newest}/{EXTRA}/{DESCRIPTION} is damaged: {e}. Copy it again, or remove it.") from e


class Evaluated:
    """The state and the result of an evaluation. An export donates the arrays: continue with `state`."""

    def __init__(self, session: Session, setup: Setup, state: TrainState, result: EvalResult, *, final: bool) -> None:
        self.state = state
        self._session, self._setup, self._result, self._final = session, setup, result, final

    def record(self) -> None:
        """Records the metrics of the checkpoint, for keep_best."""
        self._session.checkpoints.record(self._result.step, self._result.metrics)

    def tell(self, name: str | None, stop: Callable[[str], None] = lambda _: None) -> None:
        """Writes the result to <workdir>/eval_<name>, or to eval, and calls the callbacks."""
        with Reports(self._setup.config, "eval" if name is None else f"eval_{name}") as reports:
            reports.scalars(self._result.step, self._result.metrics)
            for callback in self._setup.callbacks:
                callback.on_evaluation_end(EvaluationEnd(name, self._result, self._final, self._export, reports, stop))

    def _export(
        self,
        path: str,
        input_fn: InputFn,
        *,
        better: Literal["min", "max"] | None = None,
        metric: str = "loss",
        **options: Any,
    ) -> ExportResult | None:
        """See Export."""
        from trainer.exporting.making import Origin  # loads TensorFlow, as what follows
        from trainer.modes.exporting import export

        setup, session, result = self._setup, self._session, self._result
        check_export(setup, options.get("keys"))
        if setup.config.fast_dev_run:
            log.info("fast_dev_run: nothing is exported to %s", path)
            return None
        if better is not None and not self._is_better(path, metric, better):
            return None
        opened = setup.open("predict", input_fn)
        origin = Origin(result.step, setup.config.workdir, result.metrics)
        given = (session, setup, opened, self.state, origin, input_fn, ExportOptions(path, **options))
        session.checkpoints.settle(wait=True)
        return export(*given, self._continue_with)

    def _continue_with(self, state: TrainState) -> None:
        self.state = state

    def _is_better(self, path: str, metric: str, better: Literal["min", "max"]) -> bool:
        """Host 0 decides for all."""
        if better not in ("min", "max"):
            raise OptionError(f"better={better!r} is not one of min, max.")
        if metric not in (metrics := self._result.metrics):
            raise OptionError(f"metric={metric!r} is not a metric of the evaluation.{did_you_mean(metric, metrics)}")
        watchdog = self._session.watchdog
        store, key = watchdog.registry.store, watchdog.registry.key(f"better/{next(self._session.numbers)}")
        if jax.process_index() == 0:
            before, value = measured(path, metric), metrics[metric]
            improved = value < before if better == "min" else value > before
            store.put(key, json.dumps(math.isfinite(value) and (math.isnan(before) or improved)))
        return json.loads(watchdog.wait(lambda: store.get(key), math.inf) or "false")
