"""Decisions that host 0 takes and all hosts carry out before the same dispatch: to save by the clock, to stop.

Every host counts its polls, one before each dispatch. All hosts carry out at poll n + 2 what host 0 decides at its poll
n. Host 0 writes the decision to the store before it dispatches, and no other host gets to poll n + 2 earlier: that host
must first have read the result of dispatch n, a sum over all hosts including host 0. So no host waits, and a poll costs
one request."""

from collections.abc import Callable
from typing import NamedTuple

from trainer.cluster.exchange import Exchange
from trainer.cluster.preemption import Preemption

__all__ = ["Decision", "SharedDecisions"]

MARGIN = 2


class Decision(NamedTuple):
    """What to do before a dispatch. stop: why the loop ends here, "" if it continues; preempted: the process ends, too,
    by SIGINT if interrupted."""

    save: bool = False
    stop: str = ""
    preempted: bool = False
    interrupted: bool = False


NOTHING = Decision()


class SharedDecisions:
    """The polls of one session, over all its loops."""

    def __init__(self, exchange: Exchange, preemption: Preemption) -> None:
        self._exchange, self._preemption = exchange, preemption
        self._number = 0
        self._due: dict[int, Decision] = {}

    def poll(self, decide: Callable[[], Decision] = lambda: NOTHING) -> Decision:
        """What to do now. decide: asked only on host 0, for what to do soon apart from a preemption."""
        number, exchange = self._number, self._exchange
        self._number += 1
        if exchange.index == 0:
            request = self._preemption.anywhere()
            decision = request and Decision(True, request.where, True, request.interrupted)
            # While a decision is pending, the clock would ask for the same again.
            decision = decision or (NOTHING if self._due else decide())
            if decision != NOTHING:
                at = number + (MARGIN if exchange.count > 1 else 0)
                self._due[at] = decision
                if exchange.count > 1:
                    exchange.post(f"decided/{at}", decision)
            return self._due.pop(number, NOTHING)
        found = exchange.posted(f"decided/{number}")
        return NOTHING if found is None else Decision(*found)
