"""The one way in which the hosts of a call talk to each other: JSON values under names, and how far their inputs reach.

Waits end with a HostError if another host fails, or with an Ending if the process was asked to end; see HostWatchdog.
Every host has to make the same exchanges in the same order."""

import json
import math
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from pipeline.errors import HostError, InputError
from trainer.cluster.host_registry import HostRegistry
from trainer.cluster.store import Store

LOOK_SECONDS = 0.005  # between two looks; the feeder is chunks ahead, so nothing waits for them

T = TypeVar("T")


class Exchange:
    """The exchanges of one call of the trainer. index, count: of this host, of all hosts.

    wait: returns the first value of a function that is not None, or None after some seconds, as HostWatchdog.wait."""

    def __init__(self, registry: HostRegistry, wait: Callable[[Callable[[], Any], float], Any]) -> None:
        self._registry, self._store, self._wait = registry, registry.store, wait
        self.index, self.count = self._store.index, self._store.count
        self._made = Counter[str]()

    def from_host_0(self, name: str, make: Callable[[], T], seconds: float = math.inf, late: str | None = None) -> T:
        """What host 0 makes, on every host. If it raises, the watchdog tells the others.

        HostError on a host that does not get it within `seconds`: host 0 "did not" do what `late` states."""
        key = self._next(name)
        if self.index == 0:
            value = make()
            if self.count > 1:
                self._store.put(key, json.dumps(value))
            return value
        told = self._wait(lambda: self._store.get(key), seconds)
        if told is None:
            late = late or f"start the same call within {seconds:g} s."
            raise HostError(f"host 0 of {self.count} did not {late}")
        return json.loads(told)

    def tell(self, name: str, value: Any) -> str:
        """Publishes a value of this host for hosts that `gather`; returns where."""
        directory = self._next(name)
        self._store.put(f"{directory}/{self.index}", json.dumps(value))
        return directory

    def gather(self, name: str, value: Any, seconds: float) -> dict[int, Any]:
        """The values that hosts tell within `seconds`, by host: all of them, or else those that came."""
        directory = self.tell(name, value)
        self._wait(lambda: len(self._store.by_host(directory)) == self.count or None, seconds)
        return {host: json.loads(told) for host, told in sorted(self._store.by_host(directory).items())}

    def agree(self, name: str, value: Any, judge: Callable[[dict[int, Any]], T], seconds: float) -> T:
        """What host 0 makes of the values that it gathers, on every host. The others wait twice as long for it."""
        if self.index > 0:
            self.tell(name, value)
        return self.from_host_0(f"{name} judged", lambda: judge(self.gather(name, value, seconds)), 2 * seconds)

    def post(self, name: str, value: Any) -> None:
        """Publishes a value under a name, for hosts that look for it without waiting."""
        self._store.put(self.key(name), json.dumps(value))

    def posted(self, name: str) -> Any:
        """The value under this name; None if there is none yet."""
        told = self._store.get(self.key(name))
        return None if told is None else json.loads(told)

    def common_end(self) -> "CommonEnd":
        """For one pass over an input."""
        return CommonEnd(self._store, self._next("read"))

    def key(self, name: str) -> str:
        """`name` as a key of this call."""
        return self._registry.key(name)

    def _next(self, name: str) -> str:
        """A key for the next exchange of this name."""
        self._made[name] += 1
        return self.key(f"{name}/{self._made[name]}")


class CommonEnd:
    """The InputEnd of one pass over an input, for the feeder's thread of each host: the inputs end at the last step for
    which every host has a batch, and are compared.

    All must ask at the same steps, as they do with the same dispatch plan, and get the same answer."""

    def __init__(self, store: Store, directory: str) -> None:
        self._store, self._directory = store, directory
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
