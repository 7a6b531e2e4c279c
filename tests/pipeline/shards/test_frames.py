"""Frames without an index: what a header claims is not believed at any price."""

import struct

from pipeline.shards.frames import read_frames
from pipeline.shards.record import crc32c, frame, masked


def header(length):
    claim = struct.pack("<Q", length)
    return claim + struct.pack("<I", masked(crc32c(claim)))


def test_a_header_that_claims_an_excessive_size_reads_nothing_into_memory():
    taken = []

    def pieces():
        yield frame(b"first") + header(2**40)
        for _ in range(100):
            taken.append(1 << 20)
            yield bytes(1 << 20)

    first, claimed = read_frames(pieces(), None, 1000)
    assert (first.payload, first.problem, taken) == (b"first", "", [])
    assert (claimed.record, claimed.offset, claimed.payload) == (1, 21, b"")
    assert claimed.problem.startswith(f"its header says {2**40} bytes; at most 1000 are allowed here; without an index")


def test_a_record_of_the_maximum_size_is_read():
    assert [found.problem for found in read_frames([frame(bytes(1000))], None, 1000)] == [""]
