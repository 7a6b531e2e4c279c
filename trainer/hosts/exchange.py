"""How the hosts of a call talk to each other: JSON values under names, how far their inputs reach;
and what host 0 decides, which all carry out before the same dispatch: to save by the clock, to
stop, to end.

The values are in the key-value store of JAX's coordination service, which all processes can read
even while their devices wait for each other. It belongs to process 0, and ends with it. Waits end
with a HostError if another host fails, or with an Ending if the process was asked to end. Every
host has to make the same exchanges in the same order. With one process, nothing is exchanged."""

import json
import math
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
from jax._src import distributed  # jax has no public module for its key-value store

from pipeline.errors import DisagreementError, HostError

StoreError = jax.errors.JaxRuntimeError  # any method may raise it: the service is gone
LOOK_SECONDS = 0.005  # between two looks; the feeder is chunks ahead, so nothing waits for them
MARGIN = 2  # polls
T = TypeVar("T")
Wait = Callable[[Callable[[], Any], float], Any]


@dataclass
class Store:
    """The store as process `index` of `count` sees it. Keys are paths, values are JSON. One process
    has no use for it: it keeps nothing."""

    client: Any = None
    index: int = 0
    count: int = 1

    def put(self, key: str, value: Any) -> None:
        """Sets a key, whether or not it was set."""
        if self.client:
            self.client.key_value_set(f"infeed/{key}", json.dumps(value), allow_overwrite=True)

    def put_first(self, key: str, value: Any) -> Any:
        """Sets a key unless it is set; returns its value."""
        with suppress(StoreError):  # it is set
            if self.client:
                self.client.key_value_set(f"infeed/{key}", json.dumps(value))
        value_there = self.get(key)
        return value if value_there is None else value_there

    def get(self, key: str) -> Any:
        """The value of a key; None if it is not set."""
        try:
            return (
                json.loads(self.client.key_value_try_get(f"infeed/{key}")) if self.client else None
            )
        except StoreError as error:
            if str(error).startswith("NOT_FOUND"):
                return None
            raise

    def by_host(self, directory: str) -> dict[int, Any]:
        """Host -> value, for the keys `directory`/<host> that are set."""
        entries: Any = self.client.key_value_dir_get(f"infeed/{directory}/") if self.client else ()
        return dict(
            sorted((int(key.rpartition("/")[2]), json.loads(value)) for key, value in entries)
        )


def open_store() -> Store:
    """The store of this run."""
    state = distributed.global_state
    several = state.client is not None and state.num_processes > 1
    return Store(state.client, state.process_id, state.num_processes) if several else Store()


@dataclass
class Exchange:
    """The exchanges of one call of the trainer.

    call: its number.
    index, count: of this host, of all hosts.
    wait: returns the first value of a function that is not None, or None after some seconds, as
        Supervisor.wait."""

    store: Store
    call: int
    wait: Wait

    def __post_init__(self) -> None:
        self.index = self.store.index
        self.count = self.store.count
        self._made = Counter[str]()

    def from_host_0(self, name: str, make: Callable[[], T], seconds: float = math.inf) -> T:
        """What host 0 makes, on every host. If it raises, the supervisor tells the others.

        HostError on a host that does not get it within `seconds`."""
        key = self._next(name)
        if self.index == 0:
            self.post(key, [value := make()])
            return value
        posted = self.wait(lambda: self.posted(key), seconds)
        if posted is None:
            raise HostError(
                f"host 0 of {self.count} did not make the same call within {seconds:g} s: see its "
                "log. Every host has to make the same calls, in the same order."
            )
        return posted[0]

    def gather(
        self, name: str, value: Any, seconds: float, wait: Wait | None = None
    ) -> dict[int, Any]:
        """The values that hosts tell within `seconds`, by host: all of them, or else those that
        came. wait: instead of the exchange's own."""
        if self.count == 1:
            return {0: value}
        directory = self.tell(name, value)
        told = lambda: len(self.posted_by_host(directory)) == self.count or None  # noqa: E731
        (wait or self.wait)(told, seconds)
        return self.posted_by_host(directory)

    def from_all(self, name: str, value: T, seconds: float, wait: Wait | None = None) -> list[T]:
        """The values of all hosts, in their order. HostError if one of them does not report within
        `seconds`."""
        values = self.gather(name, value, seconds, wait)
        if len(values) < self.count:
            raise HostError(
                f"{self.count - len(values)} of {self.count} hosts did not report their {name} "
                f"within {seconds:g} s: see their logs."
            )
        return [*values.values()]

    def processes_here(self, seconds: float) -> int:
        """How many processes of the run are on this machine, of those that tell within
        `seconds`."""
        machine = socket.gethostname()
        with suppress(OSError):  # only Linux has it; containers of a machine share it
            machine = Path("/proc/sys/kernel/random/boot_id").read_text()
        return [*self.gather("machine", machine, seconds).values()].count(machine)

    def tell(self, name: str, value: Any) -> str:
        """Publishes a value of this host for hosts that `gather`; returns where."""
        directory = self._next(name)
        self.post(f"{directory}/{self.index}", value)
        return directory

    def post(self, name: str, value: Any) -> None:
        """Publishes a value under a name, for hosts that look for it without waiting."""
        self.store.put(f"{self.call}/{name}", value)

    def posted(self, name: str) -> Any:
        """The value under this name; None if there is none yet."""
        return self.store.get(f"{self.call}/{name}")

    def posted_by_host(self, name: str) -> dict[int, Any]:
        """The values under name/<host>, by host."""
        return self.store.by_host(f"{self.call}/{name}")

    def common_end(self) -> "CommonEnd":
        """The common end of one pass over an input."""
        return CommonEnd(self, self._next("read"))

    def _next(self, name: str) -> str:
        """A name for the next exchange of this name."""
        self._made[name] += 1
        return f"{name}/{self._made[name]}"


