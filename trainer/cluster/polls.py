"""What all hosts do before the same dispatch, though one of them decides it: save by the clock, stop.

Every host counts its polls, one before each dispatch. What host 0 decides at its poll n all do at poll n + 2: it says
so in the store before it dispatches, and no host gets there without having heard. For a host comes to poll n + 2 only
after it has read what dispatch n gave, and that is a sum over all hosts, host 0 too. So nobody waits, and a poll costs
one request."""

import json
from collections.abc import Callable
from typing import NamedTuple

from trainer.cluster.preemption import Preemption
from trainer.cluster.roll import Roll

__all__ = ["Decision", "Polls"]

MARGIN = 2


class Decision(NamedTuple):
    """What to do before a dispatch. stop: why the loop ends here, "" if it goes on; preempted: so does the process, by
    SIGINT if interrupted."""

    save: bool = False
    stop: str = ""
    preempted: bool = False
    interrupted: bool = False


NOTHING = Decision()


class Polls:
    """The polls of one call, over all its loops."""

    def __init__(self, roll: Roll, preemption: Preemption) -> None:
        self._roll, self._preemption = roll, preemption
        self._number = 0
        self._due: dict[int, Decision] = {}

    def poll(self, decide: Callable[[], Decision] = lambda: NOTHING) -> Decision:
        """What to do now. decide: asked on host 0 alone, what else than a preemption is to be done soon."""
        number, store = self._number, self._roll.store
        self._number += 1
        if store.index == 0:
            # What is due has not happened yet, so the clock would ask for it again.
            decision = self._preempted() or (NOTHING if self._due else decide())
            if decision != NOTHING:
                at = number + (MARGIN if store.count > 1 else 0)
                self._due[at] = decision
                if store.count > 1:
                    store.put(self._key(at), json.dumps(decision))
            return self._due.pop(number, NOTHING)
        found = store.get(self._key(number))
        return NOTHING if found is None else Decision(*json.loads(found))

    def _preempted(self) -> Decision | None:
        request = self._preemption.anywhere()
        return request and Decision(True, request.where, True, request.interrupted)

    def _key(self, number: int) -> str:
        return self._roll.key(f"decided/{number}")
