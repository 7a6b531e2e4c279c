"""The threads behind an Input's batches: one reads ahead, a few decode. An iterator over what they make.

Knows neither records nor orders: an Input gives it what is read, and how a batch is made of that."""

import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from pipeline.background import Background
from pipeline.stall import stalled

__all__ = ["DECODING", "Batch", "Batches"]

DECODING = 2  # batches that are decoded at a time, and as many that wait
Batch = dict[str, np.ndarray]
T = TypeVar("T")


class Batches(Iterator[Batch]):
    """The batches from a position on. `close` returns at once, whatever the threads behind it wait for.

    A `next` that waits longer than stall_seconds, for reading or then for decoding, ends in a StallError. After any
    error it is closed."""

    def __init__(self, reading: Background[T], decode: Callable[[T], Batch], stall_seconds: float) -> None:
        self._reading: Background[Any] = reading
        self._stall_seconds = stall_seconds
        # Two batches at a time: 1.4x of one, though each uses all cores (32x32 JPEGs, 2 cores).
        self._pool = pool = ThreadPoolExecutor(DECODING, "infeed-decode")
        futures = (pool.submit(decode, delivery) for delivery in reading)
        # One bound, here: `reading` with one too would count while no one waits, and both could end in one stall.
        self._decoded = Background(futures, limit=DECODING, name="infeed-submit", stall_seconds=stall_seconds)
        # Dropped without close: a thread may sit in a stalled `next(reading)` and would keep it alive.
        weakref.finalize(self, reading.close).atexit = False

    def __next__(self) -> Batch:
        try:
            return self._result(next(self._decoded))
        except CancelledError:
            raise StopIteration from None  # closed meanwhile
        except Exception:
            self.close()
            raise

    def _result(self, future: Future[Batch]) -> Batch:
        try:
            return future.result(self._stall_seconds)
        except TimeoutError:
            if future.done():  # at the last moment, or the error is its own
                return future.result()
        raise stalled("a batch that is being decoded ('infeed-decode')", self._stall_seconds)

    def close(self) -> None:
        """Ends the iteration. Threads end as soon as disk and TensorFlow give them control again."""
        self._reading.close()
        self._decoded.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def join(self, timeout_seconds: float) -> bool:
        """Waits until reading and submitting have ended, at most so long each; whether they have."""
        return self._reading.join(timeout_seconds) & self._decoded.join(timeout_seconds)
