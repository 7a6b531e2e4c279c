"""Publishes checkpoints only for the owner of the work directory, and removes what a lost owner left unfinished."""

import shutil
from collections.abc import Callable
from typing import Any

from orbax.checkpoint.path import atomicity

from pipeline.storage.schemes import is_remote
from trainer.checkpointing.bucket_path import orbax_path
from trainer.checkpointing.listing import unfinished

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
    for path in unfinished(workdir):
        if is_remote(workdir):
            orbax_path(path).rmtree()
        else:  # fails while the directory is written to; the fence stops that writer
            shutil.rmtree(path, ignore_errors=True)
