"""metrics.jsonl: the scalars of a run as lines of JSON, for tools other than TensorBoard.

Objects in a bucket cannot grow, so there the lines are in parts metrics.jsonl.000000, ...;
concatenated in the order of their names they are the file. Event files are written in the same way:
records stay in memory until they are published, and a fence is called just before. It raises if the
work directory has another owner by now; then none of them appears."""

import functools
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from pipeline.errors import StorageError
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import Storage, join, write_file
from trainer.reports.workdir import METRICS

PART_SECONDS = 30.0
HELD_BYTES = 1 << 16

Fence = Callable[[], None]

COPIED_BYTES = 1 << 20
START = b'{"step": '
STEP = re.compile(START.replace(b"{", rb"\{") + rb"(\d{1,19})")
PART = re.compile(re.escape(METRICS) + r"\.(\d{6,})")


def unfenced() -> None:
    """The fence of files that any process may write."""


class FileSink:
    """Appends to a new file, or in mode "ab" to one that may exist and that other processes may
    append to as well.

    Except on a network disk, records of several processes are never interleaved."""

    def __init__(
        self,
        directory: str,
        name: str,
        head: bytes,
        mode: Literal["xb", "ab"] = "xb",
        fence: Fence = unfenced,
    ) -> None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._file = Path(directory, name).open(mode, buffering=0)  # noqa: SIM115 (close closes it)
        self._records = bytearray(head)
        self._fence = fence

    def write(self, record: bytes) -> None:
        """Appends a framed record."""
        self._records += record
        if len(self._records) >= HELD_BYTES:
            self.flush()

    def flush(self, now: bool = False) -> None:
        """Makes the records visible to readers."""
        if self._records:
            self._fence()
        while self._records:  # one write, unless the disk is full
            del self._records[: self._file.write(self._records)]

    def close(self) -> None:
        """Makes all records visible to readers."""
        try:
            if not self._file.closed:
                self.flush()
        finally:
            self._file.close()


@dataclass
class PartsSink:
    """Writes objects `<name>.000000`, ..., as objects cannot be appended to. Each starts with
    `head` and is a complete file; readers take them in the order of their names. `number`: of the
    first part. Never replaces a part.

    A part appears at most every 30 s, unless flushed `now`: 2,880 per day of training."""

    storage: Storage
    directory: str
    name: str
    head: bytes
    clock: Callable[[], float] = time.monotonic
    number: int = 0
    fence: Fence = unfenced

    def __post_init__(self) -> None:
        self._path = join(self.directory, self.name)
        self._records = bytearray()
        self._published_at = self.clock()

    def write(self, record: bytes) -> None:
        """Appends a framed record."""
        self._records += record

    def flush(self, now: bool = False) -> None:
        """Makes the records visible to readers, which costs a request: only at intervals, unless
        `now`."""
        if not self._records or not (now or self.clock() - self._published_at >= PART_SECONDS):
            return
        self.fence()
        # Two concurrent evaluations skip the numbers that the other has taken.
        while not self.storage.create(
            f"{self._path}.{self.number:06d}", bytes(self.head + self._records)
        ):
            self.number += 1
        self._records.clear()
        self.number += 1
        self._published_at = self.clock()

    def close(self) -> None:
        """Makes all records visible to readers."""
        self.flush(now=True)


Sink = FileSink | PartsSink
"""Takes framed records, in order."""


def open_sink(directory: str, name: str, head: bytes, fence: Fence = unfenced) -> Sink:
    """The sink for events in this directory; every file starts with the record `head`."""
    if is_remote(directory):
        return PartsSink(open_storage(directory), directory, name, head, fence=fence)
    return FileSink(directory, name, head, fence=fence)


class SinkWriter:
    """Writes to a sink."""

    _sink: Sink

    def flush(self, now: bool = False) -> None:
        """Makes what was written visible to readers; in a bucket only at intervals, unless
        `now`."""
        self._sink.flush(now)

    def close(self) -> None:
        """Flushes and closes."""
        self._sink.close()


