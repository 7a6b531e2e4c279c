"""Serialized TensorBoard events with scalars, for consecutive steps: training writes one for every step.

Serializing each with protobuf takes several times as long, about as long as a step of a small model. Here protobuf
makes a template once per set of names, and NumPy copies the values of each step into it."""

import functools
import itertools
from collections.abc import Iterator, Mapping

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

from pipeline.shards.example import varint
from trainer.events.event_protos import scalar_summary

__all__ = ["scalar_events"]

STEP = b"\x10"  # the tag of Event.step: field 2, a varint


def scalar_events(wall_time: float, first: int, columns: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """The events of the steps first, first + 1, ...: `columns` has the values of each name, [steps]."""
    template, ends = _template(tuple(columns))
    rows = np.repeat(template, len(next(iter(columns.values()))), axis=0)
    for end, column in zip(ends, columns.values(), strict=True):
        rows[:, end - 4 : end] = column.astype("<f4")[:, None].view(np.uint8)
    start, packed, size = Event(wall_time=wall_time).SerializeToString() + STEP, rows.tobytes(), rows.shape[1]
    for i in range(len(rows)):
        yield b"".join((start, varint(first + i), packed[i * size : i * size + size]))


@functools.lru_cache(maxsize=64)
def _template(names: tuple[str, ...]) -> tuple[np.ndarray, list[int]]:
    """The bytes of an event's summary, uint8 [1, size], and where the float32 of each name ends in them."""
    data = Event(summary=scalar_summary(dict.fromkeys(names, 0.0))).SerializeToString()
    sizes = [scalar_summary({name: 0.0}).ByteSize() for name in names]
    return np.frombuffer(data, np.uint8)[None], list(itertools.accumulate(sizes, initial=len(data) - sum(sizes)))[1:]
