"""Writes TensorBoard event files: tensorboard's protos in the record framing of the shards.

Other writers import tensorflow if it is installed, and have no fence."""

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

from pipeline.shards.example import varint
from pipeline.shards.record import frame
from trainer.events.event_protos import histogram_summary, image_summary, scalar_summary, text_summary
from trainer.events.sinks import Sink, open_sink
from trainer.workdir import event_file

__all__ = ["EventWriter", "scalar_events"]

_STEP = b"\x10"  # the tag of Event.step: field 2, a varint


class EventWriter:
    """Writes points to a new event file in `directory`; TensorBoard shows each directory as one run.

    resumed_at: the first step after a resume; TensorBoard drops points from there on that an interrupted run left.
    open_sink: (directory, name, first record) -> the sink of the events; the default writes to the directory."""

    def __init__(
        self,
        directory: str,
        resumed_at: int | None = None,
        clock: Callable[[], float] = time.time,
        open_sink: Callable[[str, str, bytes], Sink] = open_sink,
    ) -> None:
        self._clock = clock
        self._sink = open_sink(
            directory, event_file(clock()), _record(Event(wall_time=clock(), file_version="brain.Event:2"))
        )
        if resumed_at is not None:
            restart = SessionLog(status=SessionLog.START)
            self._write(Event(wall_time=clock(), step=resumed_at, session_log=restart))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes all `values` of a step as one event."""
        self._point(step, scalar_summary(values))

    def steps(self, first: int, columns: Mapping[str, np.ndarray]) -> None:
        """Writes an event per step first, first + 1, ...; `columns` has the values of each name, [steps]."""
        self._sink.write(b"".join(map(frame, scalar_events(self._clock(), first, columns))))

    def image(self, step: int, tag: str, images: Any) -> None:
        """Writes an image [h, w, c], or the first 16 of [n, h, w, c]: uint8, or floats in 0..1; c is 1, 3 or 4.

        Raises OptionError, which names the tag, for any other shape, dtype or range."""
        self._point(step, image_summary(tag, images))

    def histogram(self, step: int, tag: str, values: Any) -> None:
        """Writes the distribution of the finite values, an array of any shape, in 30 buckets."""
        self._point(step, histogram_summary(tag, values))

    def text(self, step: int, tag: str, text: str) -> None:
        """Writes a text, which TensorBoard renders as Markdown."""
        self._point(step, text_summary(tag, text))

    def flush(self, now: bool = False) -> None:
        """Makes the points visible to TensorBoard; in a bucket only at intervals, unless `now`."""
        self._sink.flush(now)

    def close(self) -> None:
        """Flushes and closes."""
        self._sink.close()

    def _point(self, step: int, summary: Summary) -> None:
        self._write(Event(wall_time=self._clock(), step=step, summary=summary))

    def _write(self, event: Event) -> None:
        self._sink.write(_record(event))


def _record(event: Event) -> bytes:
    return frame(event.SerializeToString())


def scalar_events(wall_time: float, first: int, columns: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """The serialized events of the steps first, first + 1, ...: `columns` has the values of each name, [steps].

    Training writes one for every step. Serializing each with protobuf takes several times as long, about as long as a
    step of a small model. Here protobuf makes a template once per set of names, and NumPy copies the values into it."""
    template, ends = _template(tuple(columns))
    rows = np.repeat(template, len(next(iter(columns.values()))), axis=0)
    for end, column in zip(ends, columns.values(), strict=True):
        rows[:, end - 4 : end] = column.astype("<f4")[:, None].view(np.uint8)
    start, packed, size = Event(wall_time=wall_time).SerializeToString() + _STEP, rows.tobytes(), rows.shape[1]
    for i in range(len(rows)):
        yield b"".join((start, varint(first + i), packed[i * size : i * size + size]))


@functools.lru_cache(maxsize=64)
def _template(names: tuple[str, ...]) -> tuple[np.ndarray, list[int]]:
    """The bytes of an event's summary, uint8 [1, size], and where the float32 of each name ends in them."""
    data = Event(summary=scalar_summary(dict.fromkeys(names, 0.0))).SerializeToString()
    sizes = [scalar_summary({name: 0.0}).ByteSize() for name in names]
    return np.frombuffer(data, np.uint8)[None], list(itertools.accumulate(sizes, initial=len(data) - sum(sizes)))[1:]
