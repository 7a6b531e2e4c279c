"""What the files of a work directory tell about its training. Needs neither JAX nor TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import CheckpointError, OptionError
from pipeline.shards.typed_json import JsonFile
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import Storage, in_parallel, join
from trainer.checkpointing.contents import read_contents
from trainer.checkpointing.listing import checkpoints_directory, finished_steps
from trainer.checkpointing.retention import Evaluations, Metrics
from trainer.events.columns import Column, read_columns
from trainer.events.event_times import EventTimes, read_event_times
from trainer.events.growing_files import Progress, ignored, matching
from trainer.history.segments import Command, History, read_history
from trainer.pages.attempts import Attempt, attempts_of
from trainer.workdir import EVAL_RESULT, EVENTS, METRICS, SEGMENTS, TRAIN, TRAIN_RESULT, eval_name

__all__ = ["EVALUATION", "Run", "Scalars", "bytes_to_read", "names_of", "read_run"]

EVALUATION = "evaluation"
"""The title of the evaluation without a name."""


@dataclass(frozen=True)
class Scalars:
    """What <workdir>/train, eval or eval_<name> has: name -> column, and when the steps were reported."""

    columns: Mapping[str, Column]
    times: EventTimes


@dataclass(frozen=True)
class Run:
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
        return self.attempts[0].began if self.attempts else None

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
    directories = [join(workdir, name) for name in (TRAIN, *_evaluations(workdir))]
    return sum(sum(matching(directory, prefix).values()) for directory in directories for prefix in (METRICS, EVENTS))


def read_run(workdir: str, name: str, progress: Progress = ignored) -> Run:
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
    return Run(
        workdir,
        name,
        history,
        train,
        {_title(each): _scalars(join(workdir, each), progress) for each in _evaluations(workdir)},
        attempts_of(history, train.times.processes),
        dict(zip(steps, in_parallel(lambda step: _contents(storage, workdir, step), steps), strict=True)),
        Evaluations(workdir).read(),
        _result(storage, workdir, EVAL_RESULT),
        _result(storage, workdir, TRAIN_RESULT),
    )


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
    return Scalars(read_columns(directory, progress), read_event_times(directory, progress))


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
