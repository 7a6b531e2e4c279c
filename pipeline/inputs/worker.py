"""A worker process: makes its rows of every batch, as a host of its own would, and writes them into shared slots.

Loads neither JAX nor TensorFlow, unless an op does. It ends with the process that started it, however that ends: a pipe
closes then. Ctrl-C and SIGTERM are for that process alone."""

import faulthandler
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import NoReturn

from pipeline.decoding import rows as row_decoding
from pipeline.inputs.bad_records import BadRecord, OnError, Quarantine
from pipeline.inputs.batch_decoder import BatchDecoder
from pipeline.inputs.batches import Turns, planned_rows, read_ahead
from pipeline.inputs.slots import Slots
from pipeline.inputs.worker_pool import DONE, STACKS, Answer, Descriptors, Work, unpacked


class _Found(Quarantine):
    """Collects what it is told. The process that started this one counts and reports."""

    def __init__(self, on_error: OnError) -> None:
        super().__init__(on_error)
        self.new: list[BadRecord] = []

    def add(self, found: Iterable[BadRecord]) -> None:
        self.new += found


def main(index: int, descriptors: Descriptors) -> NoReturn:
    """Answers every number of a slot."""
    faulthandler.register(STACKS)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=lambda: (os.read(descriptors.life, 1), os._exit(0)), daemon=True).start()
    requests = Connection(descriptors.requests)
    try:
        _answer(index, requests, descriptors)
    except Exception as error:
        requests.send_bytes(_pickled(error))
    threading.Event().wait()  # until it is ended
    raise AssertionError


def _answer(index: int, requests: Connection, descriptors: Descriptors) -> None:
    work: Work = unpacked(descriptors.work, descriptors.sizes)
    row_decoding.THREADS = work.threads
    rows, first = work.rows[index], sum(len(each) for before in work.rows[:index] for each in before)
    slots, turns, found = Slots(work.decoder.spec, descriptors.slots), Turns(), _Found(work.on_error)
    decode = BatchDecoder(work.records, work.decoder.of_rows(sum(map(len, rows))), found)
    planned = planned_rows(work.order, work.position, rows)
    for delivery in read_ahead(work.records, planned, work.read_ahead_bytes, turns):
        slot = int.from_bytes(requests.recv_bytes())
        with turns():
            slots.write(slot, first, decode(delivery))
        requests.send_bytes(pickle.dumps(Answer(found.new)) if found.new else DONE)
        found.new = []


def _pickled(error: Exception) -> bytes:
    answer = Answer(error=error, stack=traceback.format_exc())
    try:
        pickle.loads(found := pickle.dumps(answer))
        return found
    except Exception:  # an error of a user's may not be able to travel
        return pickle.dumps(Answer(error=RuntimeError(f"{type(error).__name__}: {error}"), stack=answer.stack))
