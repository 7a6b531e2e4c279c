"""Evaluation of a checkpoint, of every new one as another process saves them, or of the state in
the middle of training; and the names of evaluations.

For new checkpoints host 0 looks, and tells the other hosts, so all evaluate the same one. Only
results are written."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import jax
import numpy as np

from pipeline.errors import CheckpointError, EvaluationError, HostError, OptionError
from pipeline.logs import logger
from pipeline.user_code import ShortErrors
from trainer.checkpointing.listing import WhichStep
from trainer.checkpointing.manager import CheckpointManager
from trainer.hosts.failures import poll
from trainer.inputs import InputFn
from trainer.loop.evaluation import Evaluation, OnRecords
from trainer.loop.evaluation_end import report
from trainer.loop.exact_epoch import ExactEpoch
from trainer.loop.job import Job
from trainer.loop.session import Session, open_session, restore
from trainer.metrics.tally import PADDINGS
from trainer.reports.progress import RecordsLine
from trainer.results import EvalResult
from trainer.task import TrainState

REMOVAL_SECONDS = 10.0  # the longest removal of a checkpoint, from its first file to its last

log = logger("trainer")


def evaluate(
    job: Job,
    input_fn: InputFn,
    name: str | None,
    step: WhichStep | None,
    checkpoint_path: str | None,
    check_padding: bool,
    on_records: OnRecords | None,
) -> EvalResult:
    """See Trainer.evaluate."""
    with open_session(job) as session:
        start = restore(
            session,
            "eval",
            input_fn,
            step,
            checkpoint_path,
            check_padding=check_padding,
            on_records=bool(on_records),
        )
        with session.supervisor.leaving():
            evaluation = Evaluation(session, start.opened, start.state, start.step, on_records)
        due = start.opened.source.info.num_records
        with RecordsLine("evaluated", due, shown=jax.process_index() == 0) as line:
            result = replace(
                evaluation.epoch(on_counted=line.add), name=name, checkpoint_path=checkpoint_path
            )
        if check_padding:
            compare_paddings(evaluation, result)
        for_best = name is None and checkpoint_path is None
        report(session, start.state, result, final=True, for_best=for_best)
    return result


def compare_paddings(evaluation: Evaluation, first: EvalResult) -> None:
    """Runs the epoch again with every other kind of padding.

    EvaluationError, naming a metric and both values, unless each has the bits of `first`, whose
    padding was zeros."""
    if not evaluation.padding_rows:
        log.warning(
            "check_padding: the epoch has no row of padding, so nothing was checked. Choose an "
            "eval_batch_size that does not divide %d.",
            first.records,
        )
        return
    for padding in range(1, len(PADDINGS)):
        if changed := _changed(first, evaluation.epoch(padding)):
            # The bits may also differ with the same padding: some GPU kernels add in any order.
            if unrelated := _changed(first, evaluation.epoch(0)):
                raise EvaluationError(
                    f"check_padding: two epochs over the same padding differ, too: {unrelated}. "
                    "This program is not deterministic on these devices. Try again with "
                    "XLA_FLAGS=--xla_gpu_deterministic_ops=true."
                )
            raise EvaluationError(
                f"check_padding: with {PADDINGS[padding]} in place of {PADDINGS[0]} in rows of "
                f"padding, {changed}. Some computation mixes the rows of a batch, so padding "
                "affects rows that count. Exclude it there with jnp.where(mask, x, 0), with mask = "
                "batch['_mask'] > 0 in the shape of x; x * mask lets NaN through."
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


def evaluate_continuously(
    job: Job, input_fn: InputFn, name: str | None, timeout_seconds: float, poll_seconds: float
) -> Iterator[EvalResult]:
    """See Trainer.evaluate_continuously. No session is open between two results."""
    with ShortErrors():
        # of epochs, whose data may be elsewhere, it is not known
        end = None if job.config.max_epochs else job.config.max_steps
        last = None
        before: ExactEpoch | None = None
        while end is None or last is None or last < end:
            with open_session(job) as session:
                checkpoints = session.checkpoints
                step = _next_step(session, last, timeout_seconds, poll_seconds)
            if step is None and last is None:
                raise CheckpointError(
                    f"{checkpoints.directory} has no checkpoint, and none came within "
                    f"{timeout_seconds:g} s (timeout_seconds). Is this the work directory that the "
                    "training run writes to?"
                )
            if step is None:
                log.warning(
                    "no new checkpoint for %g s (timeout_seconds); the evaluation ends with step "
                    "%d",
                    timeout_seconds,
                    last,
                )
                return
            try:
                with open_session(job) as session:
                    start = restore(session, "eval", input_fn, step, None)
                    evaluation = Evaluation(session, start.opened, start.state, step, before=before)
                    result = replace(evaluation.epoch(), name=name)
                    final = end is not None and step >= end
                    report(session, start.state, result, final=final, for_best=name is None)
                    before = evaluation.exact_epoch
                    del start, evaluation  # the next state takes the memory of this one
            except (CheckpointError, HostError):
                if session.supervisor.failed or not _removed(checkpoints, step):
                    raise
                log.info(
                    "the checkpoint of step %d was removed while it was read; continuing with a "
                    "newer one",
                    step,
                )
            else:
                last = step
                yield result
        log.info("the checkpoint of step %s is the last (max_steps=%s)", last, end)


def _next_step(
    session: Session, last: int | None, timeout_seconds: float, poll_seconds: float
) -> int | None:
    """The newest checkpoint's step, on every host, once it is newer than `last`; None on a
    timeout."""
    due = time.monotonic()

    def look() -> int | None:
        """Lists the directory at most every poll_seconds."""
        nonlocal due
        if time.monotonic() < due:
            return None
        due = time.monotonic() + poll_seconds
        *skipped, newest = [
            step for step in session.checkpoints.steps() if last is None or step > last
        ] or [None]
        if skipped:
            log.info("evaluating step %s; skipped: the checkpoints of steps %s", newest, skipped)
        return newest

    seconds = session.job.config.stall_seconds
    session.exchange.from_host_0("looking", lambda: True, seconds)
    return session.exchange.from_host_0(
        "next step",
        lambda: session.supervisor.wait(look, timeout_seconds),
        timeout_seconds + seconds,
    )


def _removed(checkpoints: CheckpointManager, step: int) -> bool:
    """Whether this checkpoint is gone: its files may vanish before its directory does."""
    return poll(lambda: step not in checkpoints.steps(), REMOVAL_SECONDS)


@dataclass
class PeriodicEvaluations:
    """Exact epochs of these inputs every `every_steps` of training, and at its end. results: all so
    far."""

    session: Session
    inputs: Mapping[str | None, InputFn]
    every_steps: int | None

    def __post_init__(self) -> None:
        self.opened = {
            name: self.session.open("eval", input_fn) for name, input_fn in self.inputs.items()
        }
        self.results = list[EvalResult]()
        self._epochs = dict[str | None, ExactEpoch]()

    def __call__(
        self, step: int, state: TrainState, stop: Callable[[str], None], /, *, final: bool
    ) -> None:
        """Evaluates the state after this step. stop(why): ends the training after this. final:
        whether the training has ended."""
        first = next(iter(self.opened))
        for name, opened in self.opened.items():
            before = self._epochs.get(name)
            evaluation = Evaluation(self.session, opened, state, step, before=before)
            self._epochs[name] = evaluation.exact_epoch
            result = replace(evaluation.epoch(), name=name)
            self.results.append(result)
            log.info("%s%s", f"{name}: " if name else "", result)
            self.session.ownership.fence()
            report(self.session, state, result, stop, final=final, for_best=name == first)

    def make_up(self, start: int, end: int | None) -> None:
        """Evaluates the checkpoint that a run resumes from, if that was due and has not
        happened."""
        ends = end is not None and start >= end
        checkpoints = self.session.checkpoints
        due = ends or (self.every_steps is not None and start % self.every_steps == 0)
        if due and not checkpoints.was_evaluated(start):
            like = self.session.job.abstract_state(next(iter(self.opened.values())))
            self(start, checkpoints.restore(start, like).state, lambda _: None, final=ends)


def named_inputs(
    inputs: InputFn | Mapping[str, InputFn], name: str | None
) -> Mapping[str | None, InputFn]:
    """The inputs of an evaluation by name: one, or several. OptionError for a name that cannot be
    one."""
    if not isinstance(inputs, Mapping):
        check_name(name)
        return {name: inputs}
    if name is not None or not inputs:
        raise OptionError(
            f"name={name!r} with {len(inputs)} inputs: the keys of a mapping of inputs are the "
            "names."
        )
    for key in inputs:
        check_name(key)
    return {**inputs}


def check_name(name: str | None) -> None:
    """Raises OptionError unless this can name an evaluation: it becomes part of a directory's
    name."""
    fits = isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name)
    if name is not None and not fits:
        raise OptionError(
            f"name={name!r} cannot name a directory. Allowed: up to 100 letters, digits, '.', '_' "
            "and '-'; the events go to <workdir>/eval_<name>."
        )
