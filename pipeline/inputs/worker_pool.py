"""Batches that worker processes make: each is one host more, with a part of this host's rows.

The order is a pure function of the seed and the position, so the workers need not be coordinated,
and the bits do not depend on how many there are. Each writes its rows into a slot that is shared;
what is sent per batch is the number of a slot and, in return, the bad records. A worker that ends
or stops is an error of the input that names it and its rows."""

import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Pipe
from operator import itemgetter
from typing import NamedTuple

from pipeline.background import stalled
from pipeline.errors import InputError, OptionError
from pipeline.inputs.batches import Batch, Batches, planned_rows
from pipeline.inputs.quarantine import BadRecord, Quarantine
from pipeline.inputs.slots import Slots, anonymous_file
from pipeline.inputs.work import Work, packed
from pipeline.spec import mapped

AHEAD = 3  # slots whose batches are being made or wait
ALIVE_SECONDS = 1.0  # between two looks at whether a process is alive
inside_worker = False
COUNT_BYTES = 2  # of an answer that is the number of batches
END_SECONDS = 5.0  # for killed processes to end
# at this signal a worker writes the stacks of its threads
STACKS = signal.SIGUSR1
STACKS_SECONDS = 0.5
_PROGRAM = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from pipeline.inputs.worker_pool "
    "import Descriptors; from pipeline.inputs.worker import main; main(*map(int, sys.argv[2:4]), "
    "Descriptors(*json.loads(sys.argv[4])))"
)


class Descriptors(NamedTuple):
    """Open files of a worker. work: `sizes` bytes each of the parts of a pickled Work."""

    requests: int
    slots: int
    work: int
    sizes: list[int]


@dataclass(frozen=True)
class Answer:
    """A worker has written its rows of a batch, or met an error, with its stack as text. bad: the
    bad records that it met. Nearly all answers are not pickled, and only the number of batches."""

    bad: list[BadRecord] = field(default_factory=list)
    error: Exception | None = None
    stack: str = ""


def check_outside() -> None:
    """Raises OptionError in a worker process, which imports the modules of ops."""
    if inside_worker:
        raise OptionError(
            "a worker process would start workers: it imports the module of an op, which makes "
            "batches when it is imported. Put that under: if __name__ == '__main__':"
        )


