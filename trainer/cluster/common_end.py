"""Where the inputs of several hosts end: at the last step for which every host has a batch."""

import json
import threading

from trainer.cluster.host_registry import HostRegistry

__all__ = ["CommonEnd"]

LOOK_SECONDS = 0.005  # between two looks; the feeder is chunks ahead, so nothing waits for them


class CommonEnd:
    """The InputEnd of a training, for the feeder's thread of each host.

    All must ask at the same steps, as they do with the same dispatch plan, and get the same answer."""

    def __init__(self, registry: HostRegistry) -> None:
        self._registry, self._store = registry, registry.store
        self._closed = threading.Event()
        self.waiting = False

    def __call__(self, step: int, ended: bool) -> int:
        """See InputEnd. step: of this host's newest batch. After `close` it returns `step`."""
        if self._store.count == 1:
            return step
        self._store.put(self._registry.key(f"read/{self._store.index}"), json.dumps([step, ended]))
        self.waiting = True
        while (common := self._common(step)) is None and not self._closed.wait(LOOK_SECONDS):
            pass
        self.waiting = False
        return step if common is None else common

    def _common(self, step: int) -> int | None:
        """None if a host has not read as far, and may still."""
        read = [json.loads(value) for value in self._store.by_host(self._registry.key("read")).values()]
        if len(read) < self._store.count or any(theirs < step and not ended for theirs, ended in read):
            return None
        return min(step, *(theirs for theirs, _ in read))

    def close(self) -> None:
        self._closed.set()
