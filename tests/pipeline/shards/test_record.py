"""Framing against TensorFlow's own writer."""

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples

from pipeline.errors import CorruptRecordError
from pipeline.shards.record import FRAME_BYTES, HEADER_BYTES, crc32c, crc32c_of, frame, proven_crc


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
