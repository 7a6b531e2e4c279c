"""Finding records by number."""

import struct
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from index_files import encode_index
from sweep import examples

from pipeline.errors import CorruptRecordError
from pipeline.shards import split_index
from pipeline.shards.frames import (
    FRAME_BYTES,
    crc32c,
    crc32c_of,
    frame,
    masked,
    proven_crc,
    read_frames,
)
from pipeline.shards.split_index import SplitIndex, decode_rows

SHARDS = st.lists(st.lists(st.integers(0, 5000), max_size=8), min_size=1, max_size=6)


@pytest.mark.parametrize(
    "sizes", [(split_index.PART_RECORDS, split_index.MARK_RECORDS), (4, 2), (3, 3)]
)
@given(SHARDS, st.data())
def test_the_index_locates_every_record_even_next_to_empty_shards(sizes, shards, data):
    with mock.patch.multiple(split_index, PART_RECORDS=sizes[0], MARK_RECORDS=sizes[1]):
        check_places(shards, data)


def check_places(shards, data):
    lengths = np.array([n for shard in shards for n in shard], np.uint32)
    rows = np.stack([lengths, np.arange(len(lengths), dtype=np.uint32)], axis=1)
    index = SplitIndex(rows, [len(shard) for shard in shards])
    expected = []
    for number, shard in enumerate(shards):
        offset = 0
        for record, length in enumerate(shard):
            expected.append((number, record, offset, length))
            offset += length + FRAME_BYTES
    place = index.locate(np.arange(len(lengths)))
    assert list(zip(place.shard, place.record, place.offset, place.length, strict=True)) == expected
    assert place.crc.tolist() == list(range(len(lengths)))
    some = (
        data.draw(st.lists(st.integers(0, max(0, len(lengths) - 1)), max_size=20))
        if expected
        else []
    )
    place = index.locate(np.array(some, np.int64))
    assert list(zip(place.shard, place.record, place.offset, place.length, strict=True)) == [
        expected[number] for number in some
    ]
    for number, (shard, _, offset, length) in enumerate(expected):
        assert index.locate_one(number) == (shard, offset, length, number)
    assert index.shard_bytes().tolist() == [sum(n + FRAME_BYTES for n in shard) for shard in shards]


@given(SHARDS)
def test_an_encoded_index_decodes_to_its_rows(shards):
    rows = np.array([[n, n * 7] for shard in shards for n in shard], np.uint32).reshape(-1, 2)
    assert np.array_equal(decode_rows(encode_index(rows)), rows)


@pytest.mark.parametrize(
    "array", [np.zeros((2, 2), np.int64), np.zeros(4, np.uint32), np.array([{}], object)]
)
def test_an_array_that_is_no_index_is_refused_and_nothing_is_unpickled(tmp_path, array):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(ValueError, match=r"instead of uint32|allow_pickle=False"):
        decode_rows((tmp_path / "x.npy").read_bytes())


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b"{", b"s", 1),
        lambda data: data.replace(b"}", b"]", 1),
        lambda data: data.replace(b"(5, 2)", b"(5, 20"),
        lambda data: b"PK" + data[2:],
        lambda data: data[:100],
        lambda data: data[:-1],
    ],
)
def test_a_header_that_numpy_cannot_read_is_refused_whatever_numpy_raises(change):
    with pytest.raises(ValueError, match="not a NumPy array: "):
        decode_rows(change(encode_index(np.zeros((5, 2), np.uint32))))


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
        with pytest.raises(CorruptRecordError, match=r"the index says .*; infeed verify"):
            proven_crc(bytes(damaged), crc32c(payload))


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
    assert claimed.problem.startswith(
        f"its header says {2**40} bytes; at most 1000 are allowed here; without an index"
    )


def test_a_record_of_the_maximum_size_is_read():
    assert [found.problem for found in read_frames([frame(bytes(1000))], None, 1000)] == [""]
