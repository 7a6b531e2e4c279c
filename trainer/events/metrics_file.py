"""metrics.jsonl: the numbers of a run as lines of JSON, for whoever reads them with anything but TensorBoard.

In a bucket, whose objects cannot grow, the same lines come as parts metrics.jsonl.000000, ...: joined in the order of
their names they are the file."""

import fcntl
import functools
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from pipeline.shards.schemes import is_remote, open_storage
from pipeline.shards.storage import Storage, join
from trainer.events.sinks import Fence, FileSink, PartsSink, Sink, unfenced

__all__ = ["NAME", "MetricsFile"]

NAME = "metrics.jsonl"
COPIED_BYTES = 1 << 20
STEP = re.compile(rb'\{"step": (\d+)')


class MetricsFile:
    """Appends a line for every step to the metrics.jsonl of a directory: {"step": 7, "loss": 0.25, ...}.

    Numbers have nine digits: all of a float32. JSON has no word for a number that is not finite, so it is
    one of the strings "NaN", "Infinity" and "-Infinity", which float() reads in Python and Number() in JavaScript.

    after: the newest step that is to stay; the file then has one writer. Lines of later ones, left by a run that was
    interrupted, are removed, and so is half a line at the end. None: nothing goes but half a line, and others may
    append at the same time. fence: asked before lines appear; see Reports."""

    def __init__(self, directory: str, after: int | None = None, fence: Fence = unfenced) -> None:
        self._sink = _open(directory, after, fence)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """One line: all `values` of one step."""
        numbers = tuple(values.values())
        if math.isfinite(sum(numbers)):
            line = _template(tuple(values)) % (step, *numbers)  # a third of the time of json.dumps
        else:
            line = json.dumps({"step": step} | {name: _finite(value) for name, value in values.items()}) + "\n"
        self._sink.write(line.encode())

    def steps(self, first: int, columns: Mapping[str, np.ndarray]) -> None:
        """A line each for the steps first, first + 1, ...: `columns` has the numbers of each name, [steps]."""
        rows = list(zip(*(column.tolist() for column in columns.values()), strict=True))
        if all(np.isfinite(column).all() for column in columns.values()):
            template = _template(tuple(columns))
            self._sink.write("".join([template % (first + i, *row) for i, row in enumerate(rows)]).encode())
        else:
            for step, row in enumerate(rows, first):
                self.scalars(step, dict(zip(columns, row, strict=True)))

    def flush(self, now: bool = False) -> None:
        """Lets readers see what was written; in a bucket only now and then, unless it has to be `now`."""
        self._sink.flush(now)

    def close(self) -> None:
        """Flushes and closes."""
        self._sink.close()


@functools.lru_cache(maxsize=64)
def _template(names: tuple[str, ...]) -> str:
    fields = "".join(f", {json.dumps(name)}: ".replace("%", "%%") + "%.9g" for name in names)
    return '{"step": %d' + fields + "}\n"


def _finite(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    return float(value) if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def _open(directory: str, after: int | None, fence: Fence) -> Sink:
    if is_remote(directory):
        storage = open_storage(directory)
        number = _next_part(storage, directory) if after is None else _cut_parts(storage, directory, after)
        return PartsSink(storage, directory, NAME, b"", number=number, fence=fence)
    path = Path(directory, NAME)
    if after is None:
        return FileSink(directory, NAME, _after_half_a_line(path), "ab")
    if path.exists():
        # A new file, though it has the old name: what an owner before this one still writes reaches nobody.
        with path.open("rb") as file, open_storage(directory).publish(str(path)) as sink:
            kept = _kept_bytes(file, after)
            file.seek(0)
            while piece := file.read(min(kept - file.tell(), COPIED_BYTES)):
                sink.write(piece)
    return FileSink(directory, NAME, b"", "ab", fence)


def _after_half_a_line(path: Path) -> bytes:
    """Removes half a line, which a killed process left, from the end of a file that others may append to: they hold a
    lock on it. Where it cannot be removed, what ends it: one line that is no JSON, and none of theirs is lost."""
    if not path.exists() or path.stat().st_size == 0:
        return b""
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        if file.read() == b"\n":
            return b""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # somebody writes, or the file system has no locks
            return b"\n"
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
    return b""


def _next_part(storage: Storage, directory: str) -> int:
    numbers = [name.rpartition(".")[2] for name in storage.list(directory) if name.startswith(f"{NAME}.")]
    return max(map(int, numbers), default=-1) + 1


def _cut_parts(storage: Storage, directory: str, after: int) -> int:
    """Removes later lines, the newest part first: a run that dies meanwhile leaves no hole. The next part's number."""
    for name in reversed([name for name in storage.list(directory) if name.startswith(f"{NAME}.")]):
        path = join(directory, name)
        data = storage.read(path)
        kept = _kept_bytes(data.splitlines(keepends=True), after)
        if not kept:
            storage.delete(path)
            continue
        if kept < len(data):
            with storage.publish(path) as sink:
                sink.write(data[:kept])
        return int(name.rpartition(".")[2]) + 1
    return 0


def _kept_bytes(lines: Iterable[bytes], after: int) -> int:
    kept = 0
    for line in lines:
        step = STEP.match(line)
        if not line.endswith(b"\n") or (step and int(step[1]) > after):
            break
        kept += len(line)
    return kept
