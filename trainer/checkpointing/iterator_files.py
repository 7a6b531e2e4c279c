"""The files of iterator states, in <workdir>/iterators: with them, a training on a program of
tf.data resumes where it was. One for each host and checkpoint, of the two newest checkpoints.

They are beside the checkpoints because each host writes its own, and because a run that cannot
write or read one only resumes more slowly. A checkpoint describes the state that belongs to it, so
that no other is taken for it. NumPy only."""

from collections.abc import Callable, Collection
from typing import Any

from pipeline.errors import CheckpointError, StorageError
from pipeline.logs import logger
from pipeline.shards.frames import crc32c
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join, read_file, write_file
from trainer.reports.workdir import ITERATORS, iterator_file, iterator_step

log = logger("trainer")


class IteratorFiles:
    """Those of one host. fence: raises if this run no longer owns the work directory."""

    def __init__(self, workdir: str, host: int, fence: Callable[[], None]) -> None:
        self._storage = open_storage(workdir)
        self._directory = join(workdir, ITERATORS)
        self._host = host
        self._fence = fence

    def write(self, step: int, data: bytes | None, steps: Callable[[], Collection[int]]) -> None:
        """Writes the state that belongs to the checkpoint of `step`, which is being written, and
        removes those of this host except for the newest of `steps`, the finished checkpoints.
        data: None if it has no state.

        A failure is logged: it makes a resume slow, not wrong."""
        self._fence()
        try:
            if data is not None:
                write_file(self._storage, self._path(step), data)
            before = max((each for each in steps() if each < step), default=step)
            for name in self._storage.list(self._directory):
                if iterator_step(name, self._host) not in (None, step, before):
                    self._storage.delete(join(self._directory, name))
        except (StorageError, CheckpointError) as error:
            log.warning(
                "%s. To resume at step %d, the program has to run again from its beginning",
                error,
                step,
            )

    def resume(self, source: Any, step: int) -> None:
        """Resumes the input from the state that the checkpoint of `step` describes; logs why if it
        cannot. Only a program of tf.data has one."""
        state = getattr(source, "iterator_state", None)
        if state is None:
            return
        path = self._path(step)
        why = "is missing"
        try:
            if data := read_file(self._storage, path):
                if crc32c(data) == state.data_crc:
                    source.resume_with(data)
                    return
                why = "is damaged, or belongs to another checkpoint"
        except StorageError as error:
            why = f"cannot be read: {error}"
        log.warning("%s %s: the program runs again from its beginning", path, why)

    def _path(self, step: int) -> str:
        return join(self._directory, iterator_file(step, self._host))
