"""What a training run does between two dispatches, and when: by steps, by the clock, or because
someone asked.

The trace of profile_steps is in the layout that TensorBoard's profile plugin and XProf read. Only
host 0 traces itself and its devices: all hosts run the same program."""

import shlex
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax

from pipeline.errors import StorageError
from pipeline.logs import logger
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join, write_file
from trainer.config import TrainerConfig, seconds_of
from trainer.hosts.exchange import Decision, Exchange, SharedDecisions
from trainer.loop.dispatching import MEASURED_STEPS

TO_LOOK_AT_IT = (
    "in a new environment: pip install tensorboard tensorboard-plugin-profile && tensorboard "
    "--logdir"
)
log = logger("trainer")


class Due(NamedTuple):
    """What is due after a step. pause: anything at all. ends: whether no step follows, as far as is
    known."""

    pause: bool = False
    save: bool = False
    evaluate: bool = False
    set_pace: bool = False
    ends: bool = False


@dataclass
class Schedule:
    """What is due after each step from `start` to `end` (None: to the end of the input), the same
    on all hosts.

    evaluated: the last step whose evaluation is not due again. evaluate_every: in steps; 0: only at
    the end; None: never. stops: other steps at which to pause. stopped: what ended the run early,
    if anything."""

    config: TrainerConfig
    decisions: SharedDecisions
    start: int
    end: int | None
    evaluated: int = 0
    evaluate_every: int | None = None
    stops: Collection[int] = ()
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._saved = self.start
        self._began = self._saved_at = self.clock()
        self.stopped = Decision()
        self._why = ""

    def stop(self, why: str) -> None:
        """Requests the end of training. The first reason counts, and only host 0's: others may not
        see what it sees."""
        self._why = self._why or why

    def saved(self, step: int) -> None:
        """Notes that the checkpoint of this step is being written."""
        self._saved = step
        self._saved_at = self.clock()

    def due(self, step: int, ended: bool) -> Due:
        """What is due after a step. Call it once per step, in order, and again with `ended` after
        the end of the input. An evaluation is due only once."""
        if ended and self.end is not None:  # asked before, at its last step
            return Due()
        decision = self.decisions.poll(self._decide)
        if decision.stop:
            self.stopped = decision
        ends = ended or step == self.end or bool(self.stopped.stop)
        evaluate = self._evaluates(step, ends)
        by_steps = _falls_on(step, self.config.checkpoint_every_steps)
        save = step > self._saved and (ends or by_steps or decision.save or evaluate)
        timed = self.config.loop_seconds is not None
        set_pace = timed and step == self.start + MEASURED_STEPS != self.end and not ended
        pause = save or evaluate or ends or set_pace or step in self.stops
        return Due(pause, save, evaluate, set_pace, ends)

    def _evaluates(self, step: int, ends: bool) -> bool:
        every = self.evaluate_every
        if every is None or self.stopped.preempted or step <= self.evaluated:
            return False
        if not ends and not _falls_on(step, every):
            return False
        self.evaluated = step
        return True

    def _decide(self) -> Decision:
        if self._why:
            return Decision(True, self._why)
        now = self.clock()
        config = self.config
        if config.max_time and now - self._began >= seconds_of("max_time", config.max_time):
            return Decision(True, f"max_time={config.max_time} is over")
        every = config.checkpoint_every
        return Decision(
            save=bool(every) and now - self._saved_at >= seconds_of("checkpoint_every", every)
        )


def _falls_on(step: int, every: int | None) -> bool:
    return bool(every) and step % every == 0


@dataclass
class Pace:
    """iterations_per_loop="10s": measures single steps, and chooses how many steps of `seconds` in
    total all hosts make per dispatch.

    limit: reduces a number of steps to what fits a dispatch."""

    seconds: float
    limit: Callable[[int], int]
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self._settled = threading.Event()
        self._observed_at = list[float]()
        self._steps = 1

    def steps(self) -> int:
        """The steps per dispatch; the feeder's thread waits here until they are settled."""
        self._settled.wait()
        return self._steps

    def observe(self) -> None:
        """Records the end of a single step."""
        if not self._settled.is_set():
            self._observed_at.append(self.clock())

    def agree(self, exchange: Exchange, seconds: float) -> int:
        """The number that host 0 has measured; HostError on another host that does not get it
        within `seconds`."""
        return exchange.from_host_0("pace", self._measured, seconds)

    def _measured(self) -> int:
        if len(self._observed_at) < 2:  # the first step includes one-time costs
            return 1
        step_seconds = (self._observed_at[-1] - self._observed_at[0]) / (len(self._observed_at) - 1)
        return self.limit(max(1, int(self.seconds / max(step_seconds, 1e-9))))

    def settle(self, steps: int) -> None:
        """Lets the feeder continue."""
        self._steps = steps
        self._settled.set()


class Profile:
    """Traces the part of config.profile_steps within `start`..`end`, the steps of this run, into
    <workdir>/profile.

    stops: the steps after which `at` must be called, while no step is running. Use as a context
    manager: leaving ends a trace that the run did not reach the end of."""

    def __init__(self, config: TrainerConfig, start: int, end: int | None) -> None:
        profiled = config.profile_range or range(0)
        stop = profiled.stop if end is None else min(end, profiled.stop)
        within = range(max(start, profiled.start), stop)
        self.stops = frozenset({within.start, within.stop} if within else ())
        self._first = within.start
        self._steps = config.profile_steps
        self._directory = join(config.workdir, "profile")
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if profiled and not within:
            log.warning(
                "profile_steps=%s: this run trains only steps %d to %s",
                config.profile_steps,
                start + 1,
                "the end of the input" if end is None else end,
            )

    def at(self, step: int) -> None:
        """Begins or ends the trace if this is the step to do so."""
        if step not in self.stops or jax.process_index() > 0:
            return
        if step == self._first:
            self._temporary = tempfile.TemporaryDirectory()  # jax writes to disks only
            jax.profiler.start_trace(self._temporary.name)
        else:
            self._end()

    def _end(self) -> None:
        temporary = self._temporary
        self._temporary = None
        if temporary is None:
            return
        jax.profiler.stop_trace()
        with temporary as directory:
            try:
                self._upload(Path(directory))
            except StorageError as error:
                log.warning("the profile is lost: %s", error)  # not worth ending the training
                return
        log.info(
            "the profile of steps %s is in %s. To look at it, %s %s",
            self._steps,
            self._directory,
            TO_LOOK_AT_IT,
            shlex.quote(self._directory),
        )

    def _upload(self, directory: Path) -> None:
        storage = open_storage(self._directory)
        for file in directory.rglob("*"):
            if file.is_file():
                path = join(self._directory, file.relative_to(directory).as_posix())
                write_file(storage, path, file.read_bytes())

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._end()
