"""Reads metrics.jsonl back: the scalars of a run by step, from a disk or a bucket. Needs no JAX."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from trainer.events.growing_files import Progress, ignored, matching, pieces
from trainer.events.metrics_file import STEP
from trainer.workdir import METRICS

__all__ = ["metrics_lines"]

NON_FINITE: Mapping[Any, float] = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
MOST_STEP = (1 << 63) - 1
_STEP = re.compile(STEP.pattern + rb"[,}]")
_FILE = re.compile(re.escape(METRICS) + r"(\.\d{6,})?")
_DECODER = msgspec.json.Decoder(dict[str, float | int | str])


def metrics_lines(
    directory: str, steps: range | None = None, progress: Progress = ignored
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yields (step, scalars) of each line, in the order written. If a step has several lines, its last one counts.

    steps: only these; other lines are not parsed. Skips incomplete and damaged lines, which a killed process may leave.
    Yields nothing if there is no file. Holds a few pieces of the file in memory."""
    for name, size in matching(directory, METRICS).items():
        if not _FILE.fullmatch(name):  # such as a copy that somebody made
            continue
        for line in _lines(pieces(directory, name, size, progress)):
            found = _STEP.match(line)
            step = int(found[1]) if found else MOST_STEP + 1
            if step > MOST_STEP or (steps is not None and step not in steps):
                continue
            if (values := _values(line)) is not None:
                yield step, values


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


def _lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for part in parts:
        *complete, rest = (rest + part).split(b"\n")
        yield from complete
    yield rest
