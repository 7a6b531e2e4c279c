"""How many requests training takes from a bucket, planned without reading anything."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pipeline.order_defaults import Sizes, plan_records, training_bytes
from pipeline.sources.indexed_records import IndexedRecords, read_starts
from pipeline.sources.lookahead import Lookahead

BATCH, MOST_BATCHES = 1024, 200


class Requests(NamedTuple):
    """Means per global batch of `batch` records, in the default order, on one host."""

    batch: int
    requests: float
    num_bytes: float


def planned_requests(records: IndexedRecords) -> Requests:
    """Of the first epoch; of one longer than 200 batches, the second half of these, as the first fills the windows."""
    batch = min(BATCH, records.info.num_records)
    plan = plan_records(records, batch, Sizes(None, None, None), seed=0, epochs="drop")
    order = plan.order
    steps = min(order.steps_per_epoch, MOST_BATCHES)

    def groups() -> Iterator[tuple[np.ndarray, int]]:
        for step in range(order.steps_per_epoch):
            ids = order.rows(order.advance(order.start, step), [range(batch)]).record_ids
            yield ids, records.weigh(ids)

    lookahead = Lookahead(groups(), training_bytes(replace(records.info, remote=True), plan.window_bytes))
    found = np.zeros((steps, 2))
    for step in range(steps):
        group = next(lookahead)
        ids, starts = lookahead.due(lambda ids: read_starts(records.index.locate(ids)))
        found[step] = len(starts), records.index.lengths[ids].sum()
        lookahead.used(group)
    requests, num_bytes = found[steps // 2 * (steps < order.steps_per_epoch) :].mean(0).tolist()
    return Requests(batch, requests, num_bytes)
