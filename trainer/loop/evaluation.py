"""The evaluation of one state over an input: exact epochs, each with its proof."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from pipeline.errors import EvaluationError, InputError
from pipeline.logs import logger
from pipeline.spec import INDEX, MASK, with_offsets
from trainer.inputs import IterableInput
from trainer.loop.dispatching import DispatchResult
from trainer.loop.exact_epoch import Delivered, ExactEpoch, Proof
from trainer.loop.job import Job, OpenedInput
from trainer.loop.session import Session
from trainer.metrics.labels import REMEDY, told_outside
from trainer.metrics.tally import LOSSES, computed, mergeable, totals_counted
from trainer.results import EvalResult, EvaluatedRecords
from trainer.step.state import model_of
from trainer.step.steps import (
    NOT_FINITE,
    PREDICTIONS,
    RECORD_OUTSIDE,
    Tallies,
    eval_step,
    no_tallies,
)
from trainer.task import TrainState, Variables

log = logger("trainer")

OnRecords = Callable[[EvaluatedRecords], None]
OnCounted = Callable[[int], None]
"""Gets the number of records, over all hosts, that a dispatch counted."""
NOT_THE_SPLITS = "the metrics are not the split's"


@dataclass
class Evaluation:
    """Exact epochs with the models of one state.

    on_records: see Trainer.evaluate; gets the records of the first epoch.
    before: of another evaluation, whose program serves this one, too, if the input has its shapes.
    padding_rows: rows of the last epoch that did not count, over all hosts."""

    session: Session
    opened: OpenedInput
    state: TrainState
    step: int
    on_records: OnRecords | None = None
    before: ExactEpoch | None = None

    def __post_init__(self) -> None:
        self.padding_rows = 0
        before = self.before
        self.exact_epoch = before if before and before.fits(self.opened) else self._compiled()

    def _compiled(self) -> ExactEpoch:
        job = self.session.job
        task = job.traced_task
        constants = self._constants(0)
        step = eval_step(task, with_rows=self.on_records is not None, axes=job.placement.axes)
        make_tallies = dict
        if mergeable(task.metrics):
            model = jax.eval_shape(lambda: constants[0])
            make = jax.jit(
                partial(no_tallies, task, model, job.spec(self.opened)),
                out_shardings=job.placement.replicated,
                compiler_options=job.placement.runs_once,
            )
            make_tallies = partial(_checked_tallies, job, self.opened, make)
        return ExactEpoch(self.session, self.opened, step, constants, make_tallies)

    def _constants(self, padding: int) -> tuple[Variables, Any]:
        model = model_of(self.state, self.session.job.config.evaluated_model)
        return model, self.session.job.placement.scalar(np.int32(padding))

    def epoch(self, padding: int = 0, on_counted: OnCounted = lambda _: None) -> EvalResult:
        """Runs over the input once, with PADDINGS[padding] in rows that do not count.

        on_counted: called after each dispatch. EvaluationError unless every record counted exactly
        once, or was left out as bad."""
        with self.session.activity.doing("evaluating"):
            return self._run(padding, on_counted)

    def _run(self, padding: int, on_counted: OnCounted) -> EvalResult:
        session = self.session
        if isinstance(self.opened.source, IterableInput) and self.opened.source.exhausted:
            self.opened = session.open("eval", self.opened.input_fn)
        opened = self.opened
        proof = Proof(opened.source)
        self._outside = -1

        def record(result: DispatchResult) -> None:
            self._outside = max(self._outside, int(result.scalars.pop(RECORD_OUTSIDE).max()))
            records = proof.add(result.scalars)
            if self.on_records and result.rows:
                self.on_records(self._counted(result.rows))
            on_counted(records)

        constants = self._constants(padding)
        with self.exact_epoch.dispatching(session, opened, constants, record) as dispatches:
            started = time.perf_counter()
            for _ in dispatches:
                if not dispatches.ended:
                    session.end_if_preempted()
        self.on_records = None
        delivered = self._checked(proof)
        self.padding_rows = dispatches.step * opened.global_batch - delivered.records
        tallies = jax.device_get(dispatches.carry)
        metrics = self.session.job.task.metrics
        totals = totals_counted(tallies, metrics)
        proof.check_totals(totals, NOT_THE_SPLITS)
        scalars, arrays = computed(tallies, metrics)
        means = {
            name: total / delivered.labelled
            for name, total in proof.sums.items()
            if not name.startswith("_")
        }
        info = opened.source.info
        return EvalResult(
            step=self.step,
            metrics=means | scalars,
            arrays=arrays,
            **delivered._asdict(),
            num_records=info.num_records,
            expected_crc=info.expected_crc,
            seconds=time.perf_counter() - started,
            data=info.name,
            fingerprint=info.fingerprint,
            classes=opened.classes,
            copies=info.copies,
            totals={name: total for each in totals.values() for name, total in each.items()},
            not_finite=_not_finite(means | scalars, proof.sums, delivered.labelled),
        )

    def _counted(self, rows: Mapping[str, Any]) -> EvaluatedRecords:
        counts = rows[MASK] > 0
        index = rows.get(INDEX)
        predictions = {name: values[counts] for name, values in rows[PREDICTIONS].items()}
        return EvaluatedRecords(
            None if index is None else index[counts],
            rows[LOSSES][counts],
            with_offsets(predictions, self.session.job.task.added),
        )

    def _checked(self, proof: Proof) -> Delivered:
        """EvaluationError unless everything that is due was delivered, some of it has a label, and
        all labels are among the classes."""
        delivered = proof.check("evaluation", NOT_THE_SPLITS, "; the means are over")
        records = delivered.records
        if outside := told_outside(proof.sums):
            such = f", such as record {self._outside}" if self._outside >= 0 else ""
            raise EvaluationError(
                f"the evaluation counted {outside}{such}; {NOT_THE_SPLITS}. {REMEDY}."
            )
        if (target := self.session.job.task.target) and not delivered.labelled:
            raise EvaluationError(
                f"{proof.name}: none of the {records} records has the label "
                f"{target.key!r}, so nothing can be evaluated. --mode predict (Trainer.predict) "
                "works without labels."
            )
        if unlabelled := records - delivered.labelled:
            log.warning(
                "evaluation: %d of %d records have no label; the metrics are over the other %d",
                unlabelled,
                records,
                delivered.labelled,
            )
        return delivered


def _checked_tallies(job: Job, opened: OpenedInput, make: Callable[[], Any]) -> Tallies:
    """The tallies at the start of an epoch."""
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
