"""--profile_steps: traces a few training steps, in the layout that TensorBoard's profile plugin and XProf read.

Only host 0 traces itself and its devices: all hosts run the same program."""

import tempfile
from pathlib import Path

import jax

from pipeline.errors import StorageError
from pipeline.logs import logger
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import join
from trainer.config import TrainerConfig

__all__ = ["Profile"]

log = logger("trainer")


class Profile:
    """Traces the part of config.profile_steps within `start`..`end`, the steps of this run, into <workdir>/profile.

    stops: the steps after which `at` must be called, while no step is running. Use as a context manager: leaving ends a
    trace that the run did not reach the end of."""

    def __init__(self, config: TrainerConfig, start: int, end: int | None) -> None:
        wanted = config.profile_range or range(0)
        stop = wanted.stop if end is None else min(end, wanted.stop)
        within = range(max(start, wanted.start), stop)
        self.stops = frozenset({within.start, within.stop} if within else ())
        self._within, self._wanted, self._directory = within, config.profile_steps, join(config.workdir, "profile")
        self._mine = jax.process_index() == 0
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._tracing = False
        if wanted and not within:
            to = "the end of the input" if end is None else end
            log.warning("profile_steps=%s: this run trains only steps %d to %s", config.profile_steps, start + 1, to)

    def at(self, step: int) -> None:
        """Begins or ends the trace if this is the step to do so."""
        if step not in self.stops or not self._mine:
            return
        if step == self._within.start:
            self._begin()
        else:
            self._end()

    def _begin(self) -> None:
        if is_remote(self._directory):  # jax writes to disks only
            self._temporary = tempfile.TemporaryDirectory()
        jax.profiler.start_trace(self._temporary.name if self._temporary else self._directory)
        self._tracing = True

    def _end(self) -> None:
        self._tracing = False
        jax.profiler.stop_trace()
        if self._temporary is not None:
            with self._temporary as directory:
                try:
                    self._upload(Path(directory))
                except StorageError as error:
                    log.warning("the profile is lost: %s", error)  # not worth ending the training
                    return
        log.info("the profile of steps %s is in %s", self._wanted, self._directory)

    def _upload(self, directory: Path) -> None:
        storage = open_storage(self._directory)
        for file in (path for path in directory.rglob("*") if path.is_file()):
            with storage.publish(join(self._directory, file.relative_to(directory).as_posix())) as sink:
                sink.write(file.read_bytes())

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._tracing:
            self._end()
