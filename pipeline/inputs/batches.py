"""An iterator over a DatasetInput's batches, and its threads: one reads ahead, a few decode.

Independent of records and orders: a DatasetInput passes in what is read, and the function that makes a batch of it."""

import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from pipeline.background import Background
from pipeline.stall import stalled

__all__ = ["DECODING", "Batch", "Batches"]

DECODING = 2  # batches decoded at a time; as many wait
Batch = dict[str, np.ndarray]
T = TypeVar("T")


class Batches(Iterator[Batch]):
    """The batches from a position on. `close` returns immediately, whatever its threads wait for.

    `next` raises StallError if reading, or then decoding, takes longer than stall_seconds. Any error closes it."""

    def __init__(self, reading: Background[T], decode: Callable[[T], Batch], stall_seconds: float) -> None:
        self._reading: Background[Any] = reading
        self._stall_seconds = stall_seconds
        # Two batches at a time are 1.4x as fast as one, though each uses all cores (32x32 JPEGs, 2 cores).
        self._pool = pool = ThreadPoolExecutor(DECODING, "infeed-decode")
        futures = (pool.submit(decode, delivery) for delivery in reading)
        # The only time limit is here: one of `reading` would also count while no one waits, and both could expire.
        self._decoded = Background(futures, limit=DECODING, name="infeed-submit", stall_seconds=stall_seconds)
        # If dropped without close, a thread in a stalled `next(reading)` would keep it alive.
        weakref.finalize(self, reading.close).atexit = False

    def __next__(self) -> Batch:
        try:
            return self._result(next(self._decoded))
        except CancelledError:
            raise StopIteration from None  # closed by another thread
        except Exception:
            self.close()
            raise

    def _result(self, future: Future[Batch]) -> Batch:
        try:
            return future.result(self._stall_seconds)
        except TimeoutError:
            if future.done():  # it finished at the last moment, or raised TimeoutError itself
                return future.result()
        raise stalled("a batch that is being decoded ('infeed-decode')", self._stall_seconds)

    def close(self) -> None:
        """Ends the iteration. Threads end as soon as the disk and TensorFlow return control."""
        self._reading.close()
        self._decoded.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def join(self, timeout_seconds: float) -> bool:
        """Waits for reading and then submitting to end, this long each. Returns whether both have."""
        return self._reading.join(timeout_seconds) & self._decoded.join(timeout_seconds)
