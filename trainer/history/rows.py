"""The records of training steps as rows to show: what, where, and with which loss. Needs neither JAX nor TensorFlow."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from trainer.history.places import Place, Places
from trainer.history.seen import SeenBatch, seen_batches
from trainer.history.segments import History

__all__ = ["SeenRecord", "SeenStep", "seen_steps", "step_of"]


@dataclass(frozen=True)
class SeenRecord:
    """A record that a step saw, in this row of the global batch.

    index: its number in the input, as `_index` had it. epoch: of the order. loss: from a replay. replaces: the bad
    record in whose place it was read. masked: whether it is a bad record that was left out."""

    step: int
    row: int
    index: int
    epoch: int
    place: Place
    loss: float | None = None
    replaces: int | None = None
    masked: bool = False

    @property
    def note(self) -> str:
        """What is special about it; "" if nothing is."""
        if self.masked:
            return "left out as bad"
        return "" if self.replaces is None else f"in place of bad record {self.replaces}"

    def to_json(self) -> dict[str, Any]:
        """As a flat dict. A loss that is not finite is the text NaN, Infinity or -Infinity, as in metrics.jsonl."""
        flat = asdict(self)
        place, loss = flat.pop("place"), flat.pop("loss")
        if loss is not None and not math.isfinite(loss):
            loss = "NaN" if math.isnan(loss) else "Infinity" if loss > 0 else "-Infinity"
        return flat | place | ({} if self.loss is None else {"loss": loss})


@dataclass(frozen=True)
class SeenStep:
    """The records of one step: all in row order; or those with the largest losses first, if losses are known.

    places: opens the records, for their pictures and texts."""

    step: int
    num_rows: int
    records: list[SeenRecord]
    places: Places


def seen_steps(
    history: History,
    workdir: str,
    steps: range,
    *,
    data_dir: str | None = None,
    losses: Mapping[int, np.ndarray] | None = None,
    most: int | None = None,
) -> Iterator[SeenStep]:
    """The records of these steps. data_dir: where the data are now, if they were moved. losses: step -> float [rows].
    most: how many records of each step to return; None: all. Their payloads are read for keys and labels.

    Raises what `seen_batches` raises."""
    places: dict[int, Places] = {}
    for batch in seen_batches(history, steps, workdir):
        if id(batch.origins) not in places:
            places = {id(batch.origins): Places(batch.origins, data_dir)}
        yield step_of(batch, places[id(batch.origins)], (losses or {}).get(batch.step), most)


def step_of(batch: SeenBatch, places: Places, losses: np.ndarray | None = None, most: int | None = None) -> SeenStep:
    """The records of one batch. losses: float [rows]. most: see `seen_steps`."""
    rows = np.arange(len(batch.record_ids)) if losses is None else _worst_first(losses, batch.masked)
    return SeenStep(batch.step, len(batch.record_ids), _records(batch, rows[:most], places, losses), places)


def _worst_first(losses: np.ndarray, masked: np.ndarray) -> np.ndarray:
    """Rows by loss: those that are not finite, which explain a NaN, then the largest; those left out last."""
    return np.lexsort((-np.nan_to_num(losses, nan=np.inf, neginf=np.inf), masked))


def _records(batch: SeenBatch, rows: np.ndarray, places: Places, losses: np.ndarray | None) -> list[SeenRecord]:
    found = places.of(batch.record_ids[rows])
    return [
        SeenRecord(
            step=batch.step,
            row=row,
            index=int(batch.record_ids[row]),
            epoch=int(batch.epochs[row]),
            place=place,
            loss=None if losses is None or batch.masked[row] else float(losses[row]),
            replaces=int(batch.replaced[row]) if batch.replaced[row] >= 0 else None,
            masked=bool(batch.masked[row]),
        )
        for row, place in zip(rows.tolist(), found, strict=True)
    ]
