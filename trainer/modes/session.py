"""The session around one train, evaluate or predict: what monitors it, what it saves, whether it must end."""

from dataclasses import dataclass
from typing import Any

from trainer.checkpointing.manager import CheckpointManager
from trainer.cluster.host_watchdog import HostWatchdog
from trainer.cluster.preemption import Preemption
from trainer.cluster.shared_decisions import SharedDecisions
from trainer.exits import ending
from trainer.ownership.ownership import Ownership
from trainer.setup import Opened, Setup
from trainer.state import TrainState

__all__ = ["Session"]


@dataclass(frozen=True)
class Session:
    """The session's parts. It is also the Between of loops that save nothing: it ends them when they are preempted."""

    watchdog: HostWatchdog
    preemption: Preemption
    decisions: SharedDecisions
    checkpoints: CheckpointManager
    ownership: Ownership

    def check(self) -> None:
        """Raises an Ending if this process was asked to end, or the error of another host. For waits, not in a loop."""
        self.preemption.check()
        self.watchdog.check()

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

    def due(self, _: int) -> bool:
        """See Between. Raises an Ending, on all hosts before the same dispatch."""
        if (decision := self.decisions.poll()).preempted:
            why = f"{decision.stop}; there was nothing to save: run the same command again"
            raise ending(why, decision.interrupted, together=True)
        return False

    def act(self, _: int, carry: Any) -> tuple[Any, bool]:
        """See Between; never due."""
        return carry, True
