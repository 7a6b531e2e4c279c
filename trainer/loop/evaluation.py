"""Exact epochs over an input, each with its proof; and what becomes of a result: reports,
callbacks, their exports."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from pipeline.checks import did_you_mean
from pipeline.errors import ExportError, InputError, OptionError
from pipeline.logs import logger
from pipeline.sizes import counted
from trainer.callbacks import EvaluationEnd
from trainer.inputs import InputFn, IterableInput
from trainer.loop.dispatching import Steps
from trainer.loop.exact_epoch import EpochTotals, OnCounted, OnRecords
from trainer.loop.job import Job, OpenedInput
from trainer.loop.predict import check_export
from trainer.loop.session import Session
from trainer.metrics.tally import Tally, computed, mergeable, totals_counted
from trainer.reports.workdir import eval_directory
from trainer.reports.writer import Reports
from trainer.results import EvalResult, ExportResult
from trainer.serving.publishing import DESCRIPTION, EXTRA, ExportOptions, Exports
from trainer.step.state import model_of, with_model
from trainer.step.steps import NOT_FINITE, EvalState, eval_step, no_tallies
from trainer.task import Better, TrainState, Variables, better_of

log = logger("trainer")

NOT_THE_SPLITS = "the metrics are not the split's"


@dataclass
class Evaluation:
    """Exact epochs with the models of one state, and one program. Their arrays are donated:
    continue with `state`.

    padding_rows: rows of the last epoch that did not count, over all hosts. on_records: see
    Trainer.evaluate."""

    session: Session
    opened: OpenedInput
    state: TrainState
    step: int
    on_records: OnRecords | None = None

    def __post_init__(self) -> None:
        job = self.session.job
        self._job = job
        self.padding_rows = 0
        epoch = self.opened.source.info.steps_per_epoch
        self._shapes = self.opened.struct, epoch
        k = job.steps_per_dispatch(
            self.opened, self.session.superbatch_bytes, [epoch] if epoch else []
        )
        self._steps = Steps.of_epoch(epoch, k)
        self._tallies = _maker_of_tallies(job, self.opened, self.state.variables)
        carry = EvalState(self.state.variables, job.placement.scalar(np.int32(0)), self._tallies())
        # a few bytes per record: dispatches are as long as without them
        rows = self.on_records is not None
        one_step = eval_step(job.traced_task, with_rows=rows, axes=job.placement.axes)
        self._program = job.program(one_step, carry, self.opened, k)

    def again(
        self, session: Session, opened: OpenedInput, state: TrainState, step: int
    ) -> "Evaluation":
        """The evaluation of another state: this one, with its program, if the input has its shapes,
        or a new one."""
        if (opened.struct, opened.source.info.steps_per_epoch) != self._shapes:
            return Evaluation(session, opened, state, step)
        self.session = session
        self.opened = opened
        self.state = state
        self.step = step
        return self

    def epoch(self, padding: int = 0, on_counted: OnCounted = lambda _: None) -> EvalResult:
        """Runs over the input once, with PADDINGS[padding] in rows that do not count.

        The first epoch of all passes its records to on_records. on_counted: called after each
        dispatch. EvaluationError unless every record counted exactly once, or was left out as
        bad."""
        with self.session.activity.doing("evaluating"):
            return self._epoch(padding, on_counted)

    def _epoch(self, padding: int, on_counted: OnCounted) -> EvalResult:
        job = self._job
        model = job.config.evaluated_model
        opened = self.opened
        if isinstance(opened.source, IterableInput) and opened.source.exhausted:
            opened = self.session.open("eval", opened.input_fn)
            self.opened = opened
        info = opened.source.info
        padding_kind = job.placement.scalar(np.int32(padding))
        carry = EvalState(model_of(self.state, model), padding_kind, self._tallies())
        sums = EpochTotals(opened.source, job.task, self.on_records, on_counted)
        self.on_records = None
        dispatching = self.session.dispatching(
            self._program, carry, opened, info.start, self._steps, sums.add
        )
        with dispatching as (dispatches, _):
            started = time.perf_counter()
            for _ in dispatches:
                if not dispatches.ended:
                    self.session.end_if_preempted()
        carry = dispatches.carry
        self.state = with_model(self.state, model, carry.variables)
        epoch = sums.epoch
        sums.check(NOT_THE_SPLITS)
        if epoch.masked:
            left_out = counted(epoch.masked, "bad record")
            log.warning("evaluation: left out %s; the means are over %d", left_out, epoch.records)
        if unlabelled := epoch.records - epoch.labelled:
            log.warning(
                "evaluation: %d of %d records have no label; the metrics are over the other %d",
                unlabelled,
                epoch.records,
                epoch.labelled,
            )
        self.padding_rows = sums.steps * opened.global_batch - epoch.records
        tallies = jax.device_get(carry.tallies)
        totals = totals_counted(tallies, job.task.metrics)
        epoch.check_totals(totals, NOT_THE_SPLITS)
        scalars, arrays = computed(tallies, job.task.metrics)
        means = {
            name: total / epoch.labelled
            for name, total in sums.sums.items()
            if not name.startswith("_")
        }
        return EvalResult(
            step=self.step,
            metrics=means | scalars,
            arrays=arrays,
            records=epoch.records,
            labelled=epoch.labelled,
            masked=epoch.masked,
            num_records=info.num_records,
            crc=epoch.crc,
            expected_crc=info.expected_crc,
            seconds=time.perf_counter() - started,
            data=info.name,
            fingerprint=info.fingerprint,
            unseen=epoch.unseen,
            classes=opened.classes,
            totals={name: total for each in totals.values() for name, total in each.items()},
            not_finite=_not_finite(means | scalars, sums.sums, epoch.labelled),
        )

    def report(
        self,
        result: EvalResult,
        name: str | None,
        stop: Callable[[str], None] = lambda _: None,
        *,
        final: bool,
        for_best: bool,
    ) -> None:
        """Writes the result to <workdir>/eval_<name>, or to eval and eval_result.json, and calls
        the callbacks. An export in one of them donates the arrays, too.

        for_best: whether to record the metrics of the checkpoint for keep_best. That comes last: a
        run that is killed in a callback makes up for this evaluation."""
        config = self._job.config
        with Reports(config, eval_directory(name)) as reports:
            reports.scalars(result.step, result.metrics)
            if self._job.writes and (for_best or name is None):
                result.write(config.workdir)
            end = EvaluationEnd(name, result, final, partial(self._export, result), reports, stop)
            self.session.call_back("on_evaluation_end", end)
        if for_best:
            self.session.checkpoints.record(result.step, result.metrics)

    def _export(
        self,
        result: EvalResult,
        path: str,
        input_fn: InputFn,
        *,
        metric: str | None = None,
        better: Better | None = None,
        **options: Any,
    ) -> ExportResult | None:
        """See Export."""
        from trainer.loop.export import export  # loads TensorFlow

        session = self.session
        job = self._job
        check_export(job, options.get("keys"))
        if job.config.fast_dev_run:
            log.info("fast_dev_run: nothing is exported to %s", path)
            return None
        compares = metric or better
        if compares and not self._is_better(result.metrics, path, metric or "loss", better):
            return None
        opened = session.open("predict", input_fn)
        origin = {
            "step": result.step,
            "workdir": job.config.workdir,
            "metrics": result.metrics,
        }
        session.checkpoints.settle(wait=True)
        settings = ExportOptions(path, **options)
        with session.activity.doing("exporting"):
            return export(
                session, opened, self.state, origin, settings, continue_with=self._continue_with
            )

    def _continue_with(self, state: TrainState) -> None:
        self.state = state

    def _is_better(
        self, metrics: Mapping[str, float], path: str, metric: str, better: Better | None
    ) -> bool:
        """Host 0 decides for all."""
        best = better_of(self._job.task.metrics, metric, better, ("metric", "better"))
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


def _not_finite(
    metrics: Mapping[str, float], sums: Mapping[str, float], records: int
) -> dict[str, str]:
    """Why these metrics are not finite. sums: of the means, see eval_step."""
    reasons = dict[str, str]()
    for name, value in metrics.items():
        if not math.isfinite(value):
            count = int(sums[NOT_FINITE + name])
            of = f"{count} of" if count else "the sum of"
            reasons[name] = f"not finite for {of} {records} records"
            if name not in sums:
                reasons[name] = f"undefined for these {records} records, or beyond float32"
            log.warning("evaluation: %s is %s", name, reasons[name])
    return reasons


def _maker_of_tallies(
    job: Job, opened: OpenedInput, variables: Variables
) -> Callable[[], dict[str, Tally]]:
    """Makes the initial tallies of an epoch; every epoch donates its own."""
    if not mergeable(job.task.metrics):
        return dict
    spec = job.spec(opened)
    model = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), variables)
    make = jax.jit(
        lambda: no_tallies(job.traced_task, model, spec),
        out_shardings=job.placement.replicated,
        compiler_options=job.placement.runs_once,
    )

    def make_checked() -> dict[str, Tally]:
        with job.naming_batch(opened):
            tallies, neutral = make()
        for name, is_neutral in jax.device_get(neutral).items():
            if not is_neutral:
                raise InputError(
                    f"the metric {name!r} counts rows of padding: merging the state of a batch of "
                    "padding changes another state. In from_batch, leave these rows out with "
                    "jnp.where(mask, values, 0)."
                )
        return tallies

    return make_checked
