"""Reads event files back."""

import struct
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event

from pipeline.shards.frames import crc32c, masked


@pytest.fixture
def events_in():
    """events_in(directory): every event of a run's files, oldest first, with both checksums checked."""

    def read(directory):
        events = []
        for path in sorted(Path(directory).glob("events.*"), key=lambda path: int(path.suffix[1:])):
            data = path.read_bytes()
            while data:
                (length,) = struct.unpack("<Q", data[:8])
                payload = data[12 : 12 + length]
                assert data[8:12] == struct.pack("<I", masked(crc32c(data[:8])))
                assert data[12 + length : 16 + length] == struct.pack("<I", masked(crc32c(payload)))
                events.append(Event.FromString(payload))
                data = data[16 + length :]
        return events

    return read