class MetricsFile(SinkWriter):
    """Appends a line per step to the metrics.jsonl of a directory: {"step": 7, "time":
    1790164800.125, "loss": 0.25}.

    time: when the line was made, in seconds since 1970. A training makes the lines of a dispatch
    together. Numbers have nine digits, enough for any float32. JSON has no non-finite numbers, so
    these are the strings "NaN", "Infinity" and "-Infinity", which float() in Python and Number() in
    JavaScript parse.

    after: the last step to keep; the file then has one writer. Lines of later steps, left by an
    interrupted run, are removed, and so is an incomplete last line. None: all lines stay, and
    others may append at the same time; an incomplete last line is ended, and stays as a line of
    invalid JSON. fence: called before lines become visible; see Reports."""

    def __init__(
        self,
        directory: str,
        after: int | None = None,
        fence: Fence = unfenced,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sink = _open(directory, after, fence)
        self._clock = clock

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes all `values` of a step as one line."""
        self._sink.write(_line(step, self._clock(), tuple(values), tuple(values.values())).encode())

    def steps(self, first: int, columns: Mapping[str, np.ndarray]) -> None:
        """Writes a line per step first, first + 1, ...; `columns` has the values of each name,
        [steps]."""
        names = tuple(columns)
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        now = self._clock()
        self._sink.write(
            "".join([_line(step, now, names, row) for step, row in enumerate(rows, first)]).encode()
        )


def _line(step: int, now: float, names: tuple[str, ...], values: tuple[float, ...]) -> str:
    if math.isfinite(sum(values)):
        return _template(names) % (step, now, *values)  # a third of the time of json.dumps
    numbers = dict(zip(names, map(_text_if_not_finite, values), strict=True))
    return json.dumps({"step": step, "time": round(now, 3)} | numbers) + "\n"


@functools.lru_cache(maxsize=64)
def _template(names: tuple[str, ...]) -> str:
    fields = "".join(f", {json.dumps(name)}: ".replace("%", "%%") + "%.9g" for name in names)
    return '{"step": %d, "time": %.3f' + fields + "}\n"


def _text_if_not_finite(value: float) -> float | str:
    texts = {math.inf: "Infinity", -math.inf: "-Infinity"}
    return "NaN" if math.isnan(value) else texts.get(value, float(value))


def _open(directory: str, after: int | None, fence: Fence) -> Sink:
    storage = open_storage(directory)
    if is_remote(directory):
        number = (
            max(map(_number, _parts(storage, directory)), default=-1) + 1
            if after is None
            else _cut_parts(storage, directory, after)
        )
        return PartsSink(storage, directory, METRICS, b"", number=number, fence=fence)
    path = Path(directory, METRICS)
    if path.is_symlink():
        raise StorageError(
            f"{path} is a link, through which nothing is written. Remove it, or give another "
            "workdir."
        )
    sink = partial(FileSink, directory, METRICS, mode="ab", fence=fence)
    if not path.exists():
        return sink(b"")
    with storage.open(str(path)) as file:
        _check_ours(str(path), file.read(len(START)))
        if after is None:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            return sink(b"" if file.read() in (b"", b"\n") else b"\n")
        # A new file under the old name: a previous owner that still writes appends to the old one,
        # which nobody reads.
        with storage.publish(str(path)) as copy:
            file.seek(0)
            size = _bytes_up_to(file, after)
            file.seek(0)
            while piece := file.read(min(size - file.tell(), COPIED_BYTES)):
                copy.write(piece)
    return sink(b"")


def _check_ours(path: str, data: bytes) -> None:
    """StorageError unless the first line is one of ours, or the beginning of one."""
    if not START.startswith(data[: len(START)]):
        raise StorageError(
            f"{path} has not been written by a run of infeed. Move it, or give another workdir."
        )


def _parts(storage: Storage, directory: str) -> list[str]:
    return [name for name in storage.list(directory) if PART.fullmatch(name)]


def _number(part: str) -> int:
    return int(part.rpartition(".")[2])


def _cut_parts(storage: Storage, directory: str, after: int) -> int:
    """Removes later lines and returns the number of the next part. Newest part first: if killed, it
    leaves no gap."""
    for name in reversed(_parts(storage, directory)):
        path = join(directory, name)
        data = storage.read(path)
        _check_ours(path, data)
        size = _bytes_up_to(data.splitlines(keepends=True), after)
        if not size:
            storage.delete(path)
            continue
        if size < len(data):
            write_file(storage, path, data[:size])
        return _number(name) + 1
    return 0


def _bytes_up_to(lines: Iterable[bytes], after: int) -> int:
    """The bytes of the complete lines up to this step."""
    size = 0
    for line in lines:
        step = STEP.match(line)
        if not line.endswith(b"\n") or (step and int(step[1]) > after):
            break
        size += len(line)
    return size
