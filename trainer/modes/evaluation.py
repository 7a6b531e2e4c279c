"""One exact epoch with its proof; and further epochs that prove that padding does not affect the metrics."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import jax
import numpy as np

from pipeline.errors import EvaluationError, InputError
from pipeline.logs import logger
from trainer.inputs import CompleteInput
from trainer.loop.dispatch_plan import Steps
from trainer.loop.dispatching import DispatchResult, run
from trainer.metrics.masking import PADDINGS
from trainer.metrics.tally import Tally, computed, mergeable
from trainer.modes.exact_epoch import ExactEpoch
from trainer.modes.session import Session
from trainer.results import EvalResult
from trainer.setup import Opened, Setup
from trainer.step_functions import PROOF_SUMS, EvalState, eval_step, no_tallies
from trainer.task import Variables

__all__ = ["Evaluation", "compare_paddings"]

log = logger("trainer")


class Evaluation:
    """Exact epochs with one model and one program. The arrays of `variables` are donated.

    padding_rows: rows of the last epoch that did not count, over all hosts."""

    def __init__(self, session: Session, setup: Setup, opened: Opened, variables: Variables, step: int) -> None:
        self._session, self._setup, self._opened, self._step = session, setup, opened, step
        self.padding_rows = 0
        epoch = opened.source.steps_per_epoch
        self._shapes = opened.struct, epoch
        k = setup.steps_per_dispatch(opened, [epoch] if epoch else [])
        self._steps = Steps.of_input() if epoch is None else Steps.planned(0, epoch, k)
        self._tallies = _maker_of_tallies(setup, opened, variables)
        self._state = EvalState(variables, setup.placement.scalar(np.int32(0)), self._tallies())
        self._program = setup.program(eval_step(setup.task), self._state, opened, k)

    @property
    def variables(self) -> Variables:
        """The model, in the arrays that hold it after an epoch."""
        return self._state.variables

    @classmethod
    def of(
        cls,
        previous: "Evaluation | None",
        session: Session,
        setup: Setup,
        opened: Opened,
        variables: Variables,
        step: int,
    ) -> "Evaluation":
        """Of this model: `previous`, with its program, if the input has the same shapes, or a new one."""
        if previous is None or not previous.fits(opened):
            return cls(session, setup, opened, variables, step)
        previous.renew(session, opened, variables, step)
        return previous

    def fits(self, opened: Opened) -> bool:
        """Whether its program runs on this input."""
        return (opened.struct, opened.source.steps_per_epoch) == self._shapes

    def renew(self, session: Session, opened: Opened, variables: Variables, step: int) -> None:
        """Continues with another model, on an input that fits."""
        self._session, self._opened, self._step = session, opened, step
        self._state = self._state._replace(variables=variables)

    def epoch(self, padding: int = 0, source: CompleteInput | None = None) -> EvalResult:
        """Runs over the input once, with PADDINGS[padding] in rows that do not count.

        source: the same input, opened again. EvaluationError unless every record counted exactly once, or was left
        out as bad."""
        opened = self._opened if source is None else replace(self._opened, source=source)
        padding_kind = self._setup.placement.scalar(np.int32(padding))
        state = self._state._replace(padding=padding_kind, tallies=self._tallies())
        totals = _Totals(opened.source)
        with self._setup.feeding(
            self._program, opened, opened.source.start, self._steps, self._session.check
        ) as feeder:
            started = time.perf_counter()
            self._state, _ = run(state, 0, feeder, self._program, totals.add, self._session)
        epoch = totals.epoch
        epoch.check("evaluation", "the metrics are not the split's")
        if epoch.masked:
            log.warning("evaluation: left out %d bad records; the means are over %d", epoch.masked, epoch.records)
        self.padding_rows = totals.steps * opened.global_batch - epoch.records
        scalars, arrays = computed(jax.device_get(self._state.tallies), self._setup.task.metrics)
        return EvalResult(
            step=self._step,
            metrics={name: total / epoch.records for name, total in totals.sums.items()} | scalars,
            arrays=arrays,
            records=epoch.records,
            masked=epoch.masked,
            num_records=opened.source.num_records,
            crc=epoch.crc,
            expected_crc=opened.source.expected_crc,
            seconds=time.perf_counter() - started,
        )


def _maker_of_tallies(setup: Setup, opened: Opened, variables: Variables) -> Callable[[], dict[str, Tally]]:
    """Makes the initial tallies of an epoch; every epoch donates its own."""
    if not mergeable(setup.task.metrics):
        return dict
    spec = setup.spec(opened)
    model = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), variables)
    make = jax.jit(
        lambda: no_tallies(setup.task, model, spec),
        out_shardings=setup.placement.replicated,
        compiler_options=setup.placement.runs_once,
    )

    def made() -> dict[str, Tally]:
        with setup.naming_batch(opened):
            tallies, neutral = make()
        for name, is_neutral in jax.device_get(neutral).items():
            if not is_neutral:
                raise InputError(
                    f"the metric {name!r} counts rows of padding: merging the state of a batch of padding changes "
                    "another state. In from_batch, leave these rows out with jnp.where(mask, values, 0)."
                )
        return tallies

    return made


def compare_paddings(evaluation: Evaluation, first: EvalResult, again: Callable[[], CompleteInput | None]) -> None:
    """Runs the epoch again with every other kind of padding. again: opens the input again, if that is needed.

    EvaluationError, naming a metric and both values, unless each has the bits of `first`, whose padding was zeros."""
    if not evaluation.padding_rows:
        log.warning(
            "check_padding: the epoch has no row of padding, so nothing was checked. Choose an eval_batch_size that "
            "does not divide %d.",
            first.records,
        )
        return
    for padding in range(1, len(PADDINGS)):
        changed = _changed(first, evaluation.epoch(padding, again()))
        if not changed:
            continue
        # The bits may also differ with the same padding: some GPU kernels add in any order.
        if unrelated := _changed(first, evaluation.epoch(0, again())):
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


class _Totals:
    """Adds up the masked sums of all steps in float64 and int: the sum over a million records stays exact."""

    def __init__(self, source: CompleteInput) -> None:
        self.sums, self.steps, self.epoch = defaultdict[str, float](float), 0, ExactEpoch(source)

    def add(self, result: DispatchResult) -> None:
        self.steps += result.length
        self.epoch.add(result.scalars)
        for name, values in result.scalars.items():
            if name not in PROOF_SUMS:
                self.sums[name] += float(values.sum(dtype=np.float64))
