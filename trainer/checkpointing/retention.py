"""Which checkpoints stay: the newest, every n-th step, and the best by its evaluation.

An evaluation comes after the save, perhaps in another process, so Orbax's metrics of a save cannot hold it: what was
measured stands in a file of the work directory, and is found there after a restart."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.shards.errors import CheckpointError
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import join
from pipeline.shards.typed_json import JsonFile

__all__ = ["Evaluations", "Keep", "Metrics", "best_step"]

Metrics = dict[int, dict[str, float]]  # step -> metric -> value


@dataclass(frozen=True)
class Keep:
    """An Orbax preservation policy: `last` newest, multiples of `every`, and what `best` picks of the steps."""

    last: int
    every: int | None
    best: Callable[[Collection[int]], int | None]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """For each checkpoint (of which .step counts), whether it stays."""
        del context
        steps = [checkpoint.step for checkpoint in checkpoints]
        kept = {*sorted(steps)[-self.last :], self.best(steps)}
        return [step in kept or (self.every is not None and step % self.every == 0) for step in steps]


def best_step(measured: Metrics, steps: Collection[int], metric: str, mode: str) -> int | None:
    """Of these steps the one with the largest ("max") or smallest ("min") value, the earliest of equals.

    None where none of them was measured."""
    sign = -1 if mode == "max" else 1
    ranked = [(sign * measured[step][metric], step) for step in steps if metric in measured.get(step, {})]
    return min(ranked)[1] if ranked else None


class Evaluations:
    """What evaluations of the checkpoints gave: <workdir>/evaluations.json. Finite numbers only: NaN is never best."""

    def __init__(self, workdir: str) -> None:
        self._storage = open_storage(workdir)
        self._path = join(str(workdir), "evaluations.json")

    def read(self) -> Metrics:
        """All of them. CheckpointError for a file that is not one of ours."""
        return self._decode(self._storage.read(self._path)) if self._storage.exists(self._path) else {}

    def add(self, step: int, metrics: Mapping[str, float], there: Collection[int]) -> None:
        """Adds those of a step; drops all whose checkpoints are not `there` any more."""
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        self._change(lambda now: {at: one for at, one in now.items() if at in there} | {step: finite})

    def drop(self, steps: Collection[int]) -> None:
        """Forgets these steps."""
        if not self.read().keys().isdisjoint(steps):
            self._change(lambda now: {at: one for at, one in now.items() if at not in steps})

    def _change(self, change: Callable[[Metrics], Metrics]) -> None:
        def rewrite(data: bytes | None) -> bytes:
            after = change({} if data is None else self._decode(data))
            return json.dumps({str(step): after[step] for step in sorted(after)}, indent=1).encode()

        self._storage.update(self._path, rewrite)

    def _decode(self, data: bytes) -> Metrics:
        remedy = "Remove it: it only says which checkpoint is the best."
        file = JsonFile(self._path, CheckpointError, remedy)
        measured = file.read(data, dict[str, dict[str, float]])
        try:
            return {int(step): metrics for step, metrics in measured.items()}
        except ValueError as error:
            raise CheckpointError(f"{file.path}: its keys are steps, and {error}. {remedy}") from error
