"""What the files of a work directory tell about its training: scalars, checkpoints, and the processes that trained one
after the other; and the time axis that follows from them. Needs neither JAX nor TensorFlow."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipeline.errors import CheckpointError, OptionError
from pipeline.shards.typed_json import JsonFile
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import Storage, in_parallel, join
from trainer.checkpointing.contents import read_contents
from trainer.checkpointing.listing import Evaluations, Metrics, checkpoints_directory, finished_steps
from trainer.events.metrics_lines import Column, Progress, ignored, metrics_bytes, read_columns
from trainer.history.segments import Command, End, History, Start, read_history
from trainer.workdir import EVAL_RESULT, METRICS, SEGMENTS, TRAIN, TRAIN_RESULT, eval_name

How = Literal["finished", "preempted", "interrupted", "stopped", "killed", "no end recorded"]
PREEMPTED, INTERRUPTED = ("preempted: ", "SIGTERM"), ("SIGINT",)
EVALUATION = "evaluation"
"""The title of the evaluation without a name."""
UNITS = {"days": 86_400.0, "hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
ENDS = ("preempted", "interrupted", "killed")
AFTER: Mapping[How, str] = {"preempted": "a preemption", "interrupted": "an interrupt", "killed": "being killed"}


@dataclass(frozen=True)
class Scalars:
    """What <workdir>/train, eval or eval_<name> has: name -> column, and when the steps were reported, as time.time();
    older versions wrote no times."""

    columns: Mapping[str, Column]
    times: Column

    @property
    def untimed(self) -> bool:
        """Whether there are steps without a time."""
        return any(np.isnan(self.times.at(column.steps)).any() for column in self.columns.values())


@dataclass(frozen=True)
class Attempt:
    """A process that trained from the state after a step, from and until these times, as time.time().

    reached: the last step that it is known to have trained. ended: when it ended; for a killed one, when it wrote the
    last points that were not trained again; None if not known. how: killed, if another process came later and this one
    left no end; the last process without one has "no end recorded": it runs, or was killed. reason: the history's, ""
    if there is none."""

    start: Start
    began: float
    reached: int
    ended: float | None
    how: How
    reason: str = ""


@dataclass(frozen=True)
class TrainingRun:
    """A work directory. name: distinguishes it from the others. evaluations: by the title of each.

    attempts: the processes that trained, the earliest first. checkpoints: step -> contents; of a damaged one, the
    error as {"damage": ...}. eval_result, train_result: of the newest evaluation and training; {} if there is none."""

    workdir: str
    name: str
    history: History
    train: Scalars
    evaluations: Mapping[str, Scalars]
    attempts: Sequence[Attempt]
    checkpoints: Mapping[int, Mapping[str, Any]]
    measured: Metrics
    eval_result: Mapping[str, Any]
    train_result: Mapping[str, Any]

    @property
    def began(self) -> float | None:
        """When training began, as time.time(); None if not known."""
        known = [attempt.began for attempt in self.attempts[:1]] + self.train.times.values[:1].tolist()
        return min(known, default=None)

    @property
    def last_step(self) -> int:
        """The last step of the newest process; without a history, that of the newest checkpoint if it is later."""
        reported = [int(column.steps[-1]) for column in self.train.columns.values()]
        known = [self.attempts[-1].reached] if self.history.starts else self.checkpoints
        return max([*reported, *known], default=0)

    @property
    def settings(self) -> Mapping[str, Any]:
        """Of the newest process: the TrainerConfig's, or those of the newest checkpoint."""
        newest = self._newest
        return newest.get("config", {}) if not self.history.starts else self.history.starts[-1].settings

    @property
    def versions(self) -> Mapping[str, str]:
        """Of the libraries in the newest process."""
        return self._newest.get("versions", {}) if not self.history.starts else self.history.starts[-1].versions

    @property
    def command(self) -> Command | None:
        """What started the newest process; None if that is not known."""
        return self.history.starts[-1].command if self.history.starts else None

    @property
    def bad_records(self) -> Mapping[int, str]:
        """Number -> reason of the records that the input of the newest process has left out."""
        given = self.history.starts[-1].input if self.history.starts else None
        return {} if given is None else self.history.bad_records(given["fingerprint"])

    @property
    def _newest(self) -> Mapping[str, Any]:
        return self.checkpoints[max(self.checkpoints)] if self.checkpoints else {}


