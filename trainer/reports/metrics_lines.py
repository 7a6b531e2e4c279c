"""Reads metrics.jsonl back: the scalars of a run by step, or the newest of each name. From a disk
or a bucket.

The file may be larger than memory, and end in the middle of a line, as a run appends to it. Needs
no JAX."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from pipeline.errors import CheckpointError
from pipeline.sizes import MiB
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join
from trainer.reports.metrics_file import STEP
from trainer.reports.workdir import METRICS

PIECE_BYTES = 8 * MiB
NON_FINITE: Mapping[Any, float] = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
}
MOST_STEP = (1 << 63) - 1
_STEP = re.compile(STEP.pattern + rb"[,}]")
_FILE = re.compile(re.escape(METRICS) + r"(\.\d{6,})?")
_DECODER = msgspec.json.Decoder(dict[str, float | int | str])


def metrics_lines(
    directory: str, steps: range | None = None
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yields (step, scalars) of each line, in the order written. If a step has several lines, its
    last one counts.

    The scalar "time" is when the line was made. steps: only these; other lines are not parsed.
    Skips incomplete lines, which a killed process may leave; yields nothing if there is no file.
    Holds a few pieces of the file in memory. Raises CheckpointError for a line with something else
    than numbers."""
    for name, size in _files(directory).items():
        path = join(directory, name)
        # what a run adds meanwhile is left for the next reader
        ranges = [
            (path, first, min(PIECE_BYTES, size - first)) for first in range(0, size, PIECE_BYTES)
        ]
        for line in _lines(open_storage(path).read_ranges(ranges)):
            match = _STEP.match(line)
            step = int(match[1]) if match else MOST_STEP + 1
            if step > MOST_STEP or (steps is not None and step not in steps):
                continue
            if (values := _values(line, path)) is not None:
                yield step, values


def scalars_by_step(directory: str, end: int) -> dict[int, dict[str, float]]:
    """The scalars of each step before `end`, ascending. Raises as `metrics_lines`."""
    scalars = dict[int, dict[str, float]]()
    for step, values in metrics_lines(directory, range(end)):
        scalars[step] = scalars.get(step, {}) | values
    return dict(sorted(scalars.items()))


def newest(directory: str) -> tuple[int | None, dict[str, float]]:
    """The last step, and the last value of each scalar, also of those that only some steps have;
    None and {} if there is none. Reads only the end of the file. Raises CheckpointError as
    `metrics_lines` does."""
    for path, end in _ends(directory):
        step = None
        values = dict[str, float]()
        for line in end.split(b"\n"):
            match = _STEP.match(line)
            if (
                match
                and int(match[1]) <= MOST_STEP
                and (of_line := _values(line, path)) is not None
            ):
                step = int(match[1])
                values = values | of_line
        if step is not None:
            return step, values
    return None, {}


def last_step(directory: str) -> int | None:
    """The last step in a directory's metrics.jsonl; None if there is none. Reads only the end of
    the file."""
    matches = (re.findall(rb"^" + _STEP.pattern, end, re.MULTILINE) for _, end in _ends(directory))
    return next((int(steps[-1]) for steps in matches if steps), None)


def _ends(directory: str) -> Iterator[tuple[str, bytes]]:
    """(path, its last piece) of the file or its parts, the last one first."""
    for name, size in reversed(_files(directory).items()):
        # opening a named pipe, which is listed with 0 bytes, would wait for its other end
        if not size:
            continue
        path = join(directory, name)
        start = max(0, size - PIECE_BYTES)
        yield path, b"".join(open_storage(path).read_ranges([(path, start, size - start)]))


def _files(directory: str) -> dict[str, int]:
    """Name -> bytes of the file or its parts, and of no copy that somebody made; sorted by name."""
    listed = open_storage(directory).list(directory)
    return {name: stat.bytes for name, stat in listed.items() if _FILE.fullmatch(name)}


def _lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for part in parts:
        *complete, rest = (rest + part).split(b"\n")
        yield from complete
    yield rest


def _values(line: bytes, path: str) -> dict[str, float] | None:
    """The scalars of a line; None if it is incomplete."""
    try:
        values: dict[str, Any] = _DECODER.decode(line)
    except msgspec.ValidationError as e:
        raise CheckpointError(f"{path}: {e}, in the line {line[:80]!r}. {_REMEDY}") from e
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    del values["step"]
    if b'": "' in line:
        for name, value in values.items():
            if isinstance(value, str):
                if value not in NON_FINITE:
                    raise CheckpointError(
                        f"{path}: {name} is {value!r}, not a number, in {line[:80]!r}. {_REMEDY}"
                    )
                values[name] = NON_FINITE[value]
    return values


_REMEDY = "The file is damaged: remove the line, and the rest can be used."
