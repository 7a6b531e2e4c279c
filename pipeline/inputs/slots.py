"""Memory for batches that processes share: slots in an anonymous file, each with the arrays of one batch.

The file has no name, so nothing remains if every process is killed. A slot is free again when no array of its batch is
left, wherever views of them went: to JAX on the CPU, which uses aligned arrays without a copy, or to the caller."""

import math
import mmap
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.spec import ArraySpec

ALIGNED = 64  # bytes; XLA copies other arrays


class Slots:
    """The slots of batches with this spec, which may be nested. file: the descriptor of existing ones."""

    def __init__(self, spec: Mapping[str, Any], file: int | None = None) -> None:
        self._spec, self._maps, self._free = spec, list[mmap.mmap](), deque[int]()
        size = sum(aligned(_bytes(leaf)) for leaf in _leaves(spec))
        self._size = -(-max(size, 1) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self.file = anonymous_file() if file is None else file
        weakref.finalize(self, os.close, self.file)

    def take(self) -> int:
        """The number of a free slot, or of a new one."""
        if self._free:
            return self._free.popleft()
        os.ftruncate(self.file, (len(self._maps) + 1) * self._size)
        self._map(len(self._maps))
        return len(self._maps) - 1

    def batch(self, number: int) -> dict[str, Any]:
        """The arrays of a slot. The slot is free once they, and all views of them, are gone."""
        whole = self._whole(number)
        weakref.finalize(whole, self._free.append, number).atexit = False
        return self._arrays(whole)

    def write(self, number: int, first: int, rows: Mapping[str, Any]) -> None:
        """Writes rows of a batch, from row `first` on."""
        while len(self._maps) <= number:
            self._map(len(self._maps))
        for to, values in zip(_leaves(self._arrays(self._whole(number))), _leaves(rows), strict=True):
            to[first : first + len(values)] = values

    def _map(self, number: int) -> None:
        self._maps.append(mmap.mmap(self.file, self._size, offset=number * self._size))

    def _whole(self, number: int) -> np.ndarray:
        return np.ndarray(self._size, np.uint8, self._maps[number])

    def _arrays(self, whole: np.ndarray) -> dict[str, Any]:
        at = 0

        def array(leaf: ArraySpec) -> np.ndarray:
            nonlocal at
            begin, at = at, at + aligned(_bytes(leaf))
            shape: Any = leaf.shape
            return whole[begin : begin + _bytes(leaf)].view(leaf.dtype).reshape(shape)

        return _mapped(array, self._spec)


def anonymous_file() -> int:
    """The descriptor of a file without a name, in memory where the system has such."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("infeed-batches")
    with tempfile.TemporaryFile() as file:  # macOS: on a disk, but without a name
        return os.dup(file.fileno())


def aligned(size: int) -> int:
    """The size rounded up to a multiple of ALIGNED."""
    return -(-size // ALIGNED) * ALIGNED


def _bytes(leaf: ArraySpec) -> int:
    shape: Any = leaf.shape
    return math.prod(shape) * leaf.dtype.itemsize


def _leaves(tree: Mapping[str, Any]) -> Iterator[Any]:
    for key in sorted(tree):
        yield from _leaves(tree[key]) if isinstance(tree[key], Mapping) else (tree[key],)


def _mapped(function: Any, tree: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _mapped(function, tree[key]) if isinstance(tree[key], Mapping) else function(tree[key])
        for key in sorted(tree)
    }
