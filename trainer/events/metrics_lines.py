"""Reads metrics.jsonl back: the scalars of a run by step, from a disk or a bucket. Needs no JAX."""

import json
from collections.abc import Iterator, Mapping

from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join
from trainer.events.metrics_file import NAME, STEP

__all__ = ["metrics_lines"]

NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def metrics_lines(directory: str, steps: range | None = None) -> Iterator[tuple[int, Mapping[str, float]]]:
    """Yields (step, scalars) of each line, in the order written: of a step that has several, the last one counts.

    steps: only these; other lines are not parsed. An incomplete or damaged line, as a killed process may leave, is
    skipped. Nothing if there is no file."""
    storage = open_storage(directory)
    names = [name for name in storage.list(directory) if name == NAME or name.startswith(f"{NAME}.")]
    for name in names:
        for line in storage.read(join(directory, name)).splitlines():
            found = STEP.match(line)
            if found is None or (steps is not None and int(found[1]) not in steps):
                continue
            try:
                values = json.loads(line)
            except ValueError:
                continue
            yield (
                values.pop("step"),
                {name: NON_FINITE[value] if isinstance(value, str) else value for name, value in values.items()},
            )
