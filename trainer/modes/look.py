"""Training records as the model sees them, after the ops of the input and the augmentation on the device."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from trainer.batch_spec import named_leaves
from trainer.inputs import INDEX, LABELLED, MASK, InputFn
from trainer.job import Job, OpenedInput
from trainer.results import Look
from trainer.step_functions import augmented

Seen = Callable[[Mapping[str, Any]], Mapping[str, np.ndarray]]


def look(job: Job, input_fn: InputFn, records: int, draws: int) -> Look:
    """See Trainer.look."""
    opened, axes = job.open("train", input_fn), job.placement.axes
    augment = jax.jit(lambda batch: augmented(job.traced_task, batch, axes))
    target = job.task.target

    def seen(batch: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
        with job.naming_batch(opened):
            made = jax.device_get(augment(dict(batch)))
        if target is not None:  # a missing label is shown as stored
            made[target.key] = np.where(made[LABELLED] > 0, made[target.key], batch[target.key])
        return named_leaves(axes.map(lambda leaf, axis: np.moveaxis(leaf, axis, 0), made))

    # Ask the class: a wrapper that forwards attributes may change the batches.
    if hasattr(type(opened.source), "draw") and opened.source.info.num_records:
        return _drawn(opened, seen, records, draws)
    return _first_batch(opened, seen, records)


def _drawn(opened: OpenedInput, seen: Seen, records: int, draws: int) -> Look:
    source: Any = opened.source
    # A complete batch: augmentation may mix its records.
    ids = _spread(source.info.num_records, opened.struct[MASK].shape[0])
    batches = (seen(source.draw(ids, np.full(len(ids), epoch))) for epoch in range(draws))
    first = next(batches)
    rows = _some_rows(first, records)
    looks = [{name: values[rows] for name, values in batch.items()} for batch in (first, *batches)]
    return Look(looks[0][INDEX].astype(np.int64), looks, _counting(first))


def _first_batch(opened: OpenedInput, seen: Seen, records: int) -> Look:
    """Of an input that cannot draw a record again."""
    batches = opened.source.batches(opened.source.info.start)
    try:
        batch = seen(next(iter(batches)))
    finally:
        getattr(batches, "close", lambda: None)()
    rows = _some_rows(batch, records)
    drawn = {name: values[rows] for name, values in batch.items()}
    numbers = drawn[INDEX].astype(np.int64) if INDEX in drawn else None
    return Look(numbers, [drawn], _counting(batch), first_batch=True)


def _counting(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: values[batch[MASK] > 0] for name, values in batch.items()}


def _some_rows(batch: Mapping[str, np.ndarray], wanted: int) -> np.ndarray:
    """Rows that count, spread over the batch."""
    rows = np.flatnonzero(batch[MASK] > 0)
    return rows[_spread(len(rows), wanted)]


def _spread(total: int, wanted: int) -> np.ndarray:
    """`wanted` numbers, or all if there are no more, spread evenly over 0..total - 1."""
    count = min(total, wanted)
    return np.arange(count) * total // max(1, count)
