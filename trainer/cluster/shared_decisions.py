"""Decisions that host 0 takes and all hosts carry out before the same dispatch: to save by the clock, to stop.

Every host counts its polls, one before each dispatch. All hosts carry out at poll n + 2 what host 0 decides at its poll
n. Host 0 writes the decision to the store before it dispatches, and no other host gets to poll n + 2 earlier: that host
must first have read the result of dispatch n, a sum over all hosts including host 0. So no host waits, and a poll costs
one request."""

import json
from collections.abc import Callable
from typing import NamedTuple

from trainer.cluster.host_registry import HostRegistry
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

    def __init__(self, registry: HostRegistry, preemption: Preemption) -> None:
        self._registry, self._preemption = registry, preemption
        self._number = 0
        self._due: dict[int, Decision] = {}

    def poll(self, decide: Callable[[], Decision] = lambda: NOTHING) -> Decision:
        """What to do now. decide: asked only on host 0, for what to do soon apart from a preemption."""
        number, store = self._number, self._registry.store
        self._number += 1
        if store.index == 0:
            request = self._preemption.anywhere()
            decision = request and Decision(True, request.where, True, request.interrupted)
            # While a decision is pending, the clock would ask for the same again.
            decision = decision or (NOTHING if self._due else decide())
            if decision != NOTHING:
                at = number + (MARGIN if store.count > 1 else 0)
                self._due[at] = decision
                if store.count > 1:
                    store.put(self._registry.key(f"decided/{at}"), json.dumps(decision))
            return self._due.pop(number, NOTHING)
        found = store.get(self._registry.key(f"decided/{number}"))
        return NOTHING if found is None else Decision(*json.loads(found))
