"""Publishes checkpoints only for the owner of the work directory, and removes what a lost owner left unfinished."""

import shutil
from collections.abc import Callable
from typing import Any

from orbax.checkpoint.path import atomicity

from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import join
from trainer.checkpointing.bucket_path import orbax_path
from trainer.checkpointing.listing import checkpoints_directory, finished_steps

__all__ = ["fenced_path", "remove_unfinished"]


def fenced_path(workdir: str, fence: Callable[[], None]) -> type[Any]:
    """Orbax's temporary path for this directory; calls the fence just before publishing, in the writing thread."""
    kind: Any = atomicity.CommitFileTemporaryPath if is_remote(workdir) else atomicity.AtomicRenameTemporaryPath

    class Fenced(kind):
        async def finalize(self) -> None:
            fence()
            await super().finalize()

    return Fenced


def remove_unfinished(workdir: str) -> None:
    """Removes unfinished checkpoints. A process that still writes one finds nothing to publish."""
    directory = checkpoints_directory(workdir)
    finished = {str(step) for step in finished_steps(workdir)}
    for name in open_storage(workdir).entries(directory)[1]:
        if name.partition(".")[0].isdecimal() and name not in finished:
            path = join(directory, name)
            if is_remote(workdir):
                orbax_path(path).rmtree()
            else:  # fails while the directory is written to; the fence stops that writer
                shutil.rmtree(path, ignore_errors=True)
