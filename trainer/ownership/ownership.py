"""The right of one call of the trainer to write to its work directory."""

import time
from collections.abc import Callable

from trainer.ownership.process import Process
from trainer.ownership.taking import Taken, take

__all__ = ["Ownership"]


class Ownership:
    """Of nothing at first: evaluations never take it. Use as a context manager: leaving releases the directory."""

    def __init__(self, workdir: str) -> None:
        self._workdir = str(workdir)
        self._taken: Taken | None = None

    def take(self, pause: Callable[[float], object] = time.sleep) -> Process | None:
        """Owns the directory from now on; the process that lost it, if one did. Raises what `taking.take` raises."""
        self._taken = take(self._workdir, pause=pause)
        return self._taken.lost

    def fence(self) -> None:
        """To be called before anything of a training is published. OwnerError where another run has taken over."""
        if self._taken:
            self._taken.lease.fence()

    def __enter__(self) -> "Ownership":
        return self

    def __exit__(self, *_: object) -> None:
        if self._taken:
            self._taken.lease.release()
