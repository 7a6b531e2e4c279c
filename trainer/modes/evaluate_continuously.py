"""Evaluation of every new checkpoint, as another process saves them.

Host 0 looks for new checkpoints and tells the other hosts, so all evaluate the same one. Only results are written."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from pipeline.errors import CheckpointError, HostError, OptionError
from pipeline.logs import logger
from trainer.checkpointing.manager import CheckpointManager
from trainer.cluster.host_registry import poll
from trainer.exits import is_apart
from trainer.inputs import InputFn
from trainer.job import Job
from trainer.modes.evaluate import FinishedEvaluation
from trainer.modes.evaluation import Evaluation
from trainer.modes.restoring import restore
from trainer.modes.session import Session, open_session
from trainer.results import EvalResult
from trainer.user_code import ShortErrors

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
