"""The right of one call of the trainer to write to its work directory."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from trainer.ownership.process import Process
from trainer.ownership.taking import Taken, take

__all__ = ["Ownership"]


class Ownership(AbstractContextManager):
    """Owns nothing at first: evaluations never take the directory. Leaving the context manager releases it."""

    def __init__(self, workdir: str) -> None:
        self._workdir = str(workdir)
        self._taken: Taken | None = None

    def take(self, pause: Callable[[float], object] = time.sleep) -> Process | None:
        """Takes the directory; returns the process that lost it, if any. Raises what `taking.take` raises."""
        self._taken = take(self._workdir, pause=pause)
        return self._taken.lost

    def fence(self) -> None:
        """Call it before a training run publishes anything. OwnerError if another run has taken over."""
        if self._taken:
            self._taken.lease.fence()

    def __exit__(self, *_: object) -> None:
        if self._taken:
            self._taken.lease.release()
