"""Decides which checkpoints to keep: the newest, those of every n-th step, and the best by its evaluation.

An evaluation follows the save, perhaps in another process, so it cannot be part of Orbax's metrics of a save. Results
are kept in a file of the work directory, which survives a restart."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.errors import CheckpointError
from pipeline.shards.typed_json import JsonFile, sealed, unsealed
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join
from trainer.workdir import EVALUATIONS

__all__ = ["Evaluations", "Keep", "Metrics", "best_step"]

Metrics = dict[int, dict[str, float]]  # step -> metric -> value


@dataclass(frozen=True)
class Keep:
    """An Orbax preservation policy: the newest `last`, multiples of `every`, and the step that `best` chooses; also
    what is `held`, such as links."""

    last: int
    every: int | None
    best: Callable[[Collection[int]], int | None]
    held: Callable[[int], bool] = lambda _: False

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Whether to keep each checkpoint, by its .step."""
        del context
        steps = [checkpoint.step for checkpoint in checkpoints]
        kept = {*sorted(steps)[-self.last :], self.best(steps)}
        every = self.every
        return [step in kept or (every is not None and step % every == 0) or self.held(step) for step in steps]


def best_step(measured: Metrics, steps: Collection[int], metric: str, mode: str) -> int | None:
    """Of these steps, the one with the largest ("max") or smallest ("min") value, the earliest if equal.

    None if none of them was evaluated."""
    sign = -1 if mode == "max" else 1
    ranked = [(sign * measured[step][metric], step) for step in steps if metric in measured.get(step, {})]
    return min(ranked)[1] if ranked else None


class Evaluations:
    """Metrics of evaluated checkpoints, in <workdir>/evaluations.json. Finite values only: NaN is never best."""

    def __init__(self, workdir: str) -> None:
        self._storage = open_storage(workdir)
        self._path = join(str(workdir), EVALUATIONS)

    def read(self) -> Metrics:
        """All of them. Raises CheckpointError for a file that is not ours."""
        return self._decode(self._storage.read(self._path)) if self._storage.exists(self._path) else {}

    def add(self, step: int, metrics: Mapping[str, float], there: Collection[int]) -> None:
        """Adds those of a step; drops those whose checkpoints are no longer `there`."""
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        self._change(lambda now: {at: kept for at, kept in now.items() if at in there} | {step: finite})

    def drop(self, steps: Collection[int]) -> None:
        """Removes these steps."""
        if not self.read().keys().isdisjoint(steps):
            self._change(lambda now: {at: kept for at, kept in now.items() if at not in steps})

    def _change(self, change: Callable[[Metrics], Metrics]) -> None:
        def rewrite(data: bytes | None) -> bytes:
            after = change({} if data is None else self._decode(data))
            return json.dumps(sealed({str(step): after[step] for step in sorted(after)}), indent=1).encode()

        self._storage.update(self._path, rewrite)

    def _decode(self, data: bytes) -> Metrics:
        remedy = "Remove it: it only records which checkpoint is the best."
        file = JsonFile(self._path, CheckpointError, remedy)
        measured = file.typed(unsealed(file, data)[0], dict[str, dict[str, float]])
        try:
            return {int(step): metrics for step, metrics in measured.items()}
        except ValueError as error:
            raise CheckpointError(f"{file.path}: its keys must be steps, but {error}. {remedy}") from error
