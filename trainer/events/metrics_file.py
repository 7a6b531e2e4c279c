"""metrics.jsonl: the numbers of a run as lines of JSON, for whoever reads them with anything but TensorBoard.

In a bucket, whose objects cannot grow, the same lines come as parts metrics.jsonl.000000, ...: joined in the order of
their names they are the file."""

import functools
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from pipeline.shards.schemes import is_remote, open_storage
from pipeline.shards.storage import Storage, join
from trainer.events.sinks import FileSink, PartsSink, Sink

__all__ = ["NAME", "MetricsFile"]

NAME = "metrics.jsonl"
STEP = re.compile(rb'\{"step": (\d+)')


class MetricsFile:
    """Appends a line for every step to the metrics.jsonl of a directory: {"step": 7, "loss": 0.25, ...}.

    Numbers have nine digits: all of a float32. JSON has no word for a number that is not finite, so it is
    one of the strings "NaN", "Infinity" and "-Infinity", which float() reads in Python and Number() in JavaScript.

    after: the newest step that is to stay. Lines of later ones, left by a run that was interrupted, are removed, and so
    is half a line at the end."""

    def __init__(self, directory: str, after: int | None = None) -> None:
        self._sink = _open(directory, math.inf if after is None else after)

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


def _open(directory: str, after: float) -> Sink:
    if is_remote(directory):
        storage = open_storage(directory)
        return PartsSink(storage, directory, NAME, b"", number=_cut_parts(storage, directory, after))
    path = Path(directory, NAME)
    if path.exists():
        with path.open("r+b") as file:
            file.truncate(_kept_bytes(file, after))
    return FileSink(directory, NAME, b"", "ab")


def _cut_parts(storage: Storage, directory: str, after: float) -> int:
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


def _kept_bytes(lines: Iterable[bytes], after: float) -> int:
    kept = 0
    for line in lines:
        step = STEP.match(line)
        if not line.endswith(b"\n") or (step and int(step[1]) > after):
            break
        kept += len(line)
    return kept
