"""Whether a work directory can be used. Needs no JAX: commands look before they import it, calls before they read."""

import secrets
from pathlib import Path

from pipeline.shards.errors import StorageError
from pipeline.shards.os_errors import explained
from pipeline.shards.schemes import is_remote, open_storage
from pipeline.shards.storage import join
from trainer.checkpointing.listing import checkpoints_directory, finished_steps, required_step

__all__ = ["check_checkpoint", "check_writable", "make_mark"]


def check_checkpoint(workdir: str, restore_step: int | None = None, *, required: bool) -> None:
    """CheckpointError unless there is a checkpoint where one is `required`, and that of restore_step or a later one.

    StorageError where a bucket cannot be listed."""
    steps = finished_steps(workdir)
    if required or (restore_step is not None and max(steps, default=0) <= restore_step):
        required_step(checkpoints_directory(workdir), steps, restore_step)


def check_writable(workdir: str) -> None:
    """Makes the directory if it is not there. StorageError where it cannot be written to.

    A bucket is not tried: that would be two requests more, and a call tries it before it compiles."""
    if not is_remote(workdir):
        name = f".try-{secrets.token_hex(8)}"
        make_mark(workdir, name)
        Path(workdir, name).unlink(missing_ok=True)


def make_mark(workdir: str, name: str) -> None:
    """An empty file in the work directory, which is made if it is not there. StorageError where it cannot be."""
    try:
        if is_remote(workdir):
            open_storage(workdir).create(join(workdir, name), b"")
        else:  # create would sync the disk: seconds where it is busy, for a file that nobody keeps
            Path(workdir).mkdir(parents=True, exist_ok=True)
            Path(workdir, name).touch()
    except OSError as error:
        raise StorageError(f"cannot write to workdir={workdir}: {explained(error)}") from error
