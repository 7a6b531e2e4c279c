"""Framing against TensorFlow's own writer."""

import struct

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples

from pipeline.errors import CorruptRecordError
from pipeline.shards.frames import read_frames
from pipeline.shards.record import crc32c, crc32c_of, frame, masked, proven_crc


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.binary(max_size=2000), max_size=5))
def test_frames_are_byte_equal_to_tensorflows_writer(tmp_path_factory, payloads):
    path = tmp_path_factory.mktemp("tf") / "records"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)
    assert path.read_bytes() == b"".join(frame(payload) for payload in payloads)


def test_a_flip_of_any_bit_of_a_payload_is_found():
    payload = b"some payload"
    for bit in range(len(payload) * 8):
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecordError, match=r"the index says .*convert it again"):
            proven_crc(bytes(damaged), crc32c(payload))


def test_an_intact_record_that_is_not_the_promised_one_is_refused():
    with pytest.raises(CorruptRecordError, match="the index says"):
        proven_crc(b"other payload", crc32c(b"right payload"))


def test_the_crc_of_pieces_is_that_of_the_whole():
    assert crc32c_of([]) == crc32c(b"")
    assert crc32c_of([b"in", b"", b"fee", b"d"]) == crc32c(b"infeed")


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
