"""The trace of TrainerConfig.profile_steps, in the layout that TensorBoard's profile plugin and
XProf read.

Only host 0 traces itself and its devices: all hosts run the same program."""

import shlex
import tempfile
from pathlib import Path

import jax

from pipeline.errors import StorageError
from pipeline.logs import logger
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join, write_file
from trainer.config import TrainerConfig

TO_LOOK_AT_IT = (
    "in a new environment: pip install tensorboard tensorboard-plugin-profile && tensorboard "
    "--logdir"
)
log = logger("trainer")


class Profile:
    """Traces the part of config.profile_steps within `start`..`end`, the steps of this run, into
    <workdir>/profile.

    stops: the steps after which `at` must be called, while no step is running. Use as a context
    manager: leaving ends a trace that the run did not reach the end of."""

    def __init__(self, config: TrainerConfig, start: int, end: int | None) -> None:
        profiled = config.profile_range or range(0)
        stop = profiled.stop if end is None else min(end, profiled.stop)
        within = range(max(start, profiled.start), stop)
        self.stops = frozenset({within.start, within.stop} if within else ())
        self._first = within.start
        self._steps = config.profile_steps
        self._directory = join(config.workdir, "profile")
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if profiled and not within:
            log.warning(
                "profile_steps=%s: this run trains only steps %d to %s",
                config.profile_steps,
                start + 1,
                "the end of the input" if end is None else end,
            )

    def at(self, step: int) -> None:
        """Begins or ends the trace if this is the step to do so."""
        if step not in self.stops or jax.process_index() > 0:
            return
        if step == self._first:
            self._temporary = tempfile.TemporaryDirectory()  # jax writes to disks only
            jax.profiler.start_trace(self._temporary.name)
        else:
            self._end()

    def _end(self) -> None:
        temporary = self._temporary
        self._temporary = None
        if temporary is None:
            return
        jax.profiler.stop_trace()
        with temporary as directory:
            try:
                self._upload(Path(directory))
            except StorageError as error:
                log.warning("the profile is lost: %s", error)  # not worth ending the training
                return
        log.info(
            "the profile of steps %s is in %s. To look at it, %s %s",
            self._steps,
            self._directory,
            TO_LOOK_AT_IT,
            shlex.quote(self._directory),
        )

    def _upload(self, directory: Path) -> None:
        storage = open_storage(self._directory)
        for file in directory.rglob("*"):
            if file.is_file():
                path = join(self._directory, file.relative_to(directory).as_posix())
                write_file(storage, path, file.read_bytes())

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._end()
