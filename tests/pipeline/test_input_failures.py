"""What an Input does when disks and records go wrong, and when its holder leaves."""

import gc
import os
import shutil
import threading
import time
from pathlib import Path
from types import FrameType

import pytest
from damage import flip
from pictures import encoded
from PIL import Image

from pipeline.background import thread_frames
from pipeline.datasets import eval_dataset, train_dataset
from pipeline.errors import CorruptRecordError, SchemaError
from pipeline.ops import DecodeJpeg, RandomShift
from pipeline.storage.local import LocalStorage
from pipeline.tf_cpu import tf
from pipeline.tf_data import dataset_of

OPS = (DecodeJpeg("image/encoded", shape=(8, 8, 1)), RandomShift(pixels=2))
SOON = 20.0  # seconds that a slow machine may take for what takes milliseconds


def damaged(images: str, tmp_path: Path) -> tuple[str, Path]:
    directory = shutil.copytree(images, tmp_path / "damaged")
    return str(directory), directory / "validation-00001-of-00002"


def wait_until_inside(fifo: Path) -> None:
    """Until a reader opens the pipe, or is about to: one that is stopped before that never will."""
    end = time.monotonic() + SOON
    while not any(opens(frame, str(fifo)) for frame in thread_frames().values()):
        assert time.monotonic() < end, f"nobody opens {fifo}"
        time.sleep(0.01)


def opens(frame: FrameType | None, path: str) -> bool:
    while frame:
        if frame.f_code is LocalStorage.read_ranges.__code__:
            return frame.f_locals.get("path") == path
        frame = frame.f_back
    return False


def end_stall(fifo: Path) -> None:
    """Lets the thread go that opens the pipe to read, or will soon. A plain open would wait for it for ever."""
    end = time.monotonic() + SOON
    while True:
        try:
            return os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            assert time.monotonic() < end, f"nobody opens {fifo}"
            time.sleep(0.01)


def test_a_bit_flipped_after_conversion_ends_the_epoch_with_the_records_name(images, tmp_path):
    directory, shard = damaged(images, tmp_path)
    flip(shard, shard.stat().st_size // 2)
    source = eval_dataset(directory, global_batch=4, read_ahead_bytes=1)
    batches, seen = source.batches(), []
    with pytest.raises(
        CorruptRecordError, match=r"validation-00001-of-00002, record \d+ at byte \d+"
    ):
        seen.extend(batches)
    with pytest.raises(
        tf.errors.OpError,
        match=r"CorruptRecordError: .*validation-00001-of-00002, record \d+ at byte",
    ):
        list(dataset_of(source))


def test_a_record_that_cannot_be_decoded_is_named(write_dataset, tmp_path):
    # Truncated before it was converted, so its checksum is right.
    whole = encoded(Image.new("L", (8, 8)))
    records = [
        {"image/encoded": image, "image/class/label": 1, "image/weight": [0, 0]}
        for image in (whole, whole, whole, whole[: len(whole) // 2], whole)
    ]
    directory = write_dataset(tmp_path / "cut", {"train": [records[:2], records[2:]]})
    source = eval_dataset(directory, "train", global_batch=4, ops=OPS)
    place = r"train-00001-of-00002, record 1 at byte \d+ \(record 3 of 'train'\)"
    with pytest.raises(SchemaError, match=rf"{place}: the JPEG image is damaged or truncated\. "):
        list(source.batches())


def test_closing_over_a_stalled_disk_returns_at_once_and_leaves_no_thread(images, tmp_path):
    directory, shard = damaged(images, tmp_path)
    source = eval_dataset(directory, global_batch=4, read_ahead_bytes=1)
    shard.unlink()
    os.mkfifo(shard)  # opening it to read blocks until someone opens it to write
    batches = source.batches()
    next(batches)
    wait_until_inside(shard)
    begin = time.monotonic()
    batches.close()
    assert time.monotonic() - begin < 0.5
    with pytest.raises(StopIteration):
        next(batches)
    end_stall(shard)
    assert batches.join(SOON)


def wait_until_ended(name: str) -> None:
    end = time.monotonic() + SOON
    while left := [t for t in threading.enumerate() if t.name.startswith(name)]:
        assert time.monotonic() < end, left
        time.sleep(0.01)


def test_batches_dropped_over_a_stalled_disk_leave_only_the_thread_inside_it(images, tmp_path):
    directory, shard = damaged(images, tmp_path)
    source = eval_dataset(directory, global_batch=4, read_ahead_bytes=1)
    shard.unlink()
    os.mkfifo(shard)
    batches = source.batches()
    next(batches)
    wait_until_inside(shard)
    del batches
    gc.collect()
    wait_until_ended("infeed-decode")
    end_stall(shard)
    wait_until_ended("infeed-")


def test_an_input_reads_ahead_no_more_than_its_budget(images, monkeypatch):
    read_ranges, sizes = LocalStorage.read_ranges, []

    def counting(self, ranges):
        for data in read_ranges(self, ranges):
            sizes.append(len(data))
            yield data

    source = train_dataset(images, global_batch=2, read_ahead_bytes=4000, block_records=1)
    monkeypatch.setattr(LocalStorage, "read_ranges", counting)
    batches = source.batches()
    next(batches)
    end = time.monotonic() + SOON
    while sum(sizes) <= 2000:
        assert time.monotonic() < end, sizes
        time.sleep(0.01)
    time.sleep(0.2)  # for what it must not read
    batches.close()
    assert batches.join(SOON)
    decoding = 6 * 2 * max(sizes)  # batches that have left the reading thread
    assert sum(sizes) <= 4000 + decoding + max(sizes)
