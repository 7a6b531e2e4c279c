"""The scalars of a run as arrays, a column per name: a million steps in 16 MB per name."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trainer.events.growing_files import Progress, ignored
from trainer.events.metrics_lines import metrics_lines

__all__ = ["Column", "read_columns"]


@dataclass(frozen=True)
class Column:
    """steps: int64 [n], ascending; values: float64 [n], of a name at these steps."""

    steps: np.ndarray
    values: np.ndarray

    @property
    def last(self) -> float:
        """The value at the last step."""
        return float(self.values[-1])


def read_columns(directory: str, progress: Progress = ignored) -> Mapping[str, Column]:
    """Name -> column of the metrics.jsonl in a directory, the names sorted; {} if there is none."""
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
