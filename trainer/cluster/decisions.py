"""What host 0 decides and all hosts carry out before the same dispatch: to save by the clock, to stop, to be preempted.

SIGTERM and SIGINT are requests: the trainer saves at the next opportunity, and ends the process or the call. SIGTERM is
for the process: after it, every later call ends immediately. SIGINT, as of Ctrl-C, is for the call that receives it: it
raises KeyboardInterrupt, and a program that catches that may make another call. The watchdog ends a process that makes
no progress after a request, or gets a second SIGTERM; a second SIGINT ends it at once."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from trainer.cluster.exchange import Exchange
from trainer.cluster.store import Store, open_store
from trainer.exits import Interrupted, Preempted
from trainer.interrupts import FirstOne, Interrupts

KEY = "preempted"  # of the run. A host's value: "" for SIGTERM, for SIGINT the session that received it
MARGIN = 2  # polls
SAVING = "interrupted: saving the run; a second interrupt (Ctrl-C) ends the process without saving"
STOPPING = "interrupted: stopping; a second interrupt (Ctrl-C) ends the process"
SAVED = "all progress is saved, and the same command resumes from there"
UNSAVED = "there was nothing to save: run the same command again"

TWICE_SECONDS = 1.0  # a launcher may pass on a SIGTERM that the process has received itself

_requested = threading.Event()


class Request(NamedTuple):
    """Which signal which host received, in words; interrupted: by SIGINT."""

    where: str
    interrupted: bool


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

    def anywhere(self) -> Request | None:
        """The request to any process of the run; None if there is none. Asks the store."""
        here = {self._store.index: ""} if _requested.is_set() else {}
        if self._interrupts.heard:
            here.setdefault(self._store.index, self._call)
        told = self._store.by_host(KEY) if self._store.count > 1 else {}
        hosts = {host: call for host, call in (told | here).items() if call in ("", self._call)}
        if not hosts:
            return None
        host = min(hosts)
        name = "SIGINT" if hosts[host] else "SIGTERM"
        return Request(f"{name} on host {host} of {self._store.count}", bool(hosts[host]))

    def check(self) -> None:
        """Raises an Ending if this process was asked to end. For code that has nothing to save."""
        if _requested.is_set():
            raise Preempted(f"SIGTERM; {self._why}")
        self._interrupts.check()


class Decision(NamedTuple):
    """What to do before a dispatch. stop: why the loop ends here, "" if it continues; preempted: the process ends, too,
    by SIGINT if interrupted."""

    save: bool = False
    stop: str = ""
    preempted: bool = False
    interrupted: bool = False


NOTHING = Decision()


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
