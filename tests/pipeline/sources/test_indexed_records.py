import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from damage import flip
from hypothesis import given
from hypothesis import strategies as st

from pipeline.datasets import eval_dataset
from pipeline.errors import SchemaError, ShardError, StorageError
from pipeline.ops import DecodeJpeg
from pipeline.shards.example_decoding import decode_example
from pipeline.shards.frames import FRAME_BYTES, crc32c, frame
from pipeline.shards.split_index import SplitIndex
from pipeline.sources.indexed_records import (
    COPY_BYTES,
    MAX_READ_BYTES,
    MERGE_GAP_BYTES,
    IndexedReading,
    IndexedRecords,
    key_of,
    read_starts,
)
from pipeline.sources.open_dataset import open_dataset
from pipeline.sources.records import Group, fetch, intact, weighed
from pipeline.storage.local import LocalStorage

SIZES = (5, 0, 7, 1, 0)


@pytest.fixture
def directory(numbers_of, tmp_path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(numbers_of(*SIZES), tmp_path / "data"))


def numbers(records: list[tuple[bytes, int]]) -> list[int]:
    assert all(crc == crc32c(payload) for payload, crc in records)
    return [decode_example(payload)["number"][0] for payload, _ in records]


def read(reader: IndexedRecords, ids: np.ndarray) -> list[tuple[bytes, int]]:
    return list(map(intact, fetch(reader, ids)))


@given(groups=st.lists(st.lists(st.integers(0, sum(SIZES) - 1), max_size=10), max_size=5))
def test_any_records_come_in_the_groups_and_the_order_asked_for(numbers_of, groups):
    reader = open_dataset(numbers_of(*SIZES), "train")
    found = reader.read(weighed(reader, (np.array(ids, np.int64) for ids in groups)))
    assert [numbers(records) for records in found] == groups


def test_a_group_comes_before_the_next_is_asked_for(numbers_of):
    # On a disk, which does not read ahead: the first batch is not kept waiting for the second.
    asked = []

    def groups():
        for ids in ([3, 4], [], [7]):
            asked.append(ids)
            yield np.array(ids, np.int64)

    reader = open_dataset(numbers_of(*SIZES), "train")
    found = iter(reader.read(weighed(reader, groups())))
    assert (numbers(next(found)), asked) == ([3, 4], [[3, 4]])
    assert [numbers(records) for records in found] == [[], [7]]


def test_neighbouring_records_are_read_with_one_range(numbers_of, requested):
    reader = open_dataset(numbers_of(*SIZES), "train")
    requested.clear()
    read(reader, np.array([11, 4, 0, 2, 6, 5]))
    assert [Path(path).name for path, _, _ in requested] == [
        "train-00000-of-00005",
        "train-00002-of-00005",
    ]


def places(*records: tuple[int, int, int]) -> np.ndarray:
    shard, offset, length = np.array(records, np.int64).T
    number = np.arange(len(shard))
    return np.stack([number, shard, number, offset, length, np.zeros_like(number)])


def test_a_read_goes_over_small_gaps_and_stops_at_large_ones_and_at_4_mib():
    end = 100 + FRAME_BYTES
    near, far = end + MERGE_GAP_BYTES, end + MERGE_GAP_BYTES + 1
    assert len(read_starts(places((0, 0, 100), (0, near, 100)))) == 1
    assert len(read_starts(places((0, 0, 100), (0, far, 100)))) == 2
    assert len(read_starts(places((0, 0, 100), (1, end, 100)))) == 2
    half = MAX_READ_BYTES // 2
    halves = places(*((0, i * half, half - FRAME_BYTES) for i in range(4)))
    assert read_starts(halves).tolist() == [0, 2]


