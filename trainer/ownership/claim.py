"""Marks a work directory as one of runs, unless it has files of others. Needs no JAX: commands check before they import
it, calls before they read."""

import secrets
from pathlib import Path

from pipeline.errors import OptionError, StorageError
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import explained, join
from trainer.checkpointing.listing import finished_steps
from trainer.workdir import EVAL_RESULT, OWNERS, TRAIN, eval_name, replaced_by_runs


def check_writable(workdir: str) -> None:
    """Creates the directory if necessary. StorageError if it is not writable.

    A bucket is not checked: that would take two more requests, and a call checks it before it compiles."""
    if not is_remote(workdir):
        name = f".try-{secrets.token_hex(8)}"
        make_mark(workdir, name)
        Path(workdir, name).unlink(missing_ok=True)


def claim(workdir: str) -> None:
    """Marks the directory as one of runs, before the first of them writes there.

    OptionError if it has a file that runs would replace, but that no run wrote."""
    storage = open_storage(workdir)
    files, directories = storage.entries(workdir)
    if OWNERS in directories or finished_steps(workdir):
        return
    for name in (name for name in directories if name == TRAIN or eval_name(name) is not None):
        files |= {f"{name}/{file}": stat for file, stat in storage.list(join(workdir, name)).items()}
    taken = list(filter(replaced_by_runs, files))
    # Earlier releases marked only the directories of trainings, not those of evaluations.
    if taken and not (EVAL_RESULT in files and b'"proven"' in storage.read(join(workdir, EVAL_RESULT))):
        raise OptionError(
            f"workdir={workdir} has a file {taken[0]}, which no run of infeed wrote, and which this run would replace. "
            "Move the file, or give another workdir."
        )
    make_mark(workdir, f"{OWNERS}/runs")


def make_mark(workdir: str, name: str) -> None:
    """Creates an empty file in the work directory, and that if necessary. StorageError if this fails."""
    try:
        if is_remote(workdir):
            open_storage(workdir).create(join(workdir, name), b"")
        else:  # create would sync the disk: seconds on a busy disk, for a temporary file
            Path(workdir, name).parent.mkdir(parents=True, exist_ok=True)
            Path(workdir, name).touch()
    except OSError as error:
        raise StorageError(f"cannot write to workdir={workdir}: {explained(error)}") from error
