"""Where the inputs of several hosts end: at the last step for which every host has a batch. Compares them, too."""

import json
import threading

from pipeline.errors import InputError
from trainer.cluster.host_registry import HostRegistry

__all__ = ["CommonEnd"]

LOOK_SECONDS = 0.005  # between two looks; the feeder is chunks ahead, so nothing waits for them


class CommonEnd:
    """The InputEnd of one pass over an input, for the feeder's thread of each host. number: of the pass, on all hosts.

    All must ask at the same steps, as they do with the same dispatch plan, and get the same answer."""

    def __init__(self, registry: HostRegistry, number: int = 0) -> None:
        self._store, self._directory = registry.store, registry.key(f"read/{number}")
        self._read: list[tuple[int, int | None]] = []  # steps and digests; another host may be one dispatch ahead
        self._closed = threading.Event()
        self.waiting = False

    def __call__(self, step: int, ended: bool, digest: int | None = None) -> int:
        """See InputEnd. step: of this host's newest batch. After `close` it returns `step`."""
        if self._store.count == 1:
            return step
        self._read = [*self._read[-1:], (step, digest)]
        self._store.put(f"{self._directory}/{self._store.index}", json.dumps([self._read, ended]))
        self.waiting = True
        while (common := self._common(step)) is None and not self._closed.wait(LOOK_SECONDS):
            pass
        self.waiting = False
        return step if common is None else common

    def _common(self, step: int) -> int | None:
        """None if a host has not read as far, and may still."""
        hosts = [json.loads(value) for value in self._store.by_host(self._directory).values()]
        if len(hosts) < self._store.count or any(read[-1][0] < step and not ended for read, ended in hosts):
            return None
        digest = dict(self._read)[step]
        if digest is not None and any(dict(read).get(step) != digest for read, _ in hosts):
            raise InputError(
                f"the hosts' tf.data programs delivered different batches up to step {step}, but each must deliver "
                "the same, in the same order. Give every shuffle a seed, list files with shuffle=False, leave out "
                "shard, and keep interleave and map deterministic."
            )
        return min(step, *(read[-1][0] for read, _ in hosts))

    def close(self) -> None:
        self._closed.set()
