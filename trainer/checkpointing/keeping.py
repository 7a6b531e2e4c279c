"""Which checkpoints a run keeps: the newest ones, and the best one by the metrics of evaluations.

An evaluation follows the save, perhaps in another process, so it cannot be part of Orbax's metrics
of a save: results are kept in a file of the work directory, which survives a restart. Needs no
jax."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.errors import CheckpointError
from pipeline.shards.typed_json import JsonFile, sealed, unsealed
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join, read_file
from trainer.reports.workdir import EVALUATIONS

Metrics = dict[int, dict[str, float]]  # step -> metric -> value


@dataclass(frozen=True)
class KeepPolicy:
    """An Orbax preservation policy: the newest `last`, multiples of `every`, and the step that
    `best` chooses; also what is `held`, such as links."""

    last: int
    every: int | None
    best: Callable[[Collection[int]], int | None]
    held: Callable[[int], bool] = lambda _: False

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Whether to keep each checkpoint, by its .step."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        preserved = {*sorted(steps)[-self.last :], self.best(steps)}
        if self.every is not None:
            preserved.update(step for step in steps if step % self.every == 0)
        return [step in preserved or self.held(step) for step in steps]


def best_step(
    measured: Metrics, steps: Collection[int], metric: str, mode: str | None
) -> int | None:
    """The one of these steps with the largest ("max") or smallest ("min") value, the earliest if
    equal.

    None if none of them was evaluated."""
    sign = -1 if mode == "max" else 1
    ranked = [
        (sign * measured[step][metric], step) for step in steps if metric in measured.get(step, {})
    ]
    return min(ranked)[1] if ranked else None


class Evaluations:
    """Metrics of evaluated checkpoints, in <workdir>/evaluations.json. Finite values only: NaN is
    never best."""

    def __init__(self, workdir: str) -> None:
        self._storage = open_storage(workdir)
        self._path = join(workdir, EVALUATIONS)

    def read(self) -> Metrics:
        """All of them. Raises CheckpointError for a file that is not ours."""
        return self._decode(read_file(self._storage, self._path))

    def add(self, step: int, metrics: Mapping[str, float], steps: Collection[int]) -> None:
        """Adds those of a step; drops those of checkpoints other than these `steps`."""
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        self._change(steps.__contains__, {step: finite})

    def drop(self, steps: Collection[int]) -> None:
        """Removes these steps."""
        if not self.read().keys().isdisjoint(steps):
            self._change(lambda step: step not in steps, {})

    def _change(self, remains: Callable[[int], bool], more: Metrics) -> None:
        def rewrite(data: bytes | None) -> bytes:
            before = self._decode(data)
            after = {step: before[step] for step in before if remains(step)} | more
            page = sealed({str(step): after[step] for step in sorted(after)})
            return json.dumps(page, indent=1).encode()

        self._storage.update(self._path, rewrite)

    def _decode(self, data: bytes | None) -> Metrics:
        if data is None:
            return {}
        remedy = "Remove it: it only records which checkpoint is the best."
        file = JsonFile(self._path, CheckpointError, remedy)
        measured = file.typed(unsealed(file, data)[0], dict[str, dict[str, float]])
        try:
            return {int(step): metrics for step, metrics in measured.items()}
        except ValueError as error:
            raise CheckpointError(
                f"{file.path}: its keys must be steps, but {error}. {remedy}"
            ) from error
