"""How many requests training takes from a bucket, planned without reading anything."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pipeline.order_defaults import Sizes, plan_records, training_bytes
from pipeline.orders.order import TrainOrder
from pipeline.sources.indexed_records import MAX_READ_BYTES, IndexedRecords, read_starts
from pipeline.sources.lookahead import Lookahead

BATCH, MOST_BATCHES = 1024, 200


class Requests(NamedTuple):
    """Means per global batch of `batch` records, in the default order, on one host."""

    batch: int
    requests: float
    num_bytes: float


def planned_requests(records: IndexedRecords) -> Requests:
    """Of the first epoch. One longer than 200 batches is not planned but estimated: every block is a request, or two if
    it crosses a boundary at which reads end."""
    batch, mean_bytes = min(BATCH, records.info.num_records), records.info.num_bytes / records.info.num_records
    plan = plan_records(records, batch, Sizes(None, None, None), seed=0, epochs="drop")
    order = plan.order
    assert isinstance(order, TrainOrder)  # of one source
    steps = order.steps_per_epoch
    ahead = training_bytes(replace(records.info, remote=True), plan.window_bytes)
    if steps > MOST_BATCHES:
        if records.weigh(np.arange(records.info.num_records)) <= ahead:  # read once, in reads as large as they may be
            return Requests(batch, records.info.num_bytes / MAX_READ_BYTES / steps, batch * mean_bytes)
        block = order.block_records
        return Requests(batch, batch / block * (1 + block * mean_bytes / MAX_READ_BYTES), batch * mean_bytes)

    def groups() -> Iterator[tuple[np.ndarray, int]]:
        for step in range(steps):
            ids = order.rows(order.advance(order.start, step), [range(batch)]).record_ids
            yield ids, records.weigh(ids)

    lookahead = Lookahead(groups(), ahead)
    requests = num_bytes = 0
    for group in lookahead:
        ids, starts = lookahead.due(lambda ids: read_starts(records.index.locate(ids)))
        requests, num_bytes = requests + len(starts), num_bytes + int(records.index.lengths[ids].sum())
        lookahead.used(group)
    return Requests(batch, requests / steps, num_bytes / steps)
