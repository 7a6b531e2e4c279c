"""The session around one train, evaluate or predict: what monitors it, what it saves, whether it must end."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.errors import CheckpointError
from trainer.checkpointing.elsewhere import find_elsewhere
from trainer.checkpointing.manager import CheckpointManager, WhichStep
from trainer.cluster.common_end import CommonEnd
from trainer.cluster.host_watchdog import HostWatchdog
from trainer.cluster.preemption import Preemption
from trainer.cluster.shared_decisions import SharedDecisions
from trainer.cluster.store import open_store
from trainer.config import TrainerConfig
from trainer.exits import ending
from trainer.ownership.taking import Ownership
from trainer.setup import Opened, Setup
from trainer.state import TrainState

__all__ = ["Session", "open_session"]


@dataclass(frozen=True)
class Session:
    """The session's parts. It is also the Between of loops that save nothing: it ends them when they are preempted."""

    watchdog: HostWatchdog
    preemption: Preemption
    decisions: SharedDecisions
    checkpoints: CheckpointManager
    ownership: Ownership
    numbers: Iterator[int] = field(default_factory=itertools.count)
    """For keys of exchanges that a session may have several of: all hosts take them in the same order."""

    def check(self) -> None:
        """Raises an Ending if this process was asked to end, or the error of another host. For waits, not in a loop."""
        self.preemption.check()
        self.watchdog.check()

    def reading(
        self, config: TrainerConfig, step: WhichStep | None, checkpoint_path: str | None = None
    ) -> tuple["Session", int]:
        """The session to read a checkpoint in, and its step: of the work directory, or of another; in a fast_dev_run 0.

        Raises CheckpointError if there is no such checkpoint."""
        if config.fast_dev_run:
            return self, 0
        if checkpoint_path is None:
            return self, self.checkpoints.require(step)
        found = find_elsewhere(checkpoint_path, step if step != "best" else None)
        if step == "best" and str(checkpoint_path).rstrip("/").endswith(f"/checkpoints/{found.step}"):
            raise CheckpointError(f"checkpoint_path={checkpoint_path!r} is one checkpoint: leave out 'best'.")
        there = CheckpointManager(replace(config, workdir=found.workdir))
        return replace(self, checkpoints=there), there.require("best") if step == "best" else found.step

    def state(self, setup: Setup, opened: Opened, step: int) -> TrainState:
        """The state in the checkpoint of `step`; in a fast_dev_run, an untrained one."""
        if setup.config.fast_dev_run:
            return setup.fresh_state(opened, self.check)
        return self.checkpoints.restore(step, setup.abstract_state(opened)).state

    def check_late(self) -> None:
        """The check while training waits for its input. A single process may save and end. Several hosts can only
        save together, so they wait for the input, or for its stall_seconds."""
        if self.watchdog.alone:
            self.preemption.check()
        self.watchdog.check()

    def common_end(self, opened: Opened, ends: bool = False) -> CommonEnd | None:
        """For an input that ends at an unknown step: how far that of all hosts reaches. For a program that every host
        runs completely: whether it delivers the same everywhere. Otherwise None."""
        needed = ends or opened.is_program
        return CommonEnd(self.watchdog.registry, next(self.numbers)) if needed else None

    def due(self, _: int, ended: bool = False) -> bool:
        """See Between. Raises an Ending, on all hosts before the same dispatch."""
        if not ended and (decision := self.decisions.poll()).preempted:
            why = f"{decision.stop}; there was nothing to save: run the same command again"
            raise ending(why, decision.interrupted, together=True)
        return False

    def act(self, _: int, carry: Any) -> tuple[Any, bool]:
        """See Between; never due."""
        return carry, True


@contextmanager
def open_session(config: TrainerConfig, saves: bool = False) -> Iterator[Session]:
    """The session of a call. saves: whether a preemption finds progress to save."""
    store = open_store()
    ownership = Ownership(config.workdir)
    checkpoints = CheckpointManager(config, ownership.fence)
    # Report a failure before anything waits for the other hosts, as closing the checkpoints does.
    with (
        Preemption(store, saves) as preemption,
        HostWatchdog(store, config.host_timeout_seconds, checkpoints.saving, preemption.check) as watchdog,
        ownership,  # until the last checkpoint is written
        checkpoints,
        watchdog.reporting(),
    ):
        preemption.within(watchdog.registry)
        yield Session(watchdog, preemption, SharedDecisions(watchdog.registry, preemption), checkpoints, ownership)
        preemption.check()  # a request after the end of the loop; nothing is lost
