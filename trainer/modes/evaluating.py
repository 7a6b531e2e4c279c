"""Evaluations of checkpoints: of one, or, following a training run from another process, of every new one.

Host 0 looks for new checkpoints and tells the other hosts, so all evaluate the same one. Only results are written."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import jax

from pipeline.errors import CheckpointError, HostError, OptionError
from pipeline.logs import logger
from trainer.checkpointing.manager import CheckpointManager, WhichStep
from trainer.cluster.host_registry import poll
from trainer.events.progress import RecordsLine
from trainer.exits import is_apart
from trainer.inputs import InputFn
from trainer.modes.epoch_totals import OnRecords
from trainer.modes.evaluated import Evaluated
from trainer.modes.evaluation import Evaluation, compare_paddings
from trainer.modes.preflight import agree_on
from trainer.modes.session import Session, open_session
from trainer.results import EvalResult
from trainer.setup import Setup
from trainer.user_code import ShortErrors

__all__ = ["Waits", "evaluate", "follow"]

REMOVAL_SECONDS = 10.0  # the longest removal of a checkpoint, from its first file to its last

log = logger("trainer")


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


def evaluate(
    setup: Setup,
    input_fn: InputFn,
    name: str | None,
    step: WhichStep | None,
    checkpoint_path: str | None,
    *,
    check_padding: bool,
    on_records: OnRecords | None,
) -> EvalResult:
    """See Trainer.evaluate."""
    with open_session(setup.config) as session:
        with session.preemption.leavable():
            reading, step = session.reading(setup.config, step, checkpoint_path)
            opened = setup.open("eval", input_fn)
        facts = {"check_padding": check_padding, "checkpoint_path": checkpoint_path}
        facts["on_records"] = "given" if on_records else "not given"
        agree_on(session.watchdog, setup, [opened], step, step, **facts)
        with session.preemption.leavable():
            state = reading.state(setup, opened, step)
            evaluation = Evaluation(session, setup, opened, state, step, input_fn, on_records)
        due = opened.source.info.num_records
        due = due and due * len(setup.config.evaluated_models)
        with RecordsLine("evaluated", due, shown=jax.process_index() == 0) as line:
            result = evaluation.epoch(on_counted=line.add)
        if check_padding:
            compare_paddings(evaluation, result)
        evaluated = Evaluated(session, setup, evaluation.state, result, final=True)
        evaluated.tell(name)
        if name is None and checkpoint_path is None:  # what keep_best uses
            evaluated.record()
    return result


def follow(setup: Setup, input_fn: InputFn, name: str | None, waits: Waits) -> Iterator[EvalResult]:
    """The result of each new checkpoint; see Trainer.evaluate_continuously. No call is open between two results."""
    with ShortErrors():
        yield from _results(setup, input_fn, name, waits)


def _results(setup: Setup, input_fn: InputFn, name: str | None, waits: Waits) -> Iterator[EvalResult]:
    end, last = setup.config.max_steps, None
    evaluation: Evaluation | None = None
    while end is None or last is None or last < end:
        with open_session(setup.config) as session:
            checkpoints = session.checkpoints
            step = _next_step(session, last, waits)
        if step is None:
            _say_timeout(checkpoints.directory, last, waits.timeout_seconds)
            return
        try:
            with open_session(setup.config) as session:
                with session.preemption.leavable():
                    opened = setup.open("eval", input_fn)
                agree_on(session.watchdog, setup, [opened], step, step)
                with session.preemption.leavable():
                    state = session.checkpoints.restore(step, setup.abstract_state(opened)).state
                evaluation = Evaluation.of(evaluation, session, setup, opened, state, step, input_fn)
                result = evaluation.epoch()
                ends = end is not None and step >= end
                evaluated = Evaluated(session, setup, evaluation.state, result, final=ends)
                evaluated.tell(name)
                if name is None:  # what keep_best uses
                    evaluated.record()
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
    watchdog = session.watchdog
    store, here, key = watchdog.registry.store, watchdog.registry.key("looking"), watchdog.registry.key("next step")
    if store.index > 0:
        if watchdog.wait(lambda: store.get(here), waits.stall_seconds) is None:
            raise HostError(
                f"host 0 of {store.count} did not start to look for the next checkpoint within "
                f"{waits.stall_seconds:g} s (stall_seconds). Iterate in the same way on every host."
            )
        word = watchdog.wait(lambda: store.get(key), float("inf"))  # if host 0 dies, that is a HostError
        return json.loads(word or "null")
    store.put(here, "")
    step = watchdog.wait(_look_out(session, last, waits.poll_seconds), waits.timeout_seconds)
    store.put(key, json.dumps(step))
    return step


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
