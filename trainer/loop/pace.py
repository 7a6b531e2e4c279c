"""How many steps a dispatch has where iterations_per_loop is a time."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from trainer.hosts.exchange import Exchange


@dataclass
class Pace:
    """iterations_per_loop="10s": measures single steps, and chooses how many steps of `seconds` in
    total all hosts make per dispatch.

    limit: reduces a number of steps to what fits a dispatch."""

    seconds: float
    limit: Callable[[int], int]
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self._settled = threading.Event()
        self._observed_at = list[float]()
        self._steps = 1

    def steps(self) -> int:
        """The steps per dispatch; the feeder's thread waits here until they are settled."""
        self._settled.wait()
        return self._steps

    def observe(self) -> None:
        """Records the end of a single step."""
        if not self._settled.is_set():
            self._observed_at.append(self.clock())

    def agree(self, exchange: Exchange, seconds: float) -> int:
        """The number that host 0 has measured; HostError on another host that does not get it
        within `seconds`."""
        return exchange.from_host_0("pace", self._measured, seconds)

    def _measured(self) -> int:
        if len(self._observed_at) < 2:  # the first step includes one-time costs
            return 1
        step_seconds = (self._observed_at[-1] - self._observed_at[0]) / (len(self._observed_at) - 1)
        return self.limit(max(1, int(self.seconds / max(step_seconds, 1e-9))))

    def settle(self, steps: int) -> None:
        """Lets the feeder continue."""
        self._steps = steps
        self._settled.set()
