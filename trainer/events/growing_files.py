"""Reads files that a run appends to, in pieces: they may be larger than memory, and end in the middle of an entry."""

from collections.abc import Callable, Iterator

from pipeline.sizes import MiB
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join

__all__ = ["Progress", "ignored", "matching", "pieces"]

PIECE_BYTES = 8 * MiB

Progress = Callable[[int], object]
"""Takes the number of bytes that were read since the last call."""


def ignored(_: int) -> None:
    """For readers that show no progress."""


def matching(directory: str, prefix: str) -> dict[str, int]:
    """Name -> bytes of the files in a directory whose names begin with `prefix`, sorted by name."""
    listed = open_storage(directory).list(directory)
    return {name: stat.bytes for name, stat in listed.items() if name.startswith(prefix)}


def pieces(directory: str, name: str, size: int, progress: Progress = ignored) -> Iterator[bytes]:
    """The first `size` bytes of a file: what a run adds meanwhile is left for the next reader."""
    path = join(directory, name)
    ranges = [(path, first, min(PIECE_BYTES, size - first)) for first in range(0, size, PIECE_BYTES)]
    for piece in open_storage(path).read_ranges(ranges):
        yield piece
        progress(len(piece))
