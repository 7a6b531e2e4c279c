"""Checkpoints: the model's state, the input's position and the settings, written by Orbax in the background."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import jax
import orbax.checkpoint as ocp

from pipeline.logs import logger
from pipeline.shards.errors import CheckpointError, InfeedError, OptionError, OwnerError, did_you_mean
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import join
from trainer.checkpointing.arrays import check_model, check_numbers, list_arrays, mesh_of
from trainer.checkpointing.bucket_path import orbax_path
from trainer.checkpointing.contents import CONTENTS, changes, read_contents, sealed, versions
from trainer.checkpointing.failures import reason
from trainer.checkpointing.fenced import fenced_path
from trainer.checkpointing.listing import checkpoints_directory, finished_steps, required_step
from trainer.checkpointing.retention import Evaluations, Keep, best_step
from trainer.config import TrainerConfig
from trainer.exits import abandon_threads
from trainer.state import TrainState

__all__ = ["Checkpoints", "Saved"]

log = logger("trainer")


@dataclass(frozen=True)
class Saved:
    """One checkpoint as it was saved. The last two are filled in by `Checkpoints`."""

    step: int
    state: TrainState
    input_state: dict[str, Any]
    config: dict[str, Any]
    versions: Mapping[str, str] = field(default_factory=dict)
    mesh: Mapping[str, Any] = field(default_factory=dict)

    def changes(self, config: Mapping[str, Any]) -> list[str]:
        """What is not as it was when this was saved, one text each: settings, versions, devices."""
        now = ((self.config, config), (self.versions, versions()), (self.mesh, mesh_of(self.state)))
        return [text for then, this in now for text in changes(then, this)]


class Checkpoints:
    """The checkpoints of a work directory. Use as a context manager: leaving waits for the last write.

    Looking and reading make nothing and wait for no other process but the hosts of this run. fence: asked before
    anything there is published or removed, by the thread that does; it raises where it must not be."""

    def __init__(self, config: TrainerConfig, fence: Callable[[], None] = lambda: None) -> None:
        self._config, self._workdir, self._fence = config, str(config.workdir), fence
        self._path = orbax_path(checkpoints_directory(self._workdir))
        self.directory = str(self._path)
        self._storage = open_storage(self._workdir)
        self._evaluations = Evaluations(self._workdir)
        self._manager: ocp.CheckpointManager | None = None
        self._superseded: list[int] = []

    @property
    def manager(self) -> ocp.CheckpointManager:
        """What writes. Made for the first save: it makes the directory, and removes what a kill left unfinished."""
        if self._manager is None:
            options = ocp.CheckpointManagerOptions(
                preservation_policy=Keep(self._config.keep_max, self._config.keep_every_steps, self._best_of),
                enable_async_checkpointing=True,
                create=True,
                cleanup_tmp_directories=True,
                temporary_path_class=fenced_path(self._workdir, self._fence),
                async_options=ocp.options.AsyncOptions(timeout_secs=math.ceil(self._config.save_seconds)),
            )
            with self._naming("open", self.directory):
                self._manager = ocp.CheckpointManager(self._path, options=options)
        return self._manager

    def steps(self) -> list[int]:
        """Steps of the finished checkpoints, ascending."""
        with self._naming("list", self.directory):
            return finished_steps(self._workdir)

    def latest(self) -> int | None:
        """The newest one's step; None where there is none."""
        return max(self.steps(), default=None)

    def require(self, step: int | None) -> int:
        """`step`, or the newest one's. CheckpointError, listing what there is, where it is missing."""
        return required_step(self.directory, self.steps(), step)

    def resume_step(self) -> int:
        """The step to go on from: restore_step, else the newest checkpoint's; 0 where there is none.

        Those after restore_step stay until this run saves for the first time, and the log names them. Once it has, a
        restart with the same restore_step goes on from the newest: it would otherwise lose what came since."""
        steps, wanted = self.steps(), self._config.restore_step
        if wanted is None:
            return max(steps, default=0)
        newer = [step for step in steps if step > wanted]
        if newer and self._went_on_from(wanted, newer):
            log.warning(
                "restore_step=%d was followed before, so this run goes on from step %d. To begin at step %d once more, "
                "remove these from %s: %s",
                *(wanted, newer[-1], wanted, self.directory, newer),
            )
            return newer[-1]
        self.require(wanted)
        if newer:
            self._superseded = newer
            log.warning(
                "going back to step %d. When this run first saves, it removes the checkpoints after it: %s. Stop it "
                "before, or copy them, if they are wanted",
                *(wanted, newer),
            )
        return wanted

    def _went_on_from(self, wanted: int, newer: list[int]) -> bool:
        for step in reversed(newer):
            try:
                return read_contents(self._storage, self.directory, step)["config"].get("restore_step") == wanted
            except CheckpointError:  # damaged: perhaps why the run goes back
                continue
        return False

    def saving(self) -> bool:
        """Whether a checkpoint is still being written."""
        return self._manager is not None and self._manager.is_saving_in_progress()

    def save(self, saved: Saved) -> None:
        """Copies the state and returns; the writing goes on in the background."""
        self._fence()
        page = sealed(
            {
                "step": saved.step,
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                "versions": versions(),
                "mesh": mesh_of(saved.state),
                "config": saved.config,
                "input": saved.input_state,
                "arrays": list_arrays(saved.state),
            }
        )
        items = {
            "state": ocp.args.StandardSave(saved.state),  # pyright: ignore[reportCallIssue]
            CONTENTS: ocp.args.JsonSave(page),  # pyright: ignore[reportCallIssue]
        }
        with self._writing():  # this checkpoint, or still the one before
            self._remove_superseded()
            begun = self.manager.save(saved.step, args=ocp.args.Composite(**items))
        if not begun:
            raise CheckpointError(
                f"{self.directory} refused the checkpoint of step {saved.step}. It has: {self.steps()}. "
                "Does another run write there?"
            )

    def _remove_superseded(self) -> None:
        if not self._superseded:
            return
        if jax.process_index() == 0:
            self._evaluations.drop(self._superseded)  # first: another checkpoint of such a step was not measured
        for step in reversed(self._superseded):  # the newest first: killed in between, a rest of them is still a run
            self.manager.delete(step)
        log.info("removed the checkpoints of steps %s", self._superseded)
        self._superseded = []

    def restore(self, step: int, like: TrainState) -> Saved:
        """The checkpoint of `step`, its arrays with the shapes and shardings of `like`.

        CheckpointError, naming an array, for a checkpoint of another model or optimizer; for a damaged one, naming
        what is damaged and the checkpoint before it. All numbers are proven by checksums, but for arrays that are now
        cut finer, or along other axes, than they were saved: how many, the log says."""
        path = join(self.directory, str(step))
        with self._showing_way_out(step):
            page = read_contents(self._storage, self.directory, step)
        # Orbax finds a wrong shape only in the middle of reading, and leaves half-run tasks behind.
        check_model(path, page["arrays"], like)
        with self._naming("read", path, " It may be damaged." + self._way_out(step)):
            state = self._read_state(step, like)
        with self._showing_way_out(step):
            check_numbers(path, page["arrays"], state)
        return Saved(step, state, page["input"], page["config"], page["versions"], page["mesh"])

    def _read_state(self, step: int, like: TrainState) -> TrainState:
        with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as reader:
            args = ocp.args.StandardRestore(like)  # pyright: ignore[reportCallIssue]
            return reader.restore(self._path / str(step) / "state", args=args)

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Notes what an evaluation of the checkpoint of `step` gave, for keep_best. For all hosts to call.

        A fast_dev_run has no checkpoints, so nothing is noted."""
        wanted = self._config.keep_best
        if wanted is not None and wanted not in metrics:
            raise OptionError(f"keep_best={wanted!r} is no metric of the evaluation.{did_you_mean(wanted, metrics)}")
        if jax.process_index() == 0 and not self._config.fast_dev_run:
            self._evaluations.add(step, metrics, self.steps())

    def was_evaluated(self, step: int) -> bool:
        """Whether `record` was called for this step."""
        return step in self._evaluations.read()

    def best(self) -> int | None:
        """The step of the checkpoint with the best keep_best so far. None where none was evaluated."""
        return self._best_of(self.steps())

    def _best_of(self, steps: Collection[int]) -> int | None:
        metric, mode = self._config.keep_best, self._config.keep_best_mode
        return None if metric is None else best_step(self._evaluations.read(), steps, metric, mode)

    def _way_out(self, step: int) -> str:
        before = [other for other in self.steps() if other < step]
        if not before:
            return " There is no checkpoint before it."
        return f" --restore-step={before[-1]} (restore_step in the TrainerConfig) goes on from the one before it."

    @contextmanager
    def _showing_way_out(self, step: int) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:
            raise CheckpointError(f"{error}{self._way_out(step)}") from error.__cause__

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with self._naming("write to", self.directory):
                yield
        except InfeedError:
            abandon_threads()  # Orbax's wait for what will not come: five minutes, or as long as a request stalls
            raise

    @contextmanager
    def _naming(self, action: str, path: str, advice: str = "") -> Iterator[None]:
        try:
            yield
        except (InfeedError, jax.errors.JaxRuntimeError):  # of a collective: the watchdog knows who is to blame
            raise
        except TimeoutError as error:  # Orbax raises it for its AsyncOptions
            late = f"it is not done after {self._config.save_seconds:g} s (save_seconds)."
            raise CheckpointError(f"cannot {action} {path}: {late}") from error
        except Exception as error:  # whatever Orbax's libraries raise: OSError, ValueError, tensorstore's
            raise CheckpointError(f"cannot {action} {path}: {reason(error, advice)}") from error

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._manager is None:
            return
        manager, self._manager = self._manager, None
        if isinstance(error, OwnerError):
            abandon_threads()  # what they write is another run's to remove, so they may wait for it for minutes
            return
        try:
            with self._writing():
                manager.wait_until_finished()
                manager.close()
        except InfeedError as lost:
            if error is None:
                raise
            if str(lost) != str(error):
                log.warning("%s", lost)  # what ended the run says more
