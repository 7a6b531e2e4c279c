"""Finding records by number."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ShardError
from pipeline.shards.manifest import ShardEntry, SplitEntry
from pipeline.shards.record import FRAME_BYTES, crc32c
from pipeline.shards.split_index import SplitIndex, decode_rows, encode_index, load_index
from pipeline.storage.local import LocalStorage

SHARDS = st.lists(st.lists(st.integers(0, 5000), max_size=8), min_size=1, max_size=6)


@given(SHARDS)
def test_the_index_locates_every_record_even_next_to_empty_shards(shards):
    lengths = np.array([n for shard in shards for n in shard], np.uint32)
    index = SplitIndex(lengths, np.arange(len(lengths), dtype=np.uint32), [len(shard) for shard in shards])
    expected = []
    for number, shard in enumerate(shards):
        offset = 0
        for record, length in enumerate(shard):
            expected.append((number, record, offset, length))
            offset += length + FRAME_BYTES
    place = index.locate(np.arange(len(lengths)))
    assert list(zip(place.shard, place.record, place.offset, place.length, strict=True)) == expected
    assert place.crc.tolist() == list(range(len(lengths)))
    assert index.shard_bytes().tolist() == [sum(n + FRAME_BYTES for n in shard) for shard in shards]


@given(SHARDS)
def test_an_encoded_index_decodes_to_its_rows(shards):
    rows = np.array([[n, n * 7] for shard in shards for n in shard], np.uint32).reshape(-1, 2)
    assert np.array_equal(decode_rows(encode_index(rows)), rows)


def written(tmp_path, rows):
    data = encode_index(np.array(rows))
    (tmp_path / "_index").mkdir()
    (tmp_path / "_index/train.npy").write_bytes(data)
    shards = (ShardEntry("train-00000-of-00001", len(rows), sum(r[0] + FRAME_BYTES for r in rows), 0),)
    return SplitEntry(shards, crc32c(data), "", "", 0)


def test_a_damaged_index_is_named(tmp_path):
    entry = written(tmp_path, [[5, 1], [6, 2]])
    path = tmp_path / "_index/train.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ShardError, match=r"_index/train\.npy has crc32c \w+, the manifest says .* convert the split"):
        load_index(LocalStorage(), str(tmp_path), "train", entry)


def test_an_index_of_other_shards_is_refused(tmp_path):
    entry = written(tmp_path, [[5, 1], [6, 2]])
    other = dataclasses.replace(entry, shards=(dataclasses.replace(entry.shards[0], bytes=1000),))
    with pytest.raises(ShardError, match="belong to different conversions"):
        load_index(LocalStorage(), str(tmp_path), "train", other)
    assert len(load_index(LocalStorage(), str(tmp_path), "train", entry).lengths) == 2


@pytest.mark.parametrize("array", [np.zeros((2, 2), np.int64), np.zeros(4, np.uint32), np.array([{}], object)])
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
