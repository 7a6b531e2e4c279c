"""Reads metrics.jsonl back: the scalars of a run by step, or a column per name. From a disk or a bucket. Needs no JAX.

The file may be larger than memory, and end in the middle of a line, as a run appends to it. A column of a million steps
takes 16 MB."""

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from pipeline.sizes import MiB
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join
from trainer.events.metrics_file import STEP
from trainer.workdir import METRICS

PIECE_BYTES = 8 * MiB
NON_FINITE: Mapping[Any, float] = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
MOST_STEP = (1 << 63) - 1
_STEP = re.compile(STEP.pattern + rb"[,}]")
_FILE = re.compile(re.escape(METRICS) + r"(\.\d{6,})?")
_DECODER = msgspec.json.Decoder(dict[str, float | int | str])

Progress = Callable[[int], object]
"""Takes the number of bytes that were read since the last call."""


def ignored(_: int) -> None:
    """For readers that show no progress."""


@dataclass(frozen=True)
class Column:
    """steps: int64 [n], ascending; values: float64 [n], of a name at these steps."""

    steps: np.ndarray
    values: np.ndarray

    @property
    def last(self) -> float:
        """The value at the last step."""
        return float(self.values[-1])

    def at(self, steps: np.ndarray) -> np.ndarray:
        """float64 [n]: the values at these steps; NaN where there is none."""
        if not len(self.steps):
            return np.full(len(steps), np.nan)
        places = np.minimum(np.searchsorted(self.steps, steps), len(self.steps) - 1)
        return np.where(self.steps[places] == steps, self.values[places], np.nan)


def metrics_bytes(directory: str) -> int:
    """The size of the metrics.jsonl in a directory; 0 if there is none."""
    return sum(_files(directory).values())


def metrics_lines(
    directory: str, steps: range | None = None, progress: Progress = ignored
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yields (step, scalars) of each line, in the order written. If a step has several lines, its last one counts.

    The scalar "time" is when the line was made; lines of older versions have none.
    steps: only these; other lines are not parsed. Skips incomplete and damaged lines, which a killed process may leave.
    Yields nothing if there is no file. Holds a few pieces of the file in memory."""
    for name, size in _files(directory).items():
        for line in _lines(_pieces(join(directory, name), size, progress)):
            found = _STEP.match(line)
            step = int(found[1]) if found else MOST_STEP + 1
            if step > MOST_STEP or (steps is not None and step not in steps):
                continue
            if (values := _values(line)) is not None:
                yield step, values


def last_step(directory: str) -> int | None:
    """The last step in a directory's metrics.jsonl; None if there is none. Reads only the end of the file."""
    for name, size in reversed(_files(directory).items()):
        if not size:  # opening a named pipe, which is listed with 0 bytes, would wait for its other end
            continue
        path, start = join(directory, name), max(0, size - PIECE_BYTES)
        end = b"".join(open_storage(path).read_ranges([(path, start, size - start)]))
        if found := re.findall(rb"^" + _STEP.pattern, end, re.MULTILINE):
            return int(found[-1])
    return None


def read_columns(directory: str, progress: Progress = ignored) -> dict[str, Column]:
    """Name -> column of the metrics.jsonl in a directory, the names sorted; {} if there is none.

    The column "time" has the times of the lines."""
    found: dict[str, tuple[array, array]] = {}
    for step, values in metrics_lines(directory, progress=progress):
        for name, value in values.items():
            if (column := found.get(name)) is None:
                column = found[name] = (array("q"), array("d"))
            column[0].append(step)
            column[1].append(value)
    return {
        name: _column(np.frombuffer(steps, np.int64), np.frombuffer(values))
        for name, (steps, values) in sorted(found.items())
    }


def _column(steps: np.ndarray, values: np.ndarray) -> Column:
    """In the order of the steps; of a step that was written several times, the last value."""
    if len(steps) > 1 and (np.diff(steps) <= 0).any():
        _, last = np.unique(steps[::-1], return_index=True)
        last = len(steps) - 1 - last
        return Column(steps[last], values[last])
    return Column(steps, values)


def _files(directory: str) -> dict[str, int]:
    """Name -> bytes of the file or its parts, and of no copy that somebody made; sorted by name."""
    listed = open_storage(directory).list(directory)
    return {name: stat.bytes for name, stat in listed.items() if _FILE.fullmatch(name)}


def _pieces(path: str, size: int, progress: Progress) -> Iterator[bytes]:
    """The first `size` bytes of a file: what a run adds meanwhile is left for the next reader."""
    ranges = [(path, first, min(PIECE_BYTES, size - first)) for first in range(0, size, PIECE_BYTES)]
    for piece in open_storage(path).read_ranges(ranges):
        yield piece
        progress(len(piece))


def _lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for part in parts:
        *complete, rest = (rest + part).split(b"\n")
        yield from complete
    yield rest


def _values(line: bytes) -> dict[str, float] | None:
    """The scalars of a line; None if it is damaged."""
    try:
        values: dict[str, Any] = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    del values["step"]
    if b'": "' in line:
        values = {key: NON_FINITE.get(value) if isinstance(value, str) else value for key, value in values.items()}
    return None if None in values.values() else values