def bytes_to_read(workdir: str) -> int:
    """The size of the files whose length grows with the training."""
    return sum(metrics_bytes(join(workdir, name)) for name in (TRAIN, *_evaluations(workdir)))


def read_run(workdir: str, name: str, progress: Progress = ignored) -> TrainingRun:
    """Reads a work directory. Raises OptionError if it has no training, CheckpointError if a file is damaged."""
    storage = open_storage(workdir)
    if not storage.remote and not Path(workdir).is_dir():
        raise OptionError(f"{workdir} is not a directory. Give the --workdir of a training.")
    history, steps = read_history(workdir), finished_steps(workdir)
    train = _scalars(join(workdir, TRAIN), progress)
    if not (history.starts or steps or train.columns):
        raise OptionError(
            f"{workdir} has no training: neither {SEGMENTS} nor {TRAIN}/{METRICS} nor checkpoints. Give the --workdir "
            "of a training."
        )
    return TrainingRun(
        workdir=workdir,
        name=name,
        history=history,
        train=train,
        evaluations={_title(each): _scalars(join(workdir, each), progress) for each in _evaluations(workdir)},
        attempts=list(attempts_of(history, train.times)),
        checkpoints=dict(zip(steps, in_parallel(lambda step: _contents(storage, workdir, step), steps), strict=True)),
        measured=Evaluations(workdir).read(),
        eval_result=_result(storage, workdir, EVAL_RESULT),
        train_result=_result(storage, workdir, TRAIN_RESULT),
    )


def attempts_of(history: History, times: Column) -> Iterator[Attempt]:
    """The earliest first. times: of the points, which tell how far a process came that left no end."""
    lines = [line for line in history.lines if isinstance(line, Start | End)]
    for line, following in pairwise([*lines, None]):
        if not isinstance(line, Start):
            continue
        began = _seconds(line.time)
        if isinstance(following, End):
            how, ended = _how(following.reason), _seconds(following.time)
            yield Attempt(line, began, following.step, ended, how, reason=following.reason)
            continue
        until = float("inf") if following is None else _seconds(following.time)
        own = (times.steps > line.step) & (times.values >= began) & (times.values < until)
        reached, ended = (max(times.steps[own]), max(times.values[own])) if own.any() else (line.step, None)
        if following is not None and line.run and following.parent == line.run:
            reached = max(reached, following.step)  # it saved that
        if following is not None:  # it may have gone beyond the step that the next one began with
            reached = max(reached, following.reported or 0)
        yield Attempt(line, began, int(reached), ended, "killed" if following else "no end recorded")


def _how(reason: str) -> How:
    if reason == "finished":
        return "finished"
    if reason.startswith(PREEMPTED):
        return "interrupted" if "SIGINT" in reason else "preempted"
    return "interrupted" if reason.startswith(INTERRUPTED) else "stopped"


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


def names_of(workdirs: Sequence[str]) -> list[str]:
    """The shortest parts of the paths that tell them apart: for runs/a/1 and runs/b/1, "a" and "b".

    Raises OptionError if a directory is given twice."""
    paths = [path.rstrip("/") if is_remote(path) else str(Path(path).absolute().resolve()) for path in workdirs]
    for number, path in enumerate(paths):
        if path in paths[:number]:
            raise OptionError(f"{workdirs[number]} is given twice. Give each work directory once.")
    parts = [path.split("/") for path in paths]
    shortest = min(map(len, parts))
    for size in range(1, shortest + 1):
        for last in range(shortest - size + 1):
            names = ["/".join(each[len(each) - last - size : len(each) - last]) for each in parts]
            if all(names) and len({*names}) == len(names):
                return names
    return paths


