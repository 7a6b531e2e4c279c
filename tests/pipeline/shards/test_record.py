"""Framing against TensorFlow's own writer."""

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.shards.errors import CorruptRecordError
from pipeline.shards.record import FRAME_BYTES, crc32c, crc32c_of, frame, payload_of


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=2000), max_size=5))
def test_frames_are_byte_equal_to_tensorflows_writer(tmp_path_factory, payloads):
    path = tmp_path_factory.mktemp("tf") / "records"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)
    assert path.read_bytes() == b"".join(frame(payload) for payload in payloads)


@given(st.binary(max_size=100))
def test_a_frame_gives_its_payload_back(payload):
    framed = frame(payload)
    assert len(framed) == len(payload) + FRAME_BYTES
    assert payload_of(b"xyz" + framed, 3, length=len(payload), crc=crc32c(payload)) == payload


def test_a_flip_of_any_bit_of_a_frame_is_found():
    payload = b"some payload"
    framed = frame(payload)
    for bit in range(len(framed) * 8):
        damaged = bytearray(framed)
        damaged[bit // 8] ^= 1 << bit % 8
        part = bit // 8  # of 8 bytes of length, 4 of its checksum, 12 of payload, 4 of its checksum
        text = "with a wrong checksum" if 8 <= part < 12 else "another one stands behind it" if part >= 24 else ""
        with pytest.raises(CorruptRecordError, match=rf"{text}, the index says .*convert it again"):
            payload_of(bytes(damaged), 0, length=12, crc=crc32c(payload))


def test_an_intact_record_that_is_not_the_promised_one_is_refused():
    with pytest.raises(CorruptRecordError, match="the index says"):
        payload_of(frame(b"other payload"), 0, length=13, crc=crc32c(b"right payload"))


def test_the_crc_of_pieces_is_that_of_the_whole():
    assert crc32c_of([]) == crc32c(b"")
    assert crc32c_of([b"in", b"", b"fee", b"d"]) == crc32c(b"infeed")
