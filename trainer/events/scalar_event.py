"""The bytes of TensorBoard events that hold a step's numbers, put together by hand: every step of training has one.

protobuf takes several times as long, and the steps of a small model take no longer than that."""

import functools
import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

from pipeline.shards.example import varint
from trainer.events.summaries import scalar_summary

__all__ = ["scalar_event", "scalar_events"]

# Fields of Event, Summary and Summary.Value: number * 8 + wire type.
WALL_TIME, STEP, SUMMARY, VALUE, TAG, SIMPLE_VALUE = b"\x09", b"\x10", b"\x2a", b"\x0a", b"\x0a", b"\x15"
_DOUBLE = struct.Struct("<d")


def scalar_event(wall_time: float, step: int, values: Mapping[str, float]) -> bytes:
    """What the Event of these three serializes to."""
    layout = _layout(tuple(values))
    try:
        packed = layout.pack(values.values())
    except OverflowError:  # above what a float32 holds: protobuf makes it infinite
        return Event(wall_time=wall_time, step=step, summary=scalar_summary(values)).SerializeToString()
    return b"".join((_begun(wall_time), varint(step), layout.head, packed))


def scalar_events(wall_time: float, first: int, columns: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """The events of the steps first, first + 1, ...: `columns` has the numbers of each name, [steps]."""
    layout, begun = _layout(tuple(columns)), _begun(wall_time)
    packed, size = layout.pack_columns(list(columns.values())), layout.size
    for i, step in enumerate(range(first, first + len(packed) // size)):
        yield b"".join((begun, varint(step), layout.head, packed[i * size : i * size + size]))


def _begun(wall_time: float) -> bytes:
    return WALL_TIME + _DOUBLE.pack(wall_time) + STEP


class _Layout:
    """How the numbers of these names stand in an event: after `head`, each behind its tag, `size` bytes in all."""

    def __init__(self, names: Iterable[str]) -> None:
        self._tags = [_tag(name.encode()) for name in names]
        self._numbers = struct.Struct("<" + "".join(f"{len(tag)}sf" for tag in self._tags))
        self.size = self._numbers.size
        self.head = SUMMARY + varint(self.size)

    def pack(self, values: Iterable[float]) -> bytes:
        return self._numbers.pack(*itertools.chain.from_iterable(zip(self._tags, values, strict=True)))

    def pack_columns(self, columns: list[np.ndarray]) -> bytes:
        """The packed numbers of all rows, one after another."""
        rows = np.empty((len(columns[0]), self.size), np.uint8)
        rows[:] = np.frombuffer(self.pack([0.0] * len(columns)), np.uint8)
        ends = itertools.accumulate(len(tag) + 4 for tag in self._tags)
        for end, column in zip(ends, columns, strict=True):
            rows[:, end - 4 : end] = column.astype("<f4")[:, None].view(np.uint8)
        return rows.tobytes()


@functools.lru_cache(maxsize=64)
def _layout(names: tuple[str, ...]) -> _Layout:
    return _Layout(names)


def _tag(name: bytes) -> bytes:
    value = TAG + varint(len(name)) + name + SIMPLE_VALUE
    return VALUE + varint(len(value) + 4) + value
