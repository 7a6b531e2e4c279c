"""Memory for batches that is used again: slots, each with the arrays of some batches.

Processes share it as a file that has no name, so nothing remains if every process is killed. A slot
is free again when no array of its batches is left, wherever views of them went: to JAX on the CPU,
which uses aligned arrays without a copy, or to the caller."""

import math
import mmap
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.spec import leaves, tree_of

ALIGNED = 64  # bytes; XLA copies other arrays
MOST_KEPT = 64  # slots whose arrays are kept for writing


class Slots:
    """Slots with room for `batches` batches each. spec: of a batch; it may be nested.

    file: the descriptor of an anonymous_file, which this closes; -1 for memory of this process
    alone."""

    def __init__(self, spec: Mapping[str, Any], batches: int, file: int = -1) -> None:
        self._parts = list[mmap.mmap]()
        self._free = deque[int]()
        self._count = 0
        size = 0
        self._places = dict[tuple[str, ...], tuple[slice, Any, np.dtype]]()  # by the path of keys
        for path, leaf in leaves(spec):
            shape = (batches, *leaf.shape)
            dtype = np.dtype(leaf.dtype)
            num_bytes = math.prod(shape) * dtype.itemsize
            self._places[path] = slice(size, size + num_bytes), shape, dtype
            size += aligned(num_bytes)
        self._size = -(-max(size, 1) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self._written = dict[int, dict[tuple[str, ...], np.ndarray]]()
        self.file = file
        if file >= 0:
            weakref.finalize(self, os.close, file)

    def take(self) -> int:
        """The number of a free slot, or of a new one."""
        if self._free:
            return self._free.popleft()
        number = self._count
        self._count += 1
        if self.file >= 0:
            # what is not used yet takes no memory
            os.ftruncate(self.file, _first(_part(number) + 1) * self._size)
        return number

    def arrays(self, number: int) -> dict[str, Any]:
        """Those of a slot, [batches, *shape]. It is free once they, and all views of them, are
        gone."""
        memory = self._memory(number)
        weakref.finalize(memory, self._free.append, number).atexit = False
        return self._arrays(memory)

    def write(self, number: int, batch: int, first: int, rows: Mapping[str, Any]) -> None:
        """Writes rows of one of the batches, from row `first` on."""
        arrays = self._written.get(number)
        if arrays is None:  # to make those of 80 numbers takes as long as 20 records
            if len(self._written) == MOST_KEPT:
                self._written.clear()
            arrays = self._written[number] = dict(leaves(self._arrays(self._memory(number))))
        for path, values in leaves(rows):
            arrays[path][batch, first : first + len(values)] = values

    def _memory(self, number: int) -> np.ndarray:
        part = _part(number)
        while len(self._parts) <= part:  # few of them, because each has a descriptor
            first, end = (_first(len(self._parts) + more) * self._size for more in (0, 1))
            shared = self.file >= 0
            flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._parts.append(
                mmap.mmap(self.file, end - first, flags, offset=first if shared else 0)
            )
        return np.ndarray(
            self._size, np.uint8, self._parts[part], (number - _first(part)) * self._size
        )

    def _arrays(self, memory: np.ndarray) -> dict[str, Any]:
        return tree_of(
            (path, memory[place].view(dtype).reshape(shape))
            for path, (place, shape, dtype) in self._places.items()
        )


def _part(number: int) -> int:
    """The part of the file that has a slot: they have 1, 2, 4, 8, ... of them."""
    return (number + 1).bit_length() - 1


def _first(part: int) -> int:
    return 2**part - 1


def anonymous_file() -> int:
    """The descriptor of a file without a name, in memory where the system has such."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("infeed-batches")
    with tempfile.TemporaryFile() as file:  # macOS: on a disk, but without a name
        return os.dup(file.fileno())


def aligned(size: int) -> int:
    """The size rounded up to a multiple of ALIGNED."""
    return -(-size // ALIGNED) * ALIGNED
