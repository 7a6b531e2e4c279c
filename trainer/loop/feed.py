"""The feeder: a thread that reads, checks, stacks and places host batches ahead of the device.

Of dispatches of several steps, three are on the devices at most: one runs, one is launched, one is
being placed. On the host there is one more."""

import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

import jax
import numpy as np

from pipeline.background import Background
from pipeline.errors import InputError, StallError
from pipeline.inputs.slots import Slots
from pipeline.logs import logger
from pipeline.raw.cells import MISSING
from pipeline.spec import MASK
from trainer.hosts.exits import Check
from trainer.loop.compiled import Compiled
from trainer.mesh.batch_spec import check_batch

log = logger("trainer")
DEPTH = 2  # single batches placed ahead; one more is being placed and one is in use
CLOSE_WAIT_SECONDS = 2.0
TOGETHER_BYTES = 2**20  # of batches that are copied in one call


@dataclass(frozen=True)
class Chunk:
    """The batches of one dispatch, on the devices: `length` single ones, or a super-batch if
    `stacked`."""

    start: int
    length: int
    batches: tuple[Any, ...]
    stacked: bool


@dataclass(frozen=True)
class _Host:
    """The batches of one dispatch, or fewer, on this host. stacked: the same as one tree of arrays,
    of several."""

    count: int
    batch: Callable[[int], dict[str, Any]]
    stacked: Any = None


