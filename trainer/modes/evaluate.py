"""Evaluation of a checkpoint, or of every new one as another process saves them; and what becomes of any evaluation's
result: reports, callbacks and their exports.

For new checkpoints host 0 looks, and tells the other hosts, so all evaluate the same one. Only results are written."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import jax
import numpy as np

from pipeline.errors import CheckpointError, EvaluationError, ExportError, HostError, OptionError, did_you_mean
from pipeline.logs import logger
from trainer.callbacks import EvaluationEnd
from trainer.checkpointing.manager import CheckpointManager, WhichStep
from trainer.cluster.host_registry import poll
from trainer.events.progress import RecordsLine
from trainer.events.reports import Reports
from trainer.exact_epoch import OnRecords
from trainer.exits import is_apart
from trainer.exporting.publishing import DESCRIPTION, EXTRA, ExportOptions, Exports
from trainer.inputs import InputFn
from trainer.job import Job
from trainer.metrics.tally import PADDINGS
from trainer.modes.evaluation import Evaluation
from trainer.modes.predict import check_export
from trainer.modes.restoring import restore
from trainer.modes.session import Session, open_session
from trainer.results import EvalResult, ExportResult
from trainer.state import TrainState
from trainer.user_code import ShortErrors
from trainer.workdir import eval_directory

REMOVAL_SECONDS = 10.0  # the longest removal of a checkpoint, from its first file to its last

log = logger("trainer")


def evaluate(
    job: Job,
    input_fn: InputFn,
    *,
    name: str | None,
    step: WhichStep | None,
    checkpoint_path: str | None,
    check_padding: bool,
    on_records: OnRecords | None,
) -> EvalResult:
    """See Trainer.evaluate."""
    with open_session(job) as session:
        given = "given" if on_records else "not given"
        start = restore(session, "eval", input_fn, step, checkpoint_path, check_padding=check_padding, on_records=given)
        with session.preemption.leavable():
            evaluation = Evaluation(session, start.opened, start.state, start.step, on_records)
        due = start.opened.source.info.num_records
        due = due and due * len(job.config.evaluated_models)
        with RecordsLine("evaluated", due, shown=jax.process_index() == 0) as line:
            result = evaluation.epoch(on_counted=line.add)
        if check_padding:
            compare_paddings(evaluation, result)
        finished = FinishedEvaluation(session, evaluation.state, result, final=True)
        finished.report(name)
        if name is None and checkpoint_path is None:  # what keep_best uses
            finished.record()
    return result


class FinishedEvaluation:
    """The state and the result of an evaluation. An export donates the arrays: continue with `state`."""

    def __init__(self, session: Session, state: TrainState, result: EvalResult, *, final: bool) -> None:
        self.state, self._session, self._result, self._final = state, session, result, final

    def record(self) -> None:
        """Records the metrics of the checkpoint, for keep_best."""
        self._session.checkpoints.record(self._result.step, self._result.metrics)

    def report(self, name: str | None, stop: Callable[[str], None] = lambda _: None) -> None:
        """Writes the result to <workdir>/eval_<name>, or to eval, and calls the callbacks."""
        with Reports(self._session.job.config, eval_directory(name)) as reports:
            reports.scalars(self._result.step, self._result.metrics)
            end = EvaluationEnd(name, self._result, self._final, export=self._export, reports=reports, stop=stop)
            self._session.call_back("on_evaluation_end", end)

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
        from trainer.exporting.making import ExportOrigin  # loads TensorFlow, as what follows
        from trainer.modes.export import export

        session, job, result = self._session, self._session.job, self._result
        check_export(job, options.get("keys"))
        if job.config.fast_dev_run:
            log.info("fast_dev_run: nothing is exported to %s", path)
            return None
        if better is not None and not self._is_better(path, metric, better):
            return None
        opened = session.open("predict", input_fn)
        origin = ExportOrigin(result.step, job.config.workdir, result.metrics)
        session.checkpoints.settle(wait=True)
        settings = ExportOptions(path, **options)
        with session.activity.doing("exporting", "export_seconds"):
            return export(session, opened, self.state, origin, settings, continue_with=self._continue_with)

    def _continue_with(self, state: TrainState) -> None:
        self.state = state

    def _is_better(self, path: str, metric: str, better: Literal["min", "max"]) -> bool:
        """Host 0 decides for all."""
        if better not in ("min", "max"):
            raise OptionError(f"better={better!r} is not one of min, max.")
        if metric not in (metrics := self._result.metrics):
            raise OptionError(f"metric={metric!r} is not a metric of the evaluation.{did_you_mean(metric, metrics)}")

        def improved() -> bool:
            before, value = measured(path, metric), metrics[metric]
            above = value < before if better == "min" else value > before
            return bool(math.isfinite(value) and (math.isnan(before) or above))

        return self._session.exchange.from_host_0("better", improved)


def measured(path: str, metric: str) -> float:
    """This metric of the newest export in `path`; NaN if it is not known. ExportError if the export is damaged."""
    exports = Exports(path)
    newest = max(exports.numbers(), default=None)
    try:
        return math.nan if newest is None else float(exports.origin(newest).get("metrics", {}).get(metric, math.nan))
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as e:
        raise ExportError(f"{path}/{newest}/{EXTRA}/{DESCRIPTION} is damaged: {e}. Copy it again, or remove it.") from e


def compare_paddings(evaluation: Evaluation, first: EvalResult) -> None:
    """Runs the epoch again with every other kind of padding.

    EvaluationError, naming a metric and both values, unless each has the bits of `first`, whose padding was zeros."""
    if not evaluation.padding_rows:
        log.warning(
            "check_padding: the epoch has no row of padding, so nothing was checked. Choose an eval_batch_size that "
            "does not divide %d.",
            first.records,
        )
        return
    for padding in range(1, len(PADDINGS)):
        changed = _changed(first, evaluation.epoch(padding))
        if not changed:
            continue
        # The bits may also differ with the same padding: some GPU kernels add in any order.
        if unrelated := _changed(first, evaluation.epoch(0)):
            raise EvaluationError(
                f"check_padding: two epochs over the same padding differ, too: {unrelated}. This program is not "
                "deterministic on these devices. Try again with XLA_FLAGS=--xla_gpu_deterministic_ops=true."
            )
        raise EvaluationError(
            f"check_padding: with {PADDINGS[padding]} in place of {PADDINGS[0]} in rows of padding, {changed}. Some "
            "computation mixes the rows of a batch, so padding affects rows that count. Exclude it there with "
            "jnp.where(mask, x, 0), with mask = batch['_mask'] > 0 in the shape of x; x * mask lets NaN through."
        )
    log.info(
        "check_padding: all metrics have the same bits, whatever is in the %d rows of padding: %s",
        evaluation.padding_rows,
        "; ".join(PADDINGS),
    )


def _changed(first: EvalResult, second: EvalResult) -> str:
    """The metrics whose bits differ; "" if none do."""
    numbers = [
        f"{name} is {second.metrics[name]!r} and not {value!r}"
        for name, value in first.metrics.items()
        if value.hex() != second.metrics[name].hex()
    ]
    arrays = [
        f"{name} differs in {np.sum(array != second.arrays[name])} of its {array.size} numbers"
        for name, array in first.arrays.items()
        if array.tobytes() != second.arrays[name].tobytes()
    ]
    return ", ".join(numbers + arrays)


@dataclass(frozen=True)
class Waits:
    """How long to wait: for a new checkpoint, between two looks for one, for host 0 to start looking."""

    timeout_seconds: float
    poll_seconds: float
    stall_seconds: float

    def __post_init__(self) -> None:
        for name, seconds in asdict(self).items():
            if not seconds > 0:
                raise OptionError(f"{name}={seconds} must be above 0.")


def evaluate_continuously(job: Job, input_fn: InputFn, name: str | None, waits: Waits) -> Iterator[EvalResult]:
    """See Trainer.evaluate_continuously. No session is open between two results."""
    with ShortErrors():
        yield from _results(job, input_fn, name, waits)


def _results(job: Job, input_fn: InputFn, name: str | None, waits: Waits) -> Iterator[EvalResult]:
    end, last = job.config.max_steps, None
    evaluation: Evaluation | None = None
    while end is None or last is None or last < end:
        with open_session(job) as session:
            checkpoints = session.checkpoints
            step = _next_step(session, last, waits)
        if step is None:
            _say_timeout(checkpoints.directory, last, waits.timeout_seconds)
            return
        try:
            with open_session(job) as session:
                start = restore(session, "eval", input_fn, step, None)
                begin = evaluation.again if evaluation else Evaluation
                evaluation = begin(session, start.opened, start.state, step)
                result = evaluation.epoch()
                ends = end is not None and step >= end
                finished = FinishedEvaluation(session, evaluation.state, result, final=ends)
                finished.report(name)
                if name is None:  # what keep_best uses
                    finished.record()
        except (CheckpointError, HostError):
            if is_apart() or not _removed(checkpoints, step):
                raise
            log.info("the checkpoint of step %d was removed while it was read; continuing with a newer one", step)
        else:
            last = step
            yield result
    log.info("the checkpoint of step %s is the last (max_steps=%s)", last, end)


def _next_step(session: Session, last: int | None, waits: Waits) -> int | None:
    """The newest checkpoint's step, on every host, once it is newer than `last`; None on a timeout."""
    exchange, look = session.exchange, _look_out(session, last, waits.poll_seconds)
    late = (
        f"start to look for the next checkpoint within {waits.stall_seconds:g} s (stall_seconds). "
        "Iterate in the same way on every host."
    )
    exchange.from_host_0("looking", lambda: True, waits.stall_seconds, late)
    return exchange.from_host_0("next step", lambda: session.watchdog.wait(look, waits.timeout_seconds))


def _look_out(session: Session, last: int | None, poll_seconds: float) -> Callable[[], int | None]:
    """A look that lists the directory at most every poll_seconds."""
    due = time.monotonic()

    def look() -> int | None:
        nonlocal due
        if time.monotonic() < due:
            return None
        due = time.monotonic() + poll_seconds
        *skipped, newest = [step for step in session.checkpoints.steps() if last is None or step > last] or [None]
        if skipped:
            log.info("evaluating step %s; skipped: the checkpoints of steps %s", newest, skipped)
        return newest

    return look


def _removed(checkpoints: CheckpointManager, step: int) -> bool:
    """Whether this checkpoint is gone: its files may vanish before its directory does."""
    stop = time.monotonic() + REMOVAL_SECONDS
    return poll(lambda: True if step not in checkpoints.steps() else None, stop) is not None


def _say_timeout(directory: str, last: int | None, timeout_seconds: float) -> None:
    if last is None:
        raise CheckpointError(
            f"{directory} has no checkpoint, and none came within {timeout_seconds:g} s (timeout_seconds). Is this "
            "the work directory that the training run writes to?"
        )
    text = "no new checkpoint for %g s (timeout_seconds); the evaluation ends with step %d"
    log.warning(text, timeout_seconds, last)
