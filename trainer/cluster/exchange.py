"""The one way in which the hosts of a call talk to each other: JSON values under names, how far their inputs
reach; and what host 0 decides, which all carry out before the same dispatch: to save by the clock, to stop, to end.

Waits end with a HostError if another host fails, or with an Ending if the process was asked to end; see HostWatchdog.
Every host has to make the same exchanges in the same order.

SIGTERM and SIGINT are requests: the trainer saves at the next opportunity, and ends the process or the call. SIGTERM is
for the process: after it, every later call ends immediately. SIGINT, as of Ctrl-C, is for the call that receives it: it
raises KeyboardInterrupt, and a program that catches that may make another call. The watchdog ends a process that makes
no progress after a request, or gets a second SIGTERM; a second SIGINT ends it at once."""

import json
import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from pipeline.errors import HostError, InputError
from trainer.cluster.host_registry import HostRegistry
from trainer.cluster.store import Store, open_store
from trainer.exits import FirstOne, Interrupted, Interrupts, Preempted

LOOK_SECONDS = 0.005  # between two looks; the feeder is chunks ahead, so nothing waits for them

T = TypeVar("T")
KEY = "preempted"  # of the run. A host's value: "" for SIGTERM, for SIGINT the session that received it
MARGIN = 2  # polls
SAVING = "interrupted: saving the run; a second interrupt (Ctrl-C) ends the process without saving"
STOPPING = "interrupted: stopping; a second interrupt (Ctrl-C) ends the process"
SAVED = "all progress is saved, and the same command resumes from there"
UNSAVED = "there was nothing to save: run the same command again"

TWICE_SECONDS = 1.0  # a launcher may pass on a SIGTERM that the process has received itself

_requested = threading.Event()


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
    """How far one pass over an input reaches, for the feeder's thread of each host: the inputs end at the last step for
    which every host has a batch, and are compared. waiting: whether a call waits for another host now.

    All must ask at the same steps, as they do with the same dispatch plan, and get the same answer."""

    def __init__(self, store: Store, directory: str) -> None:
        self._store, self._directory = store, directory
        self._read: list[tuple[int, int | None]] = []  # steps and digests; another host may be one dispatch ahead
        self._closed = threading.Event()
        self.waiting = False

    def __call__(self, step: int, ended: bool, digest: int | None = None) -> int:
        """The last step, up to `step`, for which every host has a batch. After `close` it returns `step`.

        step: of this host's newest batch. ended: whether this host has no further. digest: of all global batches so
        far; InputError if it differs between hosts. None: of no interest."""
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


class Decision(NamedTuple):
    """What to do before a dispatch. stop: why the loop ends here, "" if it continues; preempted: the process ends, too,
    by SIGINT if interrupted."""

    save: bool = False
    stop: str = ""
    preempted: bool = False
    interrupted: bool = False


NOTHING = Decision()


class Asked(NamedTuple):
    """How this process was asked to end: by which signal, "" if it was not; again: by a second one."""

    name: str = ""
    again: bool = False


