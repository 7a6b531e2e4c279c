"""Publishes checkpoints only for the owner of the work directory, and removes what a lost owner left unfinished."""

import shutil
from collections.abc import Callable
from typing import Any

from orbax.checkpoint.path import atomicity

from pipeline.errors import CheckpointError
from pipeline.storage.schemes import is_remote
from pipeline.storage.storage import join
from trainer.checkpointing.bucket_path import orbax_path
from trainer.checkpointing.listing import checkpoints_directory, kinds

__all__ = ["check_directory", "fenced_path", "remove_unfinished"]


def fenced_path(workdir: str, fence: Callable[[], None]) -> type[Any]:
    """Orbax's temporary path for this directory; calls the fence just before publishing, in the writing thread."""
    kind: Any = atomicity.CommitFileTemporaryPath if is_remote(workdir) else atomicity.AtomicRenameTemporaryPath

    class Fenced(kind):
        async def finalize(self) -> None:
            fence()
            await super().finalize()

    return Fenced


def check_directory(workdir: str) -> None:
    """Raises CheckpointError for a directory that has a number for its name but is no checkpoint: Orbax would take it
    for one, and remove it."""
    if others := [name for name, kind in kinds(workdir).items() if kind == "other" and name.isdecimal()]:
        path = join(checkpoints_directory(workdir), others[0])
        raise CheckpointError(f"{path} has the name of a checkpoint, but is none. Move it, or give another workdir.")


def remove_unfinished(workdir: str) -> None:
    """Removes unfinished checkpoints. A process that still writes one finds nothing to publish."""
    for path in (
        join(checkpoints_directory(workdir), name) for name, kind in kinds(workdir).items() if kind == "unfinished"
    ):
        if is_remote(workdir):
            orbax_path(path).rmtree()
        else:  # fails while the directory is written to; the fence stops that writer
            shutil.rmtree(path, ignore_errors=True)