@pytest.mark.parametrize("remote", [False, True])
def test_on_a_disk_a_large_record_is_a_read_of_its_own(tmp_path, monkeypatch, requested, remote):
    sizes = [0, 100, COPY_BYTES, COPY_BYTES + 1, 0, 3 * COPY_BYTES, 2 * COPY_BYTES]
    payloads = [bytes([i]) * size for i, size in enumerate(sizes)]
    (tmp_path / "shard").write_bytes(b"".join(map(frame, payloads)))
    rows = np.array([sizes, list(map(crc32c, payloads))], np.uint32).T
    index = SplitIndex(rows, [len(sizes)])
    monkeypatch.setattr(LocalStorage, "remote", remote)
    group = Group(np.arange(len(sizes)), sum(sizes))
    (found,) = IndexedReading(LocalStorage(), [str(tmp_path / "shard")], index, [group], 0)
    assert [intact(record)[0] for record in found] == payloads
    joined = sum(sizes[:3]) + 2 * FRAME_BYTES
    alone = [joined, *(max(size, 1) for size in sizes[3:])]
    assert [size for _, _, size in requested] == (
        [sum(sizes) + 6 * FRAME_BYTES] if remote else alone
    )


def test_a_truncated_shard_is_found_when_the_split_is_opened(directory):
    shard = directory / "train-00002-of-00005"
    size = shard.stat().st_size
    os.truncate(shard, size - 1)
    text = rf"train-00002-of-00005 has {size - 1} bytes, the manifest says {size} bytes with"
    with pytest.raises(ShardError, match=text):
        open_dataset(str(directory), "train")
    open_dataset(str(directory), "validation")  # has shards of its own


def test_a_lost_shard_is_named_and_the_others_counted(directory):
    for number in (0, 2, 3):
        (directory / f"train-0000{number}-of-00005").unlink()
    with pytest.raises(
        ShardError, match=r"train-00000-of-00005 is missing\. And 2 more shards of 'train'\."
    ):
        open_dataset(str(directory), "train")


@pytest.mark.parametrize("byte", [0, 9, -1], ids=["length", "length crc", "payload crc"])
def test_a_flipped_bit_of_a_frame_changes_no_record(directory, byte):
    reader = open_dataset(str(directory), "train")
    before, begins = (
        read(reader, np.arange(12)),
        reader.source.index.locate(np.array([8, 9])).offset,
    )
    flip(directory / "train-00002-of-00005", begins[int(byte < 0)] + byte)
    assert read(reader, np.arange(12)) == before


def test_a_shard_truncated_while_it_is_read_is_an_error_and_never_short_data(directory):
    reader = open_dataset(str(directory), "train")
    os.truncate(directory / "train-00000-of-00005", 60)
    with pytest.raises(StorageError, match=r"train-00000-of-00005 ends at byte 60"):
        read(reader, np.arange(5))


def test_keys_are_reconstructed_if_the_format_defines_how():
    values = {"image/filename": [b"a.JPEG"], "image/class/synset": [b"n1"]}
    assert key_of("imagenet2012", "train", values) == b"train/n1/a.JPEG"
    assert key_of("imagenet2012", "validation", values) == b"validation/a.JPEG"
    assert key_of("photos", "train", values) is None
    assert key_of("imagenet2012", "train", {}) is None


def test_an_error_names_the_record_by_its_key(digits, tmp_path):
    _, out = digits
    where = open_dataset(str(out)).where(7)
    assert " (record 7 of 'train', key train/n" in where
    decode = DecodeJpeg("image/encoded", shape=(8, 8, 1))
    with pytest.raises(
        SchemaError,
        match=r"\(record 0 of 'validation', key validation/\S+\.JPEG\): 'image/encoded'",
    ):
        next(eval_dataset(str(out), global_batch=4, ops=[decode], keys=["image"]).batches())
    copy = shutil.copytree(out, tmp_path / "copy")
    records = open_dataset(str(copy))
    flip(min(copy.glob("train-00000-of-*")), 20)
    # what cannot be read has no key
    assert records.where(0).endswith("record 0 at byte 0 (record 0 of 'train')")
