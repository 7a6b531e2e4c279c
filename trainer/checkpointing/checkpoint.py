"""Checkpoints: the model's state, the input's position and the settings, written by Orbax in the background."""

import logging
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import orbax.checkpoint as ocp

from pipeline.shards.errors import CheckpointError, InfeedError
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import join
from trainer.checkpointing.bucket_path import orbax_path
from trainer.exits import abandon_threads
from trainer.inputs import path_name
from trainer.state import TrainState

__all__ = ["Checkpoints", "Saved"]

log = logging.getLogger("trainer")


@dataclass(frozen=True)
class Saved:
    """One checkpoint as it was saved."""

    step: int
    state: TrainState
    input_state: dict[str, Any]
    config: dict[str, Any]


class Checkpoints:
    """The checkpoints of a work directory. Use as a context manager: leaving waits for the last write.

    read_only: they are another process's; nothing is written, locked or removed."""

    def __init__(
        self, workdir: str, keep_max: int = 1, save_seconds: float = 900.0, *, read_only: bool = False
    ) -> None:
        self._path = orbax_path(join(workdir, "checkpoints"))
        self.directory = str(self._path)
        self._save_seconds = save_seconds
        options = ocp.CheckpointManagerOptions(
            max_to_keep=None if read_only else keep_max,  # Orbax's own read_only does the same, with a warning a call
            enable_async_checkpointing=True,
            create=not read_only,
            async_options=ocp.options.AsyncOptions(timeout_secs=math.ceil(save_seconds)),
        )
        self._make = lambda: ocp.CheckpointManager(self._path, options=options)
        self._storage = open_storage(workdir)
        self._manager: ocp.CheckpointManager | None = None

    @property
    def manager(self) -> ocp.CheckpointManager:
        """Made on first use, so that looking for a checkpoint creates no directory and waits for no other host."""
        if self._manager is None:
            with self._naming("open", self.directory):
                self._manager = self._make()
        return self._manager

    def steps(self) -> list[int]:
        """Steps of the finished checkpoints, ascending. Looks at the directory alone: the manager is a collective."""
        # First as our own storage: of a bucket that is missing or closed, its error says so.
        if not self._storage.exists(self.directory):
            return []
        with self._naming("list", self.directory):
            return sorted(ocp.utils.checkpoint_steps(self._path))

    def latest(self) -> int | None:
        """The newest one's step; None where there is none."""
        return max(self.steps(), default=None)

    def require(self, step: int | None) -> int:
        """`step`, or the newest one's. CheckpointError, listing what there is, where it is missing."""
        steps = self.steps()
        if not steps:
            raise CheckpointError(f"{self.directory} has no checkpoint. Train first, or give the right workdir.")
        if step is not None and step not in steps:
            raise CheckpointError(f"{self.directory} has no checkpoint of step {step}. It has: {steps}.")
        return steps[-1] if step is None else step

    def saving(self) -> bool:
        """Whether a checkpoint is still being written."""
        return self._manager is not None and self._manager.is_saving_in_progress()

    def save(self, saved: Saved) -> None:
        """Copies the state and returns; the writing goes on in the background."""
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(saved.state),  # pyright: ignore[reportCallIssue]
            arrays=ocp.args.JsonSave(_listed(saved.state)),  # pyright: ignore[reportCallIssue]
            input=ocp.args.JsonSave(saved.input_state),  # pyright: ignore[reportCallIssue]
            config=ocp.args.JsonSave(saved.config),  # pyright: ignore[reportCallIssue]
        )
        with self._writing():  # this checkpoint, or still the one before
            begun = self.manager.save(saved.step, args=items)
        if not begun:
            raise CheckpointError(
                f"{self.directory} refused the checkpoint of step {saved.step}. It has: {self.steps()}. "
                "Does another run write there?"
            )

    def restore(self, step: int, like: TrainState) -> Saved:
        """The checkpoint of `step`, its arrays with the shapes and shardings of `like`.

        CheckpointError, naming an array, for a checkpoint of another model or optimizer, and for a damaged one."""
        json = ocp.args.JsonRestore()
        with self._naming("read", self._step_path(step), " If it is damaged, remove it to go on from the one before."):
            found = self.manager.restore(step, args=ocp.args.Composite(arrays=json, input=json, config=json))
            # Orbax finds a wrong shape only in the middle of reading, and leaves half-run tasks behind.
            self._compare(step, found["arrays"], _listed(like))
            state = self.manager.restore(
                step,
                args=ocp.args.Composite(state=ocp.args.StandardRestore(like)),  # pyright: ignore[reportCallIssue]
            )["state"]
        return Saved(step, state, found["input"], found["config"])

    def _step_path(self, step: int) -> str:
        return join(self.directory, str(step))

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
            reason = f"it is not done after {self._save_seconds:g} s (save_seconds)."
            raise CheckpointError(f"cannot {action} {path}: {reason}") from error
        except Exception as error:  # whatever Orbax's libraries raise: OSError, ValueError, tensorstore's
            raise CheckpointError(f"cannot {action} {path}: {_reason(error, advice)}") from error

    def _compare(self, step: int, saved: dict[str, str], wanted: dict[str, str]) -> None:
        # The model first: of its optimizer's arrays a user knows less.
        for name in sorted(saved.keys() | wanted.keys(), key=lambda name: (name.startswith("optimizer"), name)):
            if saved.get(name) != wanted.get(name):
                raise CheckpointError(
                    f"{self._step_path(step)} is of another model or optimizer: {name} is "
                    f"{saved.get(name, 'missing')} there and {wanted.get(name, 'missing')} in this task. "
                    "Use the task that it was trained with, or another workdir."
                )

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._manager is None:
            return
        manager, self._manager = self._manager, None
        try:
            with self._writing():
                manager.wait_until_finished()
                manager.close()
        except InfeedError as lost:
            if error is None:
                raise
            if str(lost) != str(error):
                log.warning("%s", lost)  # what ended the run says more


def _listed(state: TrainState) -> dict[str, str]:
    return {
        path_name(path): f"{leaf.dtype} {list(leaf.shape)}" for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }


def _reason(error: Exception, advice: str) -> str:
    """The first line without the configuration that tensorstore appends; the HTTP status, or the advice, if none."""
    text = str(error).strip() or type(error).__name__
    line = re.split(r" \[\w+(?:\[\d+\])?='", text.split("\n", 1)[0], maxsplit=1)[0][:500]
    status = re.search(r"\[http_response_code='(\d+)'\]", text)
    return f"status {status[1]}: {line}" if status else line + advice
