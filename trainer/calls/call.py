"""What surrounds one call of the Trainer: who watches over it, what it saves, and whether it is to end early."""

from dataclasses import dataclass
from typing import Any

from trainer.checkpointing.checkpoint import Checkpoints
from trainer.cluster.polls import Polls
from trainer.cluster.preemption import Preemption
from trainer.cluster.watchdog import Watchdog
from trainer.exits import ending
from trainer.ownership.ownership import Ownership

__all__ = ["Call"]


@dataclass(frozen=True)
class Call:
    """The call's parts. As the Pauses of a loop that has nothing to save it ends that loop when it is preempted."""

    watchdog: Watchdog
    preemption: Preemption
    polls: Polls
    checkpoints: Checkpoints
    ownership: Ownership

    def check(self) -> None:
        """Raises an Ending if this process was asked to end, and what ended another host. For waits, not in a loop."""
        self.preemption.check()
        self.watchdog.check()

    def check_late(self) -> None:
        """The check of a training whose input is late. A process that is alone may save and end; of several hosts none
        can save without the others, so they wait for the input, or for its stall_seconds."""
        if self.watchdog.alone:
            self.preemption.check()
        self.watchdog.check()

    def due(self, step: int) -> bool:
        """See Pauses. Raises an Ending, on all hosts before the same dispatch."""
        del step
        if (decision := self.polls.poll()).preempted:
            why = f"{decision.stop}; nothing was to be saved, run the same command again"
            raise ending(why, decision.interrupted, together=True)
        return False

    def attend(self, step: int, carry: Any) -> tuple[Any, bool]:
        """See Pauses; never due."""
        del step
        return carry, True