def _evaluations(workdir: str) -> list[str]:
    """The directories of evaluations, the unnamed one first."""
    _, names = open_storage(workdir).entries(workdir)
    return [name for name in names if eval_name(name) is not None]


def _title(directory: str) -> str:
    return f"{EVALUATION} {eval_name(directory)}".rstrip()


def _scalars(directory: str, progress: Progress) -> Scalars:
    columns = read_columns(directory, progress)
    times = columns.pop("time", None) or Column(np.array([], np.int64), np.array([]))
    return Scalars(columns, times)


def _contents(storage: Storage, workdir: str, step: int) -> Mapping[str, Any]:
    try:
        return read_contents(storage, checkpoints_directory(workdir), step)
    except CheckpointError as error:
        return {"damage": str(error)}


def _result(storage: Storage, workdir: str, name: str) -> Mapping[str, Any]:
    path = join(workdir, name)
    if not storage.exists(path):
        return {}
    file = JsonFile(path, CheckpointError, "Remove it: the next evaluation or training writes it again.")
    return file.read(storage.read(path), dict[str, Any])


@dataclass(frozen=True)
class Clock:
    """Counts from the beginning of each run, in this unit."""

    unit: str

    @classmethod
    def of_runs(cls, runs: Sequence[TrainingRun]) -> "Clock":
        """In the largest unit that fits into the longest run at least twice."""
        longest = max((_seconds_of(run) for run in runs), default=0.0)
        return cls(next((unit for unit, seconds in UNITS.items() if longest >= 2 * seconds), "seconds"))

    def of(self, run: TrainingRun, times: np.ndarray) -> np.ndarray:
        """These times, as of time.time(), since the run began; NaN if that is not known."""
        return (times - (np.nan if run.began is None else run.began)) / UNITS[self.unit]

    def parts(self, run: TrainingRun, x: np.ndarray, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """The points of each process: nothing was trained between them."""
        resumed = self.of(run, np.array([attempt.began for attempt in run.attempts[1:]]))
        cuts = np.searchsorted(x, resumed)
        return [part for part in zip(np.split(x, cuts), np.split(y, cuts), strict=True) if len(part[0])]

    def marks(self, run: TrainingRun) -> dict[str, list[float]]:
        """What happened -> when."""
        found: dict[str, list[float]] = {}
        for attempt in run.attempts:
            marked = attempt.how in ENDS if attempt is run.attempts[-1] else attempt.how != "finished"
            if marked and attempt.ended is not None:
                found.setdefault(attempt.how if attempt.how in ENDS else "ended", []).append(attempt.ended)
        found["resumed"] = [attempt.began for attempt in run.attempts[1:]]
        return {what: self.of(run, np.array(times)).tolist() for what, times in found.items() if times}

    def saved(self, run: TrainingRun) -> list[float]:
        """When the checkpoints were saved."""
        times = [
            datetime.fromisoformat(page["time"]).timestamp() for page in run.checkpoints.values() if "time" in page
        ]
        return sorted(self.of(run, np.array(times)).tolist())

    @staticmethod
    def resumed_steps(run: TrainingRun) -> dict[str, list[float]]:
        """What happened -> after which steps a process resumed."""
        found: dict[str, list[float]] = {}
        for before, after in pairwise(run.attempts):
            what = f"resumed after {AFTER[before.how]}" if before.how in AFTER else "resumed"
            found.setdefault(what, []).append(after.start.step)
        return found


def _seconds_of(run: TrainingRun) -> float:
    """From the beginning of a run to the last that is known of it."""
    if run.began is None:
        return 0.0
    ends = [attempt.ended or attempt.began for attempt in run.attempts]
    return max([*ends, *run.train.times.values[-1:].tolist()]) - run.began


def duration(run: TrainingRun) -> str:
    """How long a run has taken so far, with the time between its processes: 1:02:03."""
    return str(timedelta(seconds=round(_seconds_of(run))))


def utc(time: float | None) -> str:
    """A time, as of time.time(), to read."""
    return "" if time is None else f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S}"
