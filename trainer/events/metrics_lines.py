"""Reads metrics.jsonl back: the scalars of a run by step, from a disk or a bucket. Needs no JAX."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from trainer.events.growing_files import Progress, ignored, matching, pieces
from trainer.events.metrics_file import NAME, STEP

__all__ = ["metrics_lines"]

NON_FINITE: Mapping[Any, float] = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_DECODER = msgspec.json.Decoder(dict[str, float | int | str])


def metrics_lines(
    directory: str, steps: range | None = None, progress: Progress = ignored
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yields (step, scalars) of each line, in the order written. If a step has several lines, its last one counts.

    steps: only these; other lines are not parsed. Skips incomplete and damaged lines, which a killed process may leave.
    Yields nothing if there is no file. Holds a few pieces of the file in memory."""
    for name, size in matching(directory, NAME).items():
        for line in _lines(pieces(directory, name, size, progress)):
            found = STEP.match(line)
            if found is None or (steps is not None and int(found[1]) not in steps):
                continue
            try:
                values: dict[str, Any] = _DECODER.decode(line)
            except msgspec.DecodeError:
                continue
            step = values.pop("step")
            if b'N"' in line or b'Infinity"' in line:
                values = {key: NON_FINITE[value] if isinstance(value, str) else value for key, value in values.items()}
            yield step, values


def _lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for part in parts:
        *complete, rest = (rest + part).split(b"\n")
        yield from complete
    yield rest
