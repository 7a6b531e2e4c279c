"""iterations_per_loop="10s": how many steps a dispatch makes, measured over the first, the same on all hosts."""

import threading
import time
from collections.abc import Callable

from pipeline.shards.errors import HostError
from trainer.cluster.watchdog import Watchdog

__all__ = ["Pace"]


class Pace:
    """Measures single steps, then lets every host have the same number of them for `seconds`.

    limit: cuts a number of steps to what a dispatch may have."""

    def __init__(
        self, seconds: float, limit: Callable[[int], int], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._seconds, self._limit, self._clock = seconds, limit, clock
        self._settled = threading.Event()
        self._looks: list[float] = []
        self._steps = 1

    def steps(self) -> int:
        """The number, once it is settled; the feeder's thread waits here."""
        self._settled.wait()
        return self._steps

    def look(self) -> None:
        """One single step is done."""
        if not self._settled.is_set():
            self._looks.append(self._clock())

    def agree(self, watchdog: Watchdog, key: str, seconds: float) -> int:
        """The number that host 0 has measured; HostError where it does not say it within so many seconds."""
        store = watchdog.roll.store
        if store.index == 0:
            steps = self._measured()
            store.put(watchdog.roll.key(key), str(steps))
        else:
            told = watchdog.wait(lambda: store.get(watchdog.roll.key(key)), seconds)
            if told is None:
                raise HostError(f"host 0 of {store.count} did not say within {seconds:g} s how long a step takes.")
            steps = int(told)
        return steps

    def settle(self, steps: int) -> None:
        """Lets the feeder go on."""
        self._steps = steps
        self._settled.set()

    def _measured(self) -> int:
        """The first step is left out: what is slow once is in it."""
        if len(self._looks) < 2:
            return 1
        step_seconds = (self._looks[-1] - self._looks[0]) / (len(self._looks) - 1)
        return self._limit(max(1, int(self._seconds / max(step_seconds, 1e-9))))
