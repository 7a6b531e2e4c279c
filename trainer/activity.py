"""What the main thread of a call does, and how far its dispatches are: the progress that hosts tell each other.

The main thread writes attributes; the watchdog's thread reads a Row of them and finds from the rows of all hosts which
one is stuck. Heartbeats cannot tell that: they come from a thread of their own. Stdlib only."""

import itertools
import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pipeline.background import calls_of, thread_frames
from trainer.config import TrainerConfig

RECENT, LEAST = 100, 3  # finished dispatches that determine what is usual; with fewer than LEAST, nothing is
BARRIERS = ("/multihost/multihost.py", "/multihost_utils.py")  # of Orbax and JAX: their functions wait for all hosts
CONSUMER = "the consumer"  # in place of a setting: what the program does between two results limits nothing
TIMES_USUAL = 20  # a dispatch that takes longer than this many usual ones is stuck


class Row(NamedTuple):
    """What one host does. loops, launched, finished: of its dispatch loops, and the steps of the last one. moves: how
    often it has begun or ended something. limit: seconds that it may make no progress; setting: what sets it.

    waits: for devices or other hosts, so it need not be at fault. usual: seconds that the dispatches under way usually
    take, 0 if unknown. loop: which one it is in. seconds, input_seconds, host_seconds: for how long that has run,
    waited for its input, and worked on this host alone."""

    loops: int
    launched: int
    finished: int
    moves: int
    what: str
    limit: float
    setting: str
    waits: bool
    usual: float = 0.0
    loop: int = 0
    seconds: float = 0.0
    input_seconds: float = 0.0
    host_seconds: float = 0.0


@dataclass(frozen=True)
class Doing:
    """Something that the main thread does; see Row. Some loops tell more, see Dispatches."""

    what: str
    limit: float = math.inf
    setting: str = ""
    waits: bool = False


class Dispatches:
    """The dispatches of the loop of this number. The main thread sets `launched`, calls `finish`, and sets `at` to what
    it does meanwhile.

    source: its chunks, which may count the seconds of waiting for them. host_seconds: of its own work."""

    DEVICES = Doing("waiting for its devices", waits=True)
    INPUT = Doing("waiting for its input")  # the feeder has a limit
    WORK = Doing("at the work between two dispatches")

    def __init__(self, number: int, start: int, limits: TrainerConfig | None, source: Any) -> None:
        self.number = number
        self.launched = self.finished = start
        self.at, self.host_seconds, self._source = self.WORK, 0.0, source
        self._began, self._limits, self._ends = time.perf_counter(), limits, deque[tuple[float, int]](maxlen=RECENT)

    def finish(self, step: int, now: float) -> None:
        """Notes that the steps up to this one have finished. now: of time.perf_counter."""
        self._ends.append((now, step))
        self.finished = step

    def told(self) -> tuple[float, int, float, float, float]:
        """See Row: from `usual` on."""
        waited = getattr(self._source, "wait_seconds", 0.0)
        return self.usual(), self.number, time.perf_counter() - self._began, waited, self.host_seconds

    def now(self) -> Doing:
        """What the main thread does, and its limit now."""
        at, limits, usual = self.at, self._limits, self.usual()
        if limits is None or at is self.INPUT:
            return at
        if at is self.WORK:
            return replace(at, limit=limits.callback_seconds, setting="callback_seconds")
        what = f"{at.what}: it has launched the steps up to {self.launched}, and {self.finished} are finished"
        if not usual:
            return replace(at, what=what, limit=limits.compile_seconds, setting="compile_seconds")
        limit = max(limits.host_timeout_seconds, TIMES_USUAL * usual)
        return replace(at, what=what, limit=limit, setting=f"host_timeout_seconds, or {TIMES_USUAL} usual dispatches")

    def usual(self) -> float:
        """Seconds that what is launched usually takes; 0 if unknown."""
        ends = list(self._ends)  # in one piece: the main thread appends meanwhile
        if len(ends) <= LEAST:
            return 0.0
        per_step = [(now - before) / (step - at) for (before, at), (now, step) in itertools.pairwise(ends)]
        return statistics.median(per_step) * max(1, self.launched - self.finished)


