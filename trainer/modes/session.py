"""The session around one train, evaluate or predict: what monitors it, what it saves, whether it must end."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.errors import CheckpointError
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import join
from trainer.checkpointing.listing import find_elsewhere
from trainer.checkpointing.manager import CheckpointManager, WhichStep
from trainer.checkpointing.orbax_paths import check_directory, remove_unfinished
from trainer.cluster.decisions import Preemption, SharedDecisions
from trainer.cluster.exchange import CommonEnd, Exchange
from trainer.cluster.host_watchdog import HostWatchdog
from trainer.config import TrainerConfig
from trainer.exits import ending
from trainer.ownership.owner_files import OwnerProcess
from trainer.ownership.ownership import Ownership
from trainer.setup import Opened, Setup
from trainer.state import TrainState
from trainer.workdir import claim

__all__ = ["Session", "open_session"]


@dataclass(frozen=True)
class Session:
    """The session's parts. It is also the Between of loops that save nothing: it ends them when they are preempted."""

    watchdog: HostWatchdog
    preemption: Preemption
    decisions: SharedDecisions
    checkpoints: CheckpointManager
    ownership: Ownership

    @property
    def exchange(self) -> Exchange:
        """How the hosts of the session talk to each other."""
        return self.watchdog.exchange

    def check(self) -> None:
        """Raises an Ending if this process was asked to end, or the error of another host. For waits, not in a loop."""
        self.preemption.check()
        self.watchdog.check()

    def own(self, config: TrainerConfig) -> None:
        """Makes this run the owner of the work directory until the call ends, before it reads, truncates or writes in
        it. Host 0 takes it for all hosts. A fast_dev_run writes nothing and skips this.

        OwnerError if another training run owns it; OptionError or CheckpointError if it has something that no run made
        and that this one would replace or remove; on the other hosts, a HostError with that failure."""
        if config.fast_dev_run:
            return
        workdir = str(config.workdir)

        def take() -> None:
            claim(workdir)
            check_directory(workdir)
            if lost := self.ownership.take(lambda seconds: self.watchdog.wait(lambda: None, seconds)):
                _shut_out(workdir, lost)

        self.exchange.from_host_0("owned", take, 2 * config.stall_seconds)

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
        return self.exchange.common_end() if needed else None

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
    ownership = Ownership(config.workdir)
    checkpoints = CheckpointManager(config, ownership.fence)
    # Report a failure before anything waits for the other hosts, as closing the checkpoints does.
    with (
        Preemption(saves) as preemption,
        HostWatchdog(config.host_timeout_seconds, checkpoints.saving, preemption.check) as watchdog,
        ownership,  # until the last checkpoint is written
        checkpoints,
        watchdog.reporting(),
    ):
        preemption.within(watchdog.exchange)
        yield Session(watchdog, preemption, SharedDecisions(watchdog.exchange, preemption), checkpoints, ownership)
        preemption.check()  # a request after the end of the loop; nothing is lost


def _shut_out(workdir: str, lost: OwnerProcess) -> None:
    """Hides what a suspended owner is about to publish: it may wake up between its fence and its write. A checkpoint
    loses its temporary directory, an open event file its name."""
    remove_unfinished(workdir)
    if is_remote(workdir):
        return
    storage, directory = open_storage(workdir), join(workdir, "train")
    for name in storage.list(directory):
        if name.startswith("events.") and f".{lost.host}.{lost.pid}." in name:
            with storage.publish(join(directory, name)) as sink, Path(directory, name).open("rb") as file:
                shutil.copyfileobj(file, sink)
