"""Lists the checkpoints of a work directory by the names in it, and finds one by its path.

For the trainer, processes that follow a run, and tools. Needs no jax, devices or other hosts."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from pipeline.errors import CheckpointError, OptionError
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import Storage, in_parallel, join
from trainer.reports.workdir import (
    CHECKPOINTS,
    CONTENTS,
    STATE,
    STEP_COMMITTED,
    STEP_METADATA,
    is_of_orbax,
    is_step,
    is_step_renamed_later,
)

WhichStep = int | Literal["best"]
"""Of a checkpoint. best: by keep_best."""


def which_step(text: str | None) -> WhichStep | None:
    """What --step says. Raises OptionError."""
    if text in (None, "best"):
        return text
    if not text.isdecimal():
        raise OptionError(f"--step={text}: give the number of a step, or best.")
    return int(text)


def checkpoints_directory(workdir: str) -> str:
    """The directory of the checkpoints in a work directory."""
    return join(str(workdir), CHECKPOINTS)


def finished_steps(workdir: str) -> list[int]:
    """Steps of the finished checkpoints, ascending, without those being written or left unfinished
    by a kill."""
    storage = open_storage(workdir)
    directory = checkpoints_directory(workdir)
    # This also checks the bucket: the error reports one that is missing or inaccessible.
    if not storage.exists(directory):
        return []
    return sorted(int(name) for name, kind in kinds(workdir).items() if kind == "finished")


def kinds(workdir: str) -> Mapping[str, str]:
    """Name -> "finished", "unfinished" or "other", if it is none, of each directory with the name
    of a checkpoint."""
    storage = open_storage(workdir)
    directory = checkpoints_directory(workdir)
    names = [
        name
        for name in storage.entries(directory)[1]
        if name.isdecimal() or is_step_renamed_later(name)
    ]
    # on a disk, threads would cost more than they save
    in_turn = in_parallel if storage.remote else map
    return dict(zip(names, in_turn(partial(_kind, storage, directory), names), strict=True))


def _kind(storage: Storage, directory: str, name: str) -> str:
    files, directories = storage.entries(join(directory, name))
    names = {*files, *directories}
    if storage.remote and STEP_COMMITTED not in files:
        unfinished = (
            is_step(name)
            and (STEP_METADATA in files or not names)
            and {STATE, CONTENTS}.issuperset(directories)
        )
    elif not is_step(name):
        unfinished = is_step_renamed_later(name) and not Path(directory, name).is_symlink()
    elif names <= {STEP_METADATA, STEP_COMMITTED}:
        # as a kill may leave it that comes before the first item, or after the last was removed
        unfinished = True
    else:
        items = {STATE, CONTENTS}.intersection(directories)
        inside = set[str]()
        for item in items:
            inside.update(*storage.entries(join(directory, f"{name}/{item}")))
        if items and (STEP_METADATA in files or not inside or is_of_orbax(inside)):
            return "finished"  # or half removed, or damaged, which is an error where it is read
        unfinished = False
    return "unfinished" if unfinished else "other"


def required_step(directory: str, steps: Sequence[int], step: int | None) -> int:
    """Returns `step`, default the newest of `steps`. Raises CheckpointError, which lists them, if
    missing."""
    if not steps:
        workdir = Path(directory).parent
        missing = f"{directory} has no checkpoint"
        if not is_remote(directory) and not workdir.is_dir():
            missing = f"{workdir} is no directory"
        raise CheckpointError(f"{missing}. Train first, or give the right workdir.")
    if step is not None and step not in steps:
        raise CheckpointError(f"{directory} has no checkpoint of step {step}. It has: {steps}.")
    return steps[-1] if step is None else step


def check_checkpoint(workdir: str, restore_step: int | None = None, *, required: bool) -> None:
    """CheckpointError if a checkpoint is `required` and there is none, or none of restore_step or
    later.

    StorageError if a bucket cannot be listed."""
    steps = finished_steps(workdir)
    if required or (restore_step is not None and max(steps, default=0) <= restore_step):
        required_step(checkpoints_directory(workdir), steps, restore_step)


def check_files(storage: Storage, directory: str, prefix: str = "") -> None:
    """Raises StorageError for a named pipe or device in or below a directory of a disk: libraries
    would wait for it.

    prefix: only what begins with it."""
    files, directories = ({}, ()) if storage.remote else storage.entries(directory)
    for name, stat in files.items():
        if name.startswith(prefix) and not stat.bytes:  # as pipes are listed
            storage.stat(join(directory, name))
    for name in directories:
        if name.startswith(prefix):
            check_files(storage, join(directory, name))


def checkpoint_bytes(storage: Storage, directory: str) -> int:
    """The total size of all files in and below a directory."""
    files, directories = storage.entries(directory)
    below = in_parallel(lambda name: checkpoint_bytes(storage, join(directory, name)), directories)
    return sum(stat.bytes for stat in files.values()) + sum(below)


class Elsewhere(NamedTuple):
    """A checkpoint of the training in `workdir`."""

    workdir: str
    step: int


def find_elsewhere(checkpoint_path: str, step: int | None = None) -> Elsewhere:
    """The newest checkpoint in a work directory, that of `step`, or the one at
    <workdir>/checkpoints/<step>.

    Raises CheckpointError if there is none."""
    path = str(checkpoint_path).rstrip("/")
    directory, _, name = path.rpartition("/")
    workdir = directory.rpartition("/")[0] or "."
    if name.isdecimal() and checkpoints_directory(workdir) in (directory, f"./{directory}"):
        if step not in (None, int(name)):
            raise CheckpointError(
                f"checkpoint_path={path!r} is not of step {step}. Give one of the two."
            )
        return Elsewhere(workdir, required_step(directory, finished_steps(workdir), int(name)))
    steps = finished_steps(path)
    if not steps:
        raise CheckpointError(
            f"checkpoint_path={path!r} has no checkpoint. Give the work directory of a run, or a "
            "checkpoint in it: <workdir>/checkpoints/<step>."
        )
    return Elsewhere(path, required_step(checkpoints_directory(path), steps, step))