class Activity:
    """What the main thread of one call does, innermost last. limits: of the call; None: nothing is limited.

    saved: the last step that a checkpoint is known to have; None if there is none."""

    def __init__(self, limits: TrainerConfig | None = None) -> None:
        self._limits, self._thread = limits, threading.get_ident()
        self.saved: int | None = None
        self._loops = self._moves = 0
        self._stack: list[Doing | Dispatches] = [self._limited("between its dispatches", "compile_seconds")]

    def doing(
        self, what: str, setting: str = "", times: float = 1, waits: bool = False
    ) -> AbstractContextManager[None]:
        """The block does this. setting: the field that limits it, `times` over; without one, it may take forever."""
        return self._inside(self._limited(what, setting, times, waits))

    @contextmanager
    def dispatches(self, start: int, source: Any) -> Iterator[Dispatches]:
        """The block is a loop over the chunks of `source`, from step `start` on."""
        self._loops += 1
        with self._inside(doing := Dispatches(self._loops, start, self._limits, source)):
            yield doing

    def _limited(self, what: str, setting: str, times: float = 1, waits: bool = False) -> Doing:
        limit = times * getattr(self._limits, setting, math.inf)
        return Doing(what, limit, setting, waits)

    @contextmanager
    def _inside(self, doing: Doing | Dispatches) -> Iterator[None]:
        self._stack.append(doing)
        self._moves += 1
        try:
            yield
        finally:
            self._stack.remove(doing)  # the innermost, except where a generator is closed late
            self._moves += 1

    def row(self) -> Row:
        """What is done now; for any thread."""
        stack = list(self._stack)
        loop = next((each for each in reversed(stack) if isinstance(each, Dispatches)), None)
        doing = stack[-1].now() if isinstance(stack[-1], Dispatches) else stack[-1]
        waits = doing.waits or (doing.limit < math.inf and self._is_in_barrier())
        told = (doing.what, doing.limit, doing.setting, waits)
        if loop is None:
            return Row(self._loops, 0, 0, self._moves, *told)
        return Row(self._loops, loop.launched, loop.finished, self._moves, *told, *loop.told())

    def _is_in_barrier(self) -> bool:
        """Whether a library waits for the other hosts, as Orbax does to save, and to say whether it saves."""
        if (frame := thread_frames().get(self._thread)) is None:
            return False
        return any(each.f_code.co_filename.endswith(BARRIERS) for each in calls_of(frame))


class Stuck(NamedTuple):
    """Who keeps the run from going on: a host, or None for the devices of all; for how long, and how long it may."""

    host: int | None
    seconds: float
    limit: float
    text: str


def find_stuck(rows: Mapping[int, Row], still: Mapping[int, float]) -> Stuck:
    """The host that the others wait for. rows: of all hosts; still: seconds in which each has made no progress.

    A host at work of its own comes before one that waits; of those, the one whose dispatches are furthest behind; then
    the one that may work for longest, because the others may wait for it, as in a save; then the one that has stood
    still for longest. If all wait and have launched alike, it is the devices: those of one program cannot be told
    apart."""
    working = {host: row for host, row in rows.items() if not row.waits}
    among = working or rows
    host = min(among, key=lambda host: (*among[host][:2], -among[host].limit, -still[host], host))
    row, seconds = rows[host], still[host]
    if len(rows) > 1 and not working and len({row[:2] for row in rows.values()}) == 1:
        limit, seconds = max(row.limit for row in rows.values()), min(still.values())
        text = f"every host has launched the steps up to {row.launched}, and {row.finished} are finished"
        return Stuck(None, seconds, limit, _told(text, seconds, limit, row.setting))
    return Stuck(host, seconds, row.limit, _told(f"it is {row.what}", seconds, row.limit, row.setting))


def _told(what: str, seconds: float, limit: float, setting: str) -> str:
    return f"no progress for {seconds:.0f} s; {what} (limit {limit:.0f} s: {setting})"


def slowest_host(before: Mapping[int, Row], now: Mapping[int, Row]) -> dict[str, Any]:
    """The fields of Speed about the host that launched last, between two tables of one loop; {} if they are not.

    That is where most of the time went into waiting for the input and work of its own."""
    shares = {}
    for host, row in now.items():
        then = before.get(host)
        if then is None or then.loop != row.loop or row.seconds <= then.seconds:
            return {}
        seconds, waited, worked = (new - old for new, old in zip(row[-3:], then[-3:], strict=True))
        shares[host] = ((waited + worked) / seconds, waited / seconds)
    if not shares:
        return {}
    host = max(shares, key=lambda host: shares[host])
    most = max(waited for _, waited in shares.values())
    return {"slowest_host": host, "slowest_share": shares[host][0], "input_wait_max": most}


class StandingStill:
    """For how long each host has made no progress, by a clock that stops while this process does.

    tick_seconds: about the time between two looks."""

    def __init__(self, tick_seconds: float) -> None:
        self._most, self._looked, self.clock = 2 * tick_seconds, time.monotonic(), 0.0
        self._since: dict[int, tuple[Any, float]] = {}

    def look(self, places: Mapping[int, Any]) -> dict[int, float]:
        """Seconds by host, since a look first saw it at its place."""
        now = time.monotonic()
        self.clock += min(now - self._looked, self._most)
        self._looked = now
        for host, place in places.items():
            if self._since.get(host, (None,))[0] != place:
                self._since[host] = (place, self.clock)
        return {host: self.clock - self._since[host][1] for host in places}
