"""Training orders and the records of their batches; orders whose streams and windows are those of large data."""

from typing import Any

from pipeline.orders.order import Position, TrainOrder, divisors
from pipeline.orders.shuffle import default_window_records

__all__ = ["batch_ids", "straight", "usual_order"]


def usual_order(
    num_records: int, global_batch: int, *, block_records: int, **options: Any
) -> TrainOrder:
    """With the defaults of train_dataset for large data, whatever the number of records."""
    most = max(each for each in divisors(max(1, global_batch)) if each <= min(64, num_records))
    streams = options.pop("streams", None) or most
    window = options.pop("window_records", None) or default_window_records(
        block_records, streams, global_batch
    )
    sizes = {"block_records": block_records, "streams": streams, "window_records": window}
    return TrainOrder(num_records, global_batch, **sizes, **options)


def batch_ids(order: Any, position: Position) -> list[int]:
    """The records of the global batch at a position."""
    return order.rows(position, [range(order.global_batch)]).record_ids.tolist()


def straight(order: Any, steps: int, position: Position = TrainOrder.start) -> list[list[int]]:
    """The records of consecutive batches."""
    return [batch_ids(order, order.advance(position, t)) for t in range(steps)]