class WorkerBatches(Batches):
    """The batches of a Work, as Batches, but made by as many processes as it has parts."""

    def __init__(self, work: Work, quarantine: Quarantine) -> None:
        check_outside()
        self._work = work
        self._quarantine = quarantine
        self._lock = threading.Lock()
        self._slots = Slots(work.decoder.spec, work.together, anonymous_file())
        self._requested = deque[int]()  # slots
        self._batches = iter(())  # of a slot, once each worker has made its rows
        self._left = work.order.remaining(work.position)
        self._position = work.position
        self._closed = self._interrupted = False
        shared, sizes = packed(work)
        self._workers = list[_Worker]()
        try:
            for index in range(len(work.rows)):
                self._workers.append(_Worker(index, self._slots.file, shared, sizes))
        finally:
            os.close(shared)
            self._end = weakref.finalize(self, _end, self._workers)

    def __next__(self) -> Batch:
        with self._lock:
            if self._interrupted:
                raise InputError(
                    "these batches were interrupted. Call batches(position) for the rest of them."
                )
            try:
                if self._closed:
                    raise StopIteration
                batch = next(self._batches, None) or self._of_next_slot()
                for worker in self._workers:
                    while not worker.ready:
                        self._answer(worker)
                    worker.ready -= 1
                self._position = self._work.order.advance(self._position, 1)
                return batch
            # Ctrl-C as well: some workers may have answered, and others not
            except BaseException as error:
                closed = self._closed
                self._interrupted = not isinstance(error, Exception)
                self.close()
                if closed and not self._interrupted:
                    raise StopIteration from None
                raise

    def _of_next_slot(self) -> Batch:
        while len(self._requested) < AHEAD and (self._left is None or self._left > 0):
            slot = self._slots.take()
            self._requested.append(slot)
            if self._left is not None:
                self._left -= self._work.together
            for worker in self._workers:
                worker.request(slot)
        if not self._requested:
            raise StopIteration
        arrays = self._slots.arrays(self._requested.popleft())
        count = self._work.together
        if not self._requested and self._left:
            count += self._left  # the last
        self._batches = (mapped(itemgetter(place), arrays) for place in range(count))
        return next(self._batches)

    def _answer(self, worker: "_Worker") -> None:
        left = self._work.stall_seconds
        while not worker.answers.poll(1000 * min(left, ALIVE_SECONDS)):
            left -= ALIVE_SECONDS
            # A process that was forked from this one meanwhile may keep a pipe open, whose end then
            # tells nothing.
            if worker.process.poll() is not None and not worker.answers.poll(0):
                raise InputError(f"{self._named(worker)}, {worker.ending()}")
            if left <= 0:
                worker.process.send_signal(STACKS)
                error = stalled(f"{self._named(worker)} and is alive", self._work.stall_seconds)
                time.sleep(STACKS_SECONDS)
                raise error
        try:
            message = worker.requests.recv_bytes()
        except (EOFError, OSError):
            raise InputError(f"{self._named(worker)}, {worker.ending()}") from None
        if len(message) == COUNT_BYTES:
            worker.ready += int.from_bytes(message)
            return
        answer: Answer = pickle.loads(message)
        worker.ready += 1
        self._quarantine.add(answer.bad)
        if answer.error is not None:
            answer.error.add_note(f"in {self._named(worker)}:\n{answer.stack}")
            raise answer.error

    def _named(self, worker: "_Worker") -> str:
        """The worker and its task."""
        rows = self._work.rows[worker.index]
        count = len(self._workers)
        planned = planned_rows(self._work.order, self._position, rows, self._work.together)
        ids = [number for number in next(planned).record_ids.tolist() if number >= 0]
        # more is known to the storage
        numbers = ", ".join(map(str, ids[:3])) + f", ..., {ids[-1]}" * (len(ids) > 3)
        making = (
            f", which was making the rows of records {numbers} of {self._work.records.info.name}"
            if ids
            else ""
        )
        return f"worker {worker.index + 1} of {count} (process {worker.process.pid}){making}"

    def close(self) -> None:
        """Ends the iteration and the workers, which takes milliseconds; half a second for one that
        a disk keeps."""
        self._closed = True
        self._batches = iter(())
        self._end()

    def join(self, timeout_seconds: float) -> bool:
        """Waits for each worker to end, this long. Returns whether all have."""
        for worker in self._workers:
            try:
                worker.process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                return False
        return True


class _Worker:
    def __init__(self, index: int, slots: int, work: int, sizes: list[int]) -> None:
        self.index = index
        self.ready = 0  # batches whose rows it has made, and that are not delivered
        self.requests, child_end = Pipe()
        self.answers = select.poll()  # Connection.poll takes 30 us
        self.answers.register(self.requests.fileno(), select.POLLIN)
        descriptors = Descriptors(child_end.fileno(), slots, work, sizes)
        # Python ignores others
        path = json.dumps([place for place in sys.path if isinstance(place, str)])
        flags = ["-P", *["-O"] * sys.flags.optimize]
        command = [sys.executable, *flags, "-c", _PROGRAM, path, f"{index}", f"{os.getpid()}"]
        command.append(json.dumps(descriptors))
        # In a session of its own, so that Ctrl-C spares it.
        self.process = subprocess.Popen(command, pass_fds=descriptors[:3], start_new_session=True)
        child_end.close()

    def request(self, slot: int) -> None:
        with contextlib.suppress(OSError):  # it has ended, which its answer will tell
            self.requests.send_bytes(slot.to_bytes(8))

    def ending(self) -> str:
        """How the process ended."""
        try:
            code = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return "no longer answers."
        if code >= 0:
            return f"ended with code {code}. An op, or a library that it calls, ended the process."
        memory = (
            " If nobody did that, the machine ran out of memory: see its log, and use fewer "
            "workers."
        )
        return f"was ended by signal {-code}.{memory if code == -9 else ''}"


def _end(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.process.kill()  # it holds nothing that is not shared or unnamed
    for worker in workers:
        worker.requests.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a disk that hangs keeps it
            worker.process.wait(END_SECONDS / 10)
