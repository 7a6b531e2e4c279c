"""Saves the model's state, the input's position and the settings, in the background with Orbax, and
restores them."""

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from pipeline.checks import did_you_mean
from pipeline.errors import CheckpointError, InfeedError, OptionError, OwnerError
from pipeline.logs import logger
from pipeline.shards.typed_json import sealed
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join
from trainer.checkpointing import keeping, listing, orbax_paths
from trainer.checkpointing.arrays import (
    ContentsSave,
    Saved,
    begin_sums,
    check_model,
    check_numbers,
    item_handlers,
    list_arrays,
    mesh_of,
)
from trainer.checkpointing.contents import check_tree, read_back, read_contents, versions
from trainer.checkpointing.kept_data import checksum
from trainer.config import TrainerConfig
from trainer.hosts.activity import Activity
from trainer.reports.workdir import CONTENTS, STATE
from trainer.task import TrainState

log = logger("trainer")


class CheckpointManager:
    """The checkpoints of a work directory. Use as a context manager: leaving waits for the last
    write.

    Listing and reading create nothing and wait for no process but the hosts of this run. fence:
    called before anything is published or removed, in the thread that does it; it raises if this
    run no longer owns the work directory. activity: of the call."""

    def __init__(self, config: TrainerConfig, fence: Callable[[], None] = lambda: None) -> None:
        self.activity = Activity()
        self._config = config
        self.workdir = str(config.workdir)
        self._fence = fence
        self._explaining = partial(
            orbax_paths.as_checkpoint_error, work_seconds=config.work_seconds
        )
        self._path = orbax_paths.orbax_path(listing.checkpoints_directory(self.workdir))
        self.directory = str(self._path)
        self._storage = open_storage(self.workdir)
        self._evaluations = keeping.Evaluations(self.workdir)
        self._manager: ocp.CheckpointManager | None = None
        self._superseded: list[int] = []
        self._unfinished: int | None = None
        self.on_complete: Callable[[int], None] = lambda _: None
        """Called in the main thread with the step of each checkpoint, in order, once readers see
        it."""

    @property
    def manager(self) -> ocp.CheckpointManager:
        """Orbax's manager. The first save creates it: it makes the directory and removes unfinished
        checkpoints."""
        if self._manager is None:
            if jax.process_index() == 0:
                orbax_paths.remove_unfinished(self.workdir)
            options = ocp.CheckpointManagerOptions(
                preservation_policy=keeping.KeepPolicy(
                    self._config.keep_max, self._config.keep_every_steps, self.best, self._is_link
                ),
                enable_async_checkpointing=True,
                create=True,
                # in a bucket, Orbax would remove every directory but a checkpoint
                cleanup_tmp_directories=False,
                temporary_path_class=orbax_paths.fenced_path(self.workdir, self._fence),
                async_options=ocp.options.AsyncOptions(
                    timeout_secs=math.ceil(self._config.work_seconds),
                    barrier_sync_fn=orbax_paths.barrier_of(self._config),
                ),
            )
            with self._explaining("open", self.directory):
                self._manager = ocp.CheckpointManager(
                    self._path, options=options, handler_registry=item_handlers()
                )
        return self._manager

    def _is_link(self, step: int) -> bool:
        return Path(self.directory, str(step)).is_symlink()

    def steps(self) -> list[int]:
        """Steps of the finished checkpoints, ascending."""
        with self._explaining("list", self.directory):
            return listing.finished_steps(self.workdir)

    def require(self, step: listing.WhichStep | None) -> int:
        """Returns `step`, default the newest. Raises CheckpointError, which lists the existing
        steps, if missing."""
        steps = self.steps()
        if step == "best" and (step := self.best(steps)) is None:
            raise CheckpointError(
                f"{self.directory} has no best checkpoint: keep_best={self._config.keep_best!r}. "
                f"Set it to a metric, and evaluate; or give one of the steps {steps}."
            )
        return listing.required_step(self.directory, steps, step)

    def resume_step(self) -> int:
        """The step to resume from: restore_step, else the newest checkpoint's; 0 if there is none.

        Checkpoints after restore_step stay until this run first saves; the log names them. Once it
        has saved, a restart with the same restore_step resumes from the newest, as it would
        otherwise lose the progress since."""
        steps = self.steps()
        restore_step = self._config.restore_step
        if restore_step is None:
            return max(steps, default=0)
        newer = [step for step in steps if step > restore_step]
        if newer and self._resumed_from(restore_step, newer):
            log.warning(
                "a run has already gone back to restore_step=%d, so this one resumes from step %d. "
                "To start at step %d again, remove these from %s: %s",
                restore_step,
                newer[-1],
                restore_step,
                self.directory,
                newer,
            )
            return newer[-1]
        self.require(restore_step)
        for step in filter(self._is_link, newer):
            raise CheckpointError(
                f"restore_step={restore_step} removes the checkpoints after it, but "
                f"{join(self.directory, str(step))} is a link. Remove it."
            )
        if newer:
            self._superseded = newer
            log.warning(
                "going back to step %d. When this run first saves, it removes the checkpoints "
                "after it: %s. To keep them, stop the run before that, or copy them",
                restore_step,
                newer,
            )
        return restore_step

    def _resumed_from(self, restore_step: int, newer: list[int]) -> bool:
        for step in reversed(newer):
            # a damaged one may be why the run goes back
            with suppress(CheckpointError):
                config = read_contents(self._storage, self.directory, step)["config"]
                return config.get("restore_step") == restore_step
        return False

    def saving(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._manager is not None and self._manager.is_saving_in_progress()

    def settle(self, wait: bool = False) -> None:
        """Calls on_complete if the last save has become a complete checkpoint. wait: until it has.

        Raises CheckpointError if it failed, and, on host 0, if the first one of the run cannot be
        read again."""
        if self._unfinished is not None and (wait or not self.saving()):
            step = self._unfinished
            self._unfinished = None
            with self._writing():
                self.manager.wait_until_finished()
                if self.activity.saved is None and jax.process_index() == 0:
                    read_back(self._storage, self.directory, step)
            self.activity.saved = step
            self.on_complete(step)

    def save(self, saved: Saved, verify: Callable[[], None] = lambda: None) -> None:
        """Copies the state and returns; Orbax writes it in the background. Waits for the previous
        one.

        verify: called in the background, on all hosts. If it raises, there is no checkpoint, and
        `settle` raises the error."""
        self._fence()
        self.settle(wait=True)
        page = {
            "step": saved.step,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "mesh": mesh_of(saved.state),
            "config": saved.config,
            "input": saved.input_state,
            "productive_seconds": saved.productive_seconds,
            "run": saved.run,
            "description": self._description,
        }
        arrays = list_arrays(saved.state)
        # The devices begin with the sums now: later steps reuse the memory of the state.
        sums = begin_sums(saved.state)

        def contents() -> dict[str, Any]:
            """Waits for the devices, so it runs in a thread of Orbax's."""
            verify()
            for name, value in sums().items():
                arrays[name]["sum"] = value
            described = page | {"versions": versions(), "arrays": arrays}
            return sealed(json.loads(json.dumps(described)))  # as it will be read: keys are texts

        items = {
            STATE: ocp.args.StandardSave(saved.state),  # pyright: ignore[reportCallIssue]
            CONTENTS: ContentsSave(contents),
        }
        with self._writing():
            self._remove_superseded()
            begun = self.manager.save(saved.step, args=ocp.args.Composite(**items))
        if not begun:
            raise CheckpointError(
                f"{self.directory} did not accept the checkpoint of step {saved.step}. It has: "
                f"{self.steps()}. Another run may be writing there."
            )
        self._unfinished = saved.step

    @cached_property
    def _description(self) -> str:
        """The checksum of what the run has kept of its data, when it first saves."""
        return checksum(self.workdir)

    def _remove_superseded(self) -> None:
        if not self._superseded:
            return
        if jax.process_index() == 0:
            # first: a new checkpoint of such a step is not evaluated
            self._evaluations.drop(self._superseded)
        for step in reversed(self._superseded):  # newest first: if killed, the rest is still a run
            self.manager.delete(step)
        log.info("removed the checkpoints of steps %s", self._superseded)
        self._superseded = []

    def restore(self, step: int, like: TrainState) -> Saved:
        """The checkpoint of `step`, its arrays with the shapes and shardings of `like`.

        Raises CheckpointError: for another model or optimizer, naming an array; for damage, naming
        what is damaged and the previous checkpoint."""
        path = join(self.directory, str(step))
        with self._offering_previous(step):
            page = read_contents(self._storage, self.directory, step)
        # Orbax would notice a wrong shape only while reading, and leave unfinished tasks.
        check_model(path, page["arrays"], like)
        listing.check_files(self._storage, path)
        with self._offering_previous(step):
            check_tree(self._storage, join(path, STATE), page["arrays"])
        advice = f" It may be damaged.{self._previous(step)}"
        with (
            self._explaining("read", path, advice=advice),
            ocp.Checkpointer(ocp.StandardCheckpointHandler()) as reader,
        ):
            args = ocp.args.StandardRestore(like)  # pyright: ignore[reportCallIssue]
            state = reader.restore(self._path / str(step) / STATE, args=args)
        with self._offering_previous(step):
            check_numbers(path, page["arrays"], state)
        names = ("config", "versions", "mesh", "productive_seconds", "run")
        return Saved(step, state, page["input"], **{name: page[name] for name in names})

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records the metrics of the checkpoint of `step`, for keep_best. All hosts call it.

        A fast_dev_run has no checkpoints, so it records nothing."""
        metric = self._config.keep_best
        if metric is not None and metric not in metrics:
            raise OptionError(
                f"keep_best={metric!r} is not a metric of the "
                f"evaluation.{did_you_mean(metric, metrics)}"
            )
        if jax.process_index() == 0 and not self._config.fast_dev_run:
            self._evaluations.add(step, metrics, self.steps())

    def metrics(self, step: int) -> Mapping[str, float]:
        """Those recorded for this step; {} if there are none."""
        return self._evaluations.read().get(step, {})

    def was_evaluated(self, step: int) -> bool:
        """Whether `record` was called for this step."""
        return step in self._evaluations.read()

    def best(self, steps: Collection[int] | None = None) -> int | None:
        """The step of the best checkpoint by keep_best among these (default: all); None if none was
        evaluated."""
        metric = self._config.keep_best
        if metric is None:
            return None
        steps = self.steps() if steps is None else steps
        mode = self._config.keep_best_mode
        return keeping.best_step(self._evaluations.read(), steps, metric, mode)

    def _previous(self, step: int) -> str:
        before = [other for other in self.steps() if other < step]
        if not before:
            return " There is no earlier checkpoint."
        return (
            f" --restore-step={before[-1]} (restore_step in the TrainerConfig) resumes from the "
            "one before it."
        )

    @contextmanager
    def _offering_previous(self, step: int) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:
            raise CheckpointError(f"{error}{self._previous(step)}") from error.__cause__

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with self._explaining("write to", self.directory), self.activity.saving():
                yield
        except InfeedError as error:
            if not isinstance(error, OwnerError):
                # a new owner removes unfinished checkpoints, so this may be why writing failed
                self._fence()
            raise

    def __enter__(self) -> "CheckpointManager":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # a new owner removes Orbax's files, so its threads could wait for minutes
        if self._manager is None or isinstance(error, OwnerError):
            return
        try:
            self.settle(wait=True)
            with self._writing():
                self._manager.close()
        except Exception as lost:  # also of a barrier that another host does not reach
            if error is None:
                raise
            if str(lost) != str(error):
                log.warning("%s", lost)  # the error that ended the run is more informative
