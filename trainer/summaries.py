"""TensorBoard event files, written by ourselves: tensorboard's protos in the record framing of the shards.

The usual writers import tensorflow behind the caller's back; this one must not."""

import itertools
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

from pipeline.shards.record import frame

__all__ = ["EventWriter"]

_number = itertools.count()


class EventWriter:
    """Writes scalars to a new event file in `directory`; TensorBoard shows each directory as one run.

    After a resume, give the first step as `resumed_at`: points that an interrupted run left beyond it are dropped."""

    def __init__(self, directory: Path, resumed_at: int | None = None, clock: Callable[[], float] = time.time) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        # Two writers in one second must not share a file.
        name = f"events.out.tfevents.{int(clock()):010d}.{os.uname().nodename}.{os.getpid()}.{next(_number)}"
        self._file = (directory / name).open("xb")
        self._write(Event(wall_time=clock(), file_version="brain.Event:2"))
        if resumed_at is not None:
            restart = SessionLog(status=SessionLog.START)
            self._write(Event(wall_time=clock(), step=resumed_at, session_log=restart))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """One event: all `values` of one step."""
        points = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._write(Event(wall_time=self._clock(), step=step, summary=Summary(value=points)))

    def flush(self) -> None:
        """Lets TensorBoard see what was written."""
        self._file.flush()

    def close(self) -> None:
        """Flushes and closes."""
        self._file.close()

    def _write(self, event: Event) -> None:
        self._file.write(frame(event.SerializeToString()))