@dataclass
class Chunks:
    """One Chunk for each of `lengths`, after `start` steps, placed on devices by `program`.

    end: the last step of the lengths; None if the input ends them.
    common: a CommonEnd, if there are several hosts; the last chunks are single batches.
    labels: keys of class numbers, if the task has no Target. The first missing one is logged.
    read: the step of the newest batch. taken: the last step of the newest chunk that was taken.

    Iterating raises InputError, naming the step, for a batch unlike `struct` and for an input that
    ends early. Exceptions of the input pass unchanged, with a note that names the step."""

    batches: Iterator[Mapping[str, Any]]
    start: int
    end: int | None
    lengths: Iterable[int]
    struct: Mapping[str, Any]
    program: Compiled
    common: Any = None
    labels: Collection[str] = ()

    def __post_init__(self) -> None:
        self.read = self.taken = self.start
        self._memory: Slots | None = None
        self.room = threading.Semaphore()  # for a chunk of several steps, placed and not yet taken

    def __iter__(self) -> Iterator[Chunk]:
        with ExitStack() as stack:
            # A generator can only be closed here, in the thread that runs it.
            stack.callback(getattr(self.batches, "close", lambda: None))
            step = self.start
            save_state = getattr(self.batches, "save_state", lambda _: None)
            for length in self.lengths:
                host = self._read(length)
                count = host.count
                save_state(self.taken - self.start)
                if self.common is not None:
                    digest = getattr(self.batches, "digest", None)
                    count = self.common(step + count, count < length, digest) - step
                if count < host.count:
                    log.warning(
                        "the input of another host ended at step %d: this host's later batches "
                        "are left out",
                        step + count,
                    )
                if count < length:
                    for i in range(count):
                        yield self._placed(step + i, _Host(1, [host.batch(i)].__getitem__))
                    return
                yield self._placed(step, host)
                del host  # before the next are read
                step += length

    def _read(self, length: int) -> "_Host":
        """The next batches; fewer if the input ends. Several are copied to memory that is aligned
        and used again."""
        if length == 1:
            batches = list(self._host_batches(1))
            return _Host(len(batches), batches.__getitem__)
        leaves, tree = jax.tree.flatten(dict(self.struct))
        if self._memory is None:
            self._memory = Slots({str(number): leaf for number, leaf in enumerate(leaves)}, length)
        stacked = list(self._memory.arrays(self._memory.take()).values())
        count = 0
        together = max(1, TOGETHER_BYTES // (1 + sum(array[0].nbytes for array in stacked)))
        for begin in range(0, length, together):
            few = list(self._host_batches(min(together, length - begin)))
            parts = zip(*map(jax.tree.leaves, few), strict=True)
            for array, rows in zip(stacked, parts, strict=False):
                # One call for several batches: for small ones the calls cost more than the bytes.
                first, *others = array.shape[1:]
                out = array[begin : begin + len(few)].reshape(len(few) * first, *others)
                np.concatenate(rows, out=out)
            count = begin + len(few)
            if count < min(begin + together, length):
                break  # an input that ended is not asked again
        return _Host(
            count,
            lambda i: tree.unflatten([array[i] for array in stacked]),
            tree.unflatten(stacked),
        )

    def _host_batches(self, count: int) -> Iterator[dict[str, Any]]:
        for _ in range(count):
            try:
                batch = next(self.batches, None)
                if batch is not None:
                    check_batch(batch, self.struct)
                    self._warn_of_missing(batch)
            except Exception as error:
                error.add_note(f"while reading the batch of step {self.read + 1}")
                raise
            if batch is None:
                break
            self.read += 1
            yield dict(batch)
        else:
            return
        if self.end is not None:
            raise InputError(
                f"the input ended before step {self.read + 1}: it returned "
                f"{self.read - self.start} batches from step {self.start + 1} on, expected "
                f"{self.end - self.start}. Repeat the input, or ask for fewer steps."
            )

    def _warn_of_missing(self, batch: Mapping[str, Any]) -> None:
        """Logs once that labels are missing, which a loss would take for those of a class."""
        for name in self.labels:
            missing = int(((batch[name] == MISSING) & (batch[MASK] > 0)).sum())
            if missing:
                log.warning(
                    "%d of the labels %r of a batch are %d, which means that they are missing, and "
                    "the task has no Target: its loss and metrics take them for labels. Give the "
                    "Task target=Target(%r, classes), which leaves such records out of both",
                    missing,
                    name,
                    MISSING,
                    name,
                )
                self.labels = ()
                return

    def _placed(self, step: int, host: "_Host") -> Chunk:
        program = self.program
        length = host.count
        if length > 1:
            self.room.acquire()
            if program.scans:
                return Chunk(step, length, (program.place(host.stacked, True),), True)
        batches = tuple(program.place(host.batch(i), False) for i in range(length))
        return Chunk(step, length, batches, False)

    def close(self) -> None:
        """Closes the input, if it can be closed from a thread other than the iterating one."""
        self.room.release()
        if self.common is not None:
            self.common.close()
        if not isinstance(self.batches, GeneratorType):
            getattr(self.batches, "close", lambda: None)()


@dataclass
class Feeder(Iterator[Chunk]):
    """Runs `source` ahead in a thread. wait_seconds: how long the host has waited.

    stall_seconds: how long one batch may take; beyond it, a StallError, with the stacks of all
    threads in the log. check: called while waiting for a chunk. If it raises, the following `next`
    returns the chunk."""

    source: Chunks
    stall_seconds: float
    check: Check = lambda: None

    def __post_init__(self) -> None:
        self.wait_seconds = 0.0
        self._begun = self._heard = self.source.read
        self._ahead = Background(
            self.source,
            limit=DEPTH,
            name="trainer-feeder",
            stall_seconds=self.stall_seconds,
            check=self._alive,
        )
        weakref.finalize(self, self.source.room.release).atexit = False  # dropped without close

    def _alive(self) -> bool:
        """Whether a batch was read since the last check, as k of them may take long, or dropped to
        resume, or another host's is awaited, whose own bound ends the wait."""
        self.check()
        heard = self._heard
        self._heard = self.source.read + getattr(self.source.batches, "skipped", 0)
        return self._heard > heard or (
            self.source.common is not None and self.source.common.waiting
        )

    def __next__(self) -> Chunk:
        started = time.perf_counter()
        try:
            chunk = next(self._ahead)
            self.source.taken = chunk.start + chunk.length
            if chunk.length > 1:
                self.source.room.release()
            return chunk
        except StallError as error:
            last = "no batch was read"
            if self.source.read > self._begun:
                last = f"the last batch read was of step {self.source.read}"
            error.add_note(f"waiting for the input: {last}")
            raise
        finally:
            self.wait_seconds += time.perf_counter() - started

    def close(self) -> None:
        """Ends the thread and its input, even while that waits for a stalled source."""
        self._ahead.close()
        self.source.close()
        self._ahead.join(CLOSE_WAIT_SECONDS)
