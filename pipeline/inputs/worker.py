"""A worker process: makes its rows of every batch, as a host of its own would, and writes them into
shared slots.

Loads neither JAX nor TensorFlow, unless an op does. It ends with the process that started it,
however that ends: then it has another parent. One whose op holds the GIL in C does so when that
returns. Ctrl-C and SIGTERM are for that process alone."""

import faulthandler
import itertools
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any, NoReturn, TypeVar

from pipeline.decoding import row_threads
from pipeline.errors import BadRecordsError, InputError
from pipeline.inputs import worker_pool
from pipeline.inputs.batch_decoder import BatchDecoder
from pipeline.inputs.batches import Turns, made_in_turns, planned_rows, read_ahead
from pipeline.inputs.quarantine import BadRecord, OnError, Quarantine
from pipeline.inputs.slots import Slots
from pipeline.inputs.work import Work, unpacked
from pipeline.inputs.worker_pool import ALIVE_SECONDS, COUNT_BYTES, STACKS, Answer, Descriptors

T = TypeVar("T")


class _Collected(Quarantine):
    """Adds bad records to the list `new`. The process that started this one reports them, and
    counts those of all workers."""

    def __init__(self, on_error: OnError, max_bad_records: int, new: list[BadRecord]) -> None:
        super().__init__(on_error, max_bad_records)
        self._new = new
        self._numbers = set[int]()

    def add(self, records: Iterable[BadRecord]) -> None:
        for bad in records:
            self._new.append(bad)
            self._numbers.add(bad.record_id)
        if len(self._numbers) > self.max_bad_records:
            raise BadRecordsError(f"{len(self._numbers)} records are bad.")


def main(index: int, parent: int, descriptors: Descriptors) -> NoReturn:
    """Answers every number of a slot."""
    faulthandler.register(STACKS)
    for number in (signal.SIGINT, signal.SIGTERM):
        # unlike SIG_IGN, not inherited by processes that an op may start
        signal.signal(number, lambda *_: None)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    requests = Connection(descriptors.requests)
    worker_pool.inside_worker = True
    bad = list[BadRecord]()  # those not yet reported
    try:
        work = unpacked(descriptors.work, descriptors.sizes)
        _answer(index, requests, descriptors, work, bad)
    except Exception as error:
        _or_end(requests.send_bytes, _pickled(error, bad))
    threading.Event().wait()  # until it is ended
    raise AssertionError


def _end_with(parent: int) -> NoReturn:
    while os.getppid() == parent:
        time.sleep(ALIVE_SECONDS / 4)
    os._exit(0)


def _answer(
    index: int, requests: Connection, descriptors: Descriptors, work: Work, bad: list[BadRecord]
) -> None:
    row_threads.THREADS = work.threads
    rows = work.rows[index]
    first = sum(len(each) for before in work.rows[:index] for each in before)
    slots = Slots(work.decoder.spec, work.together, descriptors.slots)
    turns = Turns()
    quarantine = _Collected(work.on_error, work.max_bad_records, bad)
    decode = BatchDecoder(work.records, work.decoder, quarantine, sum(map(len, rows)))
    planned = planned_rows(work.order, work.position, rows, work.together)
    for delivery in read_ahead(work.records, planned, work.read_ahead_bytes, turns):
        slot = int.from_bytes(_or_end(requests.recv_bytes))
        places = itertools.count()
        for part in made_in_turns([delivery], decode.parts, turns):
            batches = list(part)
            for batch in batches:
                slots.write(slot, next(places), first, batch)
            # where records are bad, the part is one batch
            answer = pickle.dumps(Answer(bad)) if bad else len(batches).to_bytes(COUNT_BYTES)
            _or_end(requests.send_bytes, answer)
            bad.clear()
    _or_end(requests.recv_bytes)  # comes only if more is expected
    raise InputError(
        f"{work.records.info.name} ended early: it returned fewer records than it states."
    )


def _or_end(call: Callable[..., T], *args: Any) -> T:
    """Ends this process if the one that started it is gone."""
    try:
        return call(*args)
    except (EOFError, OSError):
        os._exit(0)


def _pickled(error: Exception, bad: list[BadRecord]) -> bytes:
    answer = Answer(bad, error, traceback.format_exc())
    try:
        pickle.loads(pickled := pickle.dumps(answer))
        return pickled
    except Exception:  # an error of a user's may not be able to travel
        return pickle.dumps(
            Answer(bad, RuntimeError(f"{type(error).__name__}: {error}"), answer.stack)
        )