@dataclass
class CommonEnd:
    """How far one pass over an input reaches, for the feeder's thread of each host: the inputs end
    at the last step for which every host has a batch, and are compared. waiting: whether a call
    waits for another host now.

    All must ask at the same steps, as they do with the same dispatch plan, and get the same
    answer."""

    exchange: Exchange
    directory: str

    def __post_init__(self) -> None:
        # steps and digests; another host may be one dispatch ahead
        self._read = list[tuple[int, int | None]]()
        self._closed = threading.Event()
        self.waiting = False

    def __call__(self, step: int, ended: bool, digest: int | None = None) -> int:
        """The last step, up to `step`, for which every host has a batch. After `close` it returns
        `step`.

        step: of this host's newest batch. ended: whether this host has no further. digest: of all
        global batches so far; DisagreementError if it differs between hosts. None: of no
        interest."""
        if self.exchange.count == 1:
            return step
        self._read = [*self._read[-1:], (step, digest)]
        self.exchange.post(f"{self.directory}/{self.exchange.index}", [self._read, ended])
        self.waiting = True
        while (common := self._common(step)) is None and not self._closed.wait(LOOK_SECONDS):
            pass
        self.waiting = False
        return step if common is None else common

    def _common(self, step: int) -> int | None:
        """None if a host has not read as far, and may still."""
        hosts = self.exchange.posted_by_host(self.directory).values()
        if len(hosts) < self.exchange.count or any(
            read[-1][0] < step and not ended for read, ended in hosts
        ):
            return None
        digest = dict(self._read)[step]
        if digest is not None and any(dict(read).get(step) != digest for read, _ in hosts):
            raise DisagreementError(
                f"the hosts' programs delivered different batches up to step {step}, but "
                "each must deliver the same, in the same order. Give every shuffle a seed, list "
                "files with shuffle=False, leave out shard, and keep interleave and map "
                "deterministic."
            )
        return min(step, *(read[-1][0] for read, _ in hosts))

    def close(self) -> None:
        """Waits for no host any more."""
        self._closed.set()


class Decision(NamedTuple):
    """What to do before a dispatch. stop: why the loop ends here, "" if it continues; preempted:
    the process ends, too, by SIGINT if interrupted."""

    save: bool = False
    stop: str = ""
    preempted: bool = False
    interrupted: bool = False


NOTHING = Decision()


@dataclass
class SharedDecisions:
    """The polls of one session, over all its loops. asked: on host 0, the decision to end, if any
    host was asked to.

    Every host counts its polls, one before each dispatch. All hosts carry out at poll n + 2 what
    host 0 decides at its poll n. Host 0 posts the decision before it dispatches, and no other host
    gets to poll n + 2 earlier: that host must first have read the result of dispatch n, a sum over
    all hosts including host 0. So no host waits, and a poll costs one request."""

    exchange: Exchange
    asked: Callable[[], Decision | None]

    def __post_init__(self) -> None:
        self._number = 0
        self._due = dict[int, Decision]()

    def poll(self, decide: Callable[[], Decision] = lambda: NOTHING) -> Decision:
        """What to do now. decide: asked only on host 0, for what to do soon apart from a
        preemption."""
        number = self._number
        exchange = self.exchange
        self._number += 1
        if exchange.index == 0:
            # While a decision is pending, the clock would ask for the same again.
            decision = self.asked() or (NOTHING if self._due else decide())
            if decision != NOTHING:
                at = number + MARGIN * (exchange.count > 1)
                self._due[at] = decision
                exchange.post(f"decided/{at}", decision)
            return self._due.pop(number, NOTHING)
        decided = exchange.posted(f"decided/{number}")
        return NOTHING if decided is None else Decision(*decided)