class Preemption:
    """Listens for SIGTERM and SIGINT during a call of the trainer, as a context manager.

    Only in the main thread, where Python delivers signals, and only if the program has no handler of its own.
    saves: whether the call has anything to save. store: of the run."""

    def __init__(self, saves: bool = False, *, store: Store | None = None) -> None:
        self._store = store or open_store()
        self._listening = False
        self._call = ""
        words, self._why = (SAVING, SAVED) if saves else (STOPPING, UNSAVED)
        self._interrupts = Interrupts(FirstOne.WAITS, words, self._hear, lambda: Interrupted(f"SIGINT; {self._why}"))
        self._asked, self._asked_at = Asked(), math.inf

    def __enter__(self) -> "Preemption":
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, None):
            signal.signal(signal.SIGTERM, self._on_sigterm)
            self._listening = True
        self._interrupts.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._listening:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._interrupts.__exit__()
        if error is None:
            self._interrupts.check()  # received while the last checkpoint was written

    def _on_sigterm(self, *_: object) -> None:
        if not _requested.is_set():
            _requested.set()
            self._tell("")

    def _hear(self, number: int) -> None:
        """Handles a signal in the listening thread; the main thread may be inside C and handle it late or never."""
        now, name = time.monotonic(), signal.Signals(number).name
        if self._asked_at == math.inf:
            self._asked, self._asked_at = Asked(name), now
        elif now - self._asked_at > TWICE_SECONDS:
            self._asked = Asked(name, again=True)
        self._tell(self._call) if number == signal.SIGINT else self._on_sigterm()

    def asked(self) -> "Asked":
        """How this process was asked to end. Asks no store."""
        return self._asked._replace(name=self._asked.name or "SIGTERM" * _requested.is_set())

    def _tell(self, what: str) -> None:
        if self._store.count > 1:  # a thread, because the main thread may be inside the store
            threading.Thread(target=self._store.put, args=(f"{KEY}/{self._store.index}", what), daemon=True).start()

    def within(self, exchange: Exchange) -> None:
        """Sets the session; call it before the first poll."""
        self._call = exchange.key("interrupted")
        if self._interrupts.heard:
            self._tell(self._call)

    @contextmanager
    def leavable(self) -> Iterator[None]:
        """Makes SIGINT an exception in the block, which may be left anywhere without losing anything."""
        self._interrupts.first = FirstOne.RAISES
        try:
            yield
        except Exception:
            self._interrupts.check()  # a library that was interrupted may have raised an error of its own
            raise
        finally:
            self._interrupts.first = FirstOne.WAITS
        self._interrupts.check()

    def anywhere(self) -> Decision | None:
        """To end, because any process of the run was asked to; None if none was. Asks the store."""
        here = {self._store.index: ""} if _requested.is_set() else {}
        if self._interrupts.heard:
            here.setdefault(self._store.index, self._call)
        told = self._store.by_host(KEY) if self._store.count > 1 else {}
        hosts = {host: call for host, call in (told | here).items() if call in ("", self._call)}
        if not hosts:
            return None
        host = min(hosts)
        name = "SIGINT" if hosts[host] else "SIGTERM"
        return Decision(True, f"{name} on host {host} of {self._store.count}", True, bool(hosts[host]))

    def check(self) -> None:
        """Raises an Ending if this process was asked to end. For code that has nothing to save."""
        if _requested.is_set():
            raise Preempted(f"SIGTERM; {self._why}")
        self._interrupts.check()


class SharedDecisions:
    """The polls of one session, over all its loops.

    Every host counts its polls, one before each dispatch. All hosts carry out at poll n + 2 what host 0 decides at its
    poll n. Host 0 posts the decision before it dispatches, and no other host gets to poll n + 2 earlier: that host must
    first have read the result of dispatch n, a sum over all hosts including host 0. So no host waits, and a poll costs
    one request."""

    def __init__(self, exchange: Exchange, preemption: Preemption) -> None:
        self._exchange, self._preemption = exchange, preemption
        self._number = 0
        self._due: dict[int, Decision] = {}

    def poll(self, decide: Callable[[], Decision] = lambda: NOTHING) -> Decision:
        """What to do now. decide: asked only on host 0, for what to do soon apart from a preemption."""
        number, exchange = self._number, self._exchange
        self._number += 1
        if exchange.index == 0:
            # While a decision is pending, the clock would ask for the same again.
            decision = self._preemption.anywhere() or (NOTHING if self._due else decide())
            if decision != NOTHING:
                at = number + (MARGIN if exchange.count > 1 else 0)
                self._due[at] = decision
                if exchange.count > 1:
                    exchange.post(f"decided/{at}", decision)
            return self._due.pop(number, NOTHING)
        found = exchange.posted(f"decided/{number}")
        return NOTHING if found is None else Decision(*found)
