"""Reads ranges of objects concurrently, and hands them out in order.

Requests run ahead of the reader, with bounds on their number and bytes."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from pipeline.storage.storage import Ranges

REQUESTS_AHEAD = 64
# 18 reads of 4 MiB: 16 of them are under way while others have ended, but wait for the first
BYTES_AHEAD = 72 * 1024**2

Read = Callable[[str, int, int, threading.Event | None], bytes]
"""(path, offset, size, left) -> exactly that many bytes. left: set once no caller waits."""
_Task = tuple[Future[bytes], str, int, int]


def read_ahead(ranges: Ranges, read: Read) -> Iterator[bytes]:
    """The bytes of each (path, offset, size), in order."""
    ahead = deque[tuple[Future[bytes], int]]()
    tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
    held = 0
    threads = 0
    left = threading.Event()
    try:
        for path, offset, size in ranges:
            while ahead and (len(ahead) >= REQUESTS_AHEAD or held + size > BYTES_AHEAD):
                future, done = ahead.popleft()
                yield future.result()
                held -= done
            if threads == len(ahead):
                # Not an executor: the process would wait for its threads at exit, and one may hang
                # in a request.
                threading.Thread(
                    target=_work, args=(read, tasks, left), name="infeed-bucket", daemon=True
                ).start()
                threads += 1
            ahead.append((future := Future(), size))
            tasks.put((future, path, offset, size))
            held += size
        while ahead:
            yield ahead.popleft()[0].result()
    finally:
        left.set()  # running requests are not retried
        for _ in range(threads):
            tasks.put(None)


def _work(read: Read, tasks: "queue.SimpleQueue[_Task | None]", left: threading.Event) -> None:
    while task := tasks.get():
        future, path, offset, size = task
        if left.is_set():
            continue
        try:
            future.set_result(read(path, offset, size, left))
        except BaseException as error:
            future.set_exception(error)
