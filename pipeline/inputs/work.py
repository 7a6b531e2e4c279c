"""The work of worker processes: the records, the order, the decoder, and the rows that each of them
makes.

It travels as a pickle in an anonymous file, whose arrays they share."""

import io
import mmap
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from pipeline.decoding.decode import Decoder
from pipeline.errors import OptionError
from pipeline.inputs.caches import CachedRecords
from pipeline.inputs.quarantine import OnError
from pipeline.inputs.slots import aligned, anonymous_file
from pipeline.orders.mixing import MixOrder
from pipeline.orders.order import EvalOrder, Position, TrainOrder
from pipeline.sources.records import Records

Order = TrainOrder | MixOrder | EvalOrder


@dataclass(frozen=True)
class Work:
    """The work that all workers share. rows: of the rows of this host, those of each worker.
    position: of the first batch.

    together: how many batches a slot has. threads: for the rows of one worker. read_ahead_bytes: of
    one worker."""

    records: Records
    order: Order
    decoder: Decoder
    rows: Sequence[tuple[range, ...]]
    position: Position
    together: int
    threads: int
    read_ahead_bytes: int
    stall_seconds: float
    on_error: OnError
    max_bad_records: int


def divided(rows: Sequence[range], parts: int) -> list[tuple[range, ...]]:
    """The rows in order, cut into parts of equal length, or of one more: fewer parts than asked for
    if rows are few."""
    total = sum(map(len, rows))
    cut = list[tuple[range, ...]]()
    parts = min(parts, total)
    for part in range(parts):
        low = part * total // parts
        high = (part + 1) * total // parts
        at = 0
        own = list[range]()
        for each in rows:
            begin = max(low - at, 0)
            end = min(high - at, len(each))
            own += [each[begin:end]] if begin < end else []
            at += len(each)
        cut.append(tuple(own))
    return cut


class _Pickler(pickle.Pickler):
    """Refuses what other processes cannot import, or share."""

    def __init__(self, file: Any, workers: int, **options: Any) -> None:
        super().__init__(file, protocol=5, **options)
        self._workers = workers

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | FunctionType) and obj.__module__ == "__main__":
            raise OptionError(
                f"workers={self._workers} cannot use {obj.__qualname__}: it is defined in the "
                "program that was started or in a notebook, which other processes cannot import. "
                "Move it to a file of its own, and import it."
            )
        if isinstance(obj, CachedRecords) and obj.cached_in == "ram":
            raise OptionError(
                f"cache='ram' is the memory of one process, and workers={self._workers} are "
                "others. Give a directory, which they share: on a disk, or in memory, such as "
                "cache='/dev/shm/cache'."
            )
        return NotImplemented


def pickled(work: Work) -> tuple[memoryview, list[memoryview]]:
    """The work, and its arrays. Raises OptionError if it cannot be passed to another process."""
    stream = io.BytesIO()
    buffers = list[pickle.PickleBuffer]()
    workers = len(work.rows)
    try:
        _Pickler(stream, workers, buffer_callback=buffers.append).dump(work)
    except OptionError:
        raise
    except Exception as error:
        raise OptionError(
            f"workers={workers}: the source, or an op, cannot be passed to another process: "
            f"{error}. Write functions with names in place of lambdas, or give workers=0."
        ) from error
    return stream.getbuffer(), [buffer.raw() for buffer in buffers]


def packed(work: Work) -> tuple[int, list[int]]:
    """An anonymous file, and the sizes of its parts: the pickled work, and its arrays, which
    processes then share."""
    stream, arrays = pickled(work)
    parts = [stream, *arrays]
    descriptor = anonymous_file()
    with open(descriptor, "wb", closefd=False) as file:
        for part in parts:
            file.write(part)
            file.write(bytes(aligned(part.nbytes) - part.nbytes))
    return descriptor, [part.nbytes for part in parts]


def unpacked(descriptor: int, sizes: Sequence[int]) -> Work:
    """The inverse of `packed`. Arrays are shared until a process writes into one, which then gets a
    copy."""
    memory = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    at = 0
    parts = list[memoryview]()
    for size in sizes:
        parts.append(memory[at : at + size])
        at += aligned(size)
    return pickle.loads(parts[0], buffers=parts[1:])
